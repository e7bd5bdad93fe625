"""Decides whether a job started from this shell survives logout, and what helps if not.

Two things of systemd end processes that ignore SIGHUP: logind kills the scope of a closed session
(KillUserProcesses=yes), and the user's manager goes with the last session and takes everything
below `user@<uid>.service` with it, unless the user lingers.

`systemd-run --user --scope` moves a job from its session to the user's manager. That is a gain only
where the session would be killed or the user lingers: without linger, and with
KillUserProcesses=no, the abandoned session keeps a job alive while the manager would end it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ddptop_runner.base import programs
from ddptop_runner.host import procs
from ddptop_runner.model.words import Base

BUSCTL_TIMEOUT_S = 2.0
FIRST_SYSTEMD_WITH_SCOPE_OOM_POLICY = 253

Placement = Literal["session", "manager", "elsewhere"]
"""`session`: in a login session's scope; `manager`: below the user's systemd; `elsewhere`: a system
service, a batch system's step, a container."""

_SETTING = (
    "get-property",
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
    "KillUserProcesses",
)


class SurvivalFacts(Base, frozen=True, kw_only=True):
    """What decides whether processes outlive the login. None: unknown."""

    systemd: bool
    """Whether systemd runs this machine."""
    uid: int = 0
    user: str = "root"
    placement: Placement = "elsewhere"
    kill_user_processes: bool | None = None
    linger: bool | None = None
    systemd_version: int | None = None
    systemd_run: bool = False
    """Whether `systemd-run` is on PATH."""
    has_manager: bool = False
    """Whether XDG_RUNTIME_DIR holds a socket of the user's manager; not so after su or sudo."""


class SurvivalPlan(Base, frozen=True, kw_only=True):
    """How to start a job that must outlive the login."""

    wrap: list[str] = []
    """The argv to prepend to the command to move it out of the session; empty if not needed."""
    risk: str | None = None
    """What can still end the job; None if nothing can."""
    remedy: str | None = None
    """The command that prevents it."""

    @property
    def warning(self) -> str | None:
        """Risk and remedy in one line; None without a risk."""
        return None if self.risk is None else f"{self.risk}; to prevent this: {self.remedy}"


def plan(facts: SurvivalFacts) -> SurvivalPlan:
    """Decide how to start a job so that it outlives the login."""
    if not facts.systemd:
        return SurvivalPlan()
    linger = f"loginctl enable-linger {facts.user}"
    if facts.placement == "session":
        return _in_a_session(facts, linger)
    if facts.linger is True:
        return SurvivalPlan()
    if facts.placement == "manager":
        return SurvivalPlan(
            risk=f"systemd ends this job when {facts.user}'s last session closes, because"
            " lingering is off",
            remedy=linger,
        )
    return SurvivalPlan()


def _in_a_session(facts: SurvivalFacts, linger: str) -> SurvivalPlan:
    killed = session_is_killed(facts)
    if killed is False:
        return SurvivalPlan()
    if killed is None and facts.linger is not True:
        return SurvivalPlan(
            risk="logind may kill this job at logout: its KillUserProcesses setting is unknown",
            remedy=linger,
        )
    wrap = scope_command(facts)
    if not wrap:
        return SurvivalPlan(
            risk=f"logind {'kills' if killed else 'may kill'} this job at logout"
            " (KillUserProcesses), and systemd-run --user cannot be used here",
            remedy=f"log in directly (not through su or sudo), then run {linger}",
        )
    if facts.linger is True:
        return SurvivalPlan(wrap=wrap)
    return SurvivalPlan(
        wrap=wrap,
        risk="logind kills processes at logout (KillUserProcesses=yes): this job survives the"
        f" end of this session, but not of {facts.user}'s last one",
        remedy=linger,
    )


def session_is_killed(facts: SurvivalFacts) -> bool | None:
    """Whether logind kills processes left in this user's closed sessions; None if unknown.

    By default, it excludes root (KillExcludeUsers).
    """
    return False if facts.uid == 0 else facts.kill_user_processes


def scope_command(facts: SurvivalFacts) -> list[str]:
    """The argv that runs a command in a scope of the user's manager; empty if that is impossible.

    systemd chooses the scope's name: a fixed one could be that of a running job.
    """
    if not facts.systemd_run or not facts.has_manager:
        return []
    command = ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--description=ddptop"]
    version = facts.systemd_version
    if version is not None and version >= FIRST_SYSTEMD_WITH_SCOPE_OOM_POLICY:
        # by default, the whole scope is stopped when the OOM killer ends one rank
        command.append("--property=OOMPolicy=continue")
    return command


def gather(env: Mapping[str, str], root: Path = Path("/")) -> SurvivalFacts:
    """Collect facts about this process and this machine; returns at once without systemd.

    Args:
        env: the launching shell's variables.
        root: the root of the file system; tests pass another.
    """
    if not (root / "run/systemd/system").is_dir():
        return SurvivalFacts(systemd=False)
    uid = os.getuid()
    user = procs.user_name(uid)
    runtime_dir = root / env.get("XDG_RUNTIME_DIR", "none").lstrip("/")
    return SurvivalFacts(
        systemd=True,
        uid=uid,
        user=user,
        placement=placement((root / "proc/self/cgroup").read_text(errors="replace")),
        kill_user_processes=_kills_user_processes(env),
        linger=(root / "var/lib/systemd/linger" / user).exists(),
        systemd_version=_systemd_version(root),
        systemd_run=shutil.which("systemd-run", path=env.get("PATH")) is not None,
        has_manager=(runtime_dir / "systemd/private").exists() or (runtime_dir / "bus").exists(),
    )


def placement(cgroup: str) -> Placement:
    """The placement according to the text of /proc/self/cgroup."""
    for line in cgroup.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy != "0" and controllers != "name=systemd":
            continue
        if re.search(r"/user@\d+\.service(/|$)", path):
            return "manager"
        if re.search(r"/session-[^/]+\.scope(/|$)", path):
            return "session"
    return "elsewhere"


def _kills_user_processes(env: Mapping[str, str]) -> bool | None:
    """Logind's live setting; None if it does not answer."""
    busctl = shutil.which("busctl", path=env.get("PATH"))
    if busctl is None:
        return None
    try:
        answer = programs.run([busctl, "--system", *_SETTING], BUSCTL_TIMEOUT_S)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"b true": True, "b false": False}.get(answer.stdout.strip())


def _systemd_version(root: Path) -> int | None:
    """Read from the name of systemd's library, because asking systemd takes another process."""
    for folder in ("usr/lib/systemd", "usr/lib64/systemd", "lib/systemd", "usr/lib/*/systemd"):
        for library in root.glob(f"{folder}/libsystemd-shared-*.so"):
            if found := re.search(r"shared-(\d+)", library.name):
                return int(found[1])
    return None
