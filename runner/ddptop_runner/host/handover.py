"""What the guardian and the agent of a job are started with.

A tmux server keeps the variables of the shell that started it, and `tmux new-session -e` shows
them in `ps`; so the launching shell's environment travels in a 0600 file, which the guardian
deletes as it reads it. Its first line is the job's id, for the shell of a tmux pane, which starts
the guardian with it. The agent's plan is plain data on its standard input.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base import bounded, start
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.spec import JobSpec, Rendezvous

_LIMITS = ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_STACK")
OF_A_RANK = frozenset(
    {
        "DDPTOP_ATTEMPT",
        "DDPTOP_CHECKPOINT_FILE",
        "DDPTOP_JOB_ID",
        "DDPTOP_LOG",
        "DDPTOP_PROBE_OWNER",
        "DDPTOP_PROBE_SOCK",
        "DDPTOP_STACKS_DIR",
    }
)
"""What a process of a job carries. A job that is launched from within one gets its own, and its
guardian must not look like a rank."""

OF_TORCH = frozenset(
    """
    LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE
    ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCH_NCCL_ASYNC_ERROR_HANDLING
    """.split()  # noqa: SIM905 - a list of one name a line is longer and no clearer
)
"""What torch's agent adds to a rank's variables, beside TORCHELASTIC_*."""
_SIGN_OF_TORCH = "TORCHELASTIC_RUN_ID"
"""Whoever has it is a rank of torch's agent, or was started by one."""


SHELL_NOISE = frozenset(
    """
    _ OLDPWD PWD SHLVL TERM TERM_PROGRAM TERM_PROGRAM_VERSION TMUX TMUX_PANE STY WINDOW WINDOWID
    COLUMNS LINES LS_COLORS LESSOPEN LESSCLOSE SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_AUTH_SOCK
    DISPLAY XDG_SESSION_ID XDG_SESSION_TYPE XDG_SESSION_CLASS COLORTERM PS1 HISTFILE MAIL
    """.split()  # noqa: SIM905 - a list of one name a line is longer and no clearer
)
"""Variables that differ from shell to shell and mean nothing to a job: never named as missing."""


_OF_THIS_MACHINE = frozenset(
    """
    HOME USER LOGNAME SHELL HOSTNAME HOST TMPDIR CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER
    NVIDIA_VISIBLE_DEVICES DBUS_SESSION_BUS_ADDRESS INVOCATION_ID JOURNAL_STREAM KRB5CCNAME
    MANAGERPID SYSTEMD_EXEC_PID GLOO_SOCKET_IFNAME MASTER_ADDR MASTER_PORT
    """.split()  # noqa: SIM905 - a list of one name a line is longer and no clearer
)
_FAMILIES = ("DDPTOP_", "SLURM_", "SSH_", "XDG_", "TMUX", "SUDO_", "GPG_", "PMI_", "OMPI_")


@dataclass(frozen=True)
class Handover:
    """What the guardian starts the job with."""

    env: dict[str, str]
    """The launching shell's variables."""
    job_env: dict[str, str]
    """What ddptop and --env add for the job: devices, job id, overrides."""
    umask: int
    soft_limits: dict[str, int]
    """The shell's soft resource limits, by name."""
    attempt: int
    """The number of the first attempt: 0, or the next one when an ended job is started again."""
    adopts: bool = False
    """The job lives, and its guardian does not: nothing is started but a supervisor."""
    agent_pid: int | None = None
    """Of the living agent of a job that is adopted."""


def capture(job_env: dict[str, str], attempt: int) -> Handover:
    """This process's environment, umask and limits, with what the job adds."""
    limits = soft_limits_of(os.getpid())
    return Handover(of_shell(os.environ), job_env, start.shell_umask(), limits, attempt)


def of_shell(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without what belongs to a rank that this process may be running in.

    A rank and an address that a person has set stay: they are not torch's agent's.
    """
    in_rank = _SIGN_OF_TORCH in env
    return {
        name: value
        for name, value in env.items()
        if name not in OF_A_RANK and not (in_rank and is_of_torch(name))
    }


def carried(env: Mapping[str, str]) -> dict[str, str]:
    """The launching shell's variables that ranks on other machines get as well.

    All but what belongs to this machine or this login: folders, sockets, devices, terminals.
    """
    return {
        name: value
        for name, value in of_shell(env).items()
        if name not in _OF_THIS_MACHINE | SHELL_NOISE
        and not name.startswith(_FAMILIES)
        and is_text(name)
        and is_text(value)
    }


def is_text(word: str) -> bool:
    """Whether it is valid UTF-8; other bytes arrive as surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_of_torch(name: str) -> bool:
    """Whether torch's agent gives its ranks a variable of that name."""
    return name in OF_TORCH or name.startswith("TORCHELASTIC_")


def soft_limits_of(pid: int) -> dict[str, int]:
    """A process's soft limits, as `Handover` keeps them; empty where they cannot be read."""
    try:
        return {name: resource.prlimit(pid, getattr(resource, name))[0] for name in _LIMITS}
    except OSError:
        return {}


def write(path: Path, handover: Handover, job_id: str = "") -> None:
    """Write the file, readable by this user alone."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{job_id}\n{json.dumps(asdict(handover))}")


def take(path: Path) -> Handover:
    """Read the file and delete it.

    Raises:
        OSError: when there is none.
        ValueError: when it is not a hand-over.
    """
    data = bounded.read_bytes(path).decode("utf-8", "surrogateescape")
    path.unlink()
    try:
        return Handover(**json.loads(data.partition("\n")[2]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a valid handover file: {error}") from error


def apply_limits(soft_limits: dict[str, int]) -> None:
    """Set this process's soft limits as in the launching shell, as far as the hard ones allow."""
    for name, soft in soft_limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
            soft = hard
        try:
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):
            continue  # the old limit stays


_ENGINE = Path(__file__).resolve().parents[1]
AGENT_MAIN = _ENGINE / "agent" / "__main__.py"
PUMP_MAIN = _ENGINE / "agent" / "pump.py"
PROBE_DIR = _ENGINE / "probe" / "inject"


def agent_command(spec: JobSpec) -> list[str]:
    """The argv of the agent. `-u`: its words reach the log at once.

    It runs under the job's interpreter; that of a command under ddptop's, for the command may have
    no torch, or be no Python at all, and with nothing of the job's own on its path.
    """
    if spec.is_command:
        return [sys.executable, "-I", "-u", str(AGENT_MAIN)]
    return [spec.python, "-u", str(AGENT_MAIN)]


def agent_plan(
    spec: JobSpec,
    folder: RunFolder,
    attempt: int,
    restarts_left: int,
    rendezvous: Rendezvous | None = None,
) -> dict[str, Any]:
    """What the agent reads from standard input.

    Args:
        spec: the job.
        folder: its run folder.
        attempt: the number that the first life of the worker group gets.
        restarts_left: the budget, which ranks see in TORCHELASTIC_MAX_RESTARTS.
        rendezvous: of that attempt, on several nodes; None: the one the node was started for.
    """
    if rendezvous is None and spec.membership is not None:
        rendezvous = spec.membership.rendezvous
    return {
        "kind": spec.kind,
        "job_id": spec.job_id,
        "command": spec.command(),
        "nproc": spec.nproc,
        "attempt": attempt,
        "restarts_left": restarts_left,
        "logs_dir": str(folder.logs_dir),
        "control_socket": str(folder.control_socket),
        "rendezvous": None if rendezvous is None else msgspec.to_builtins(rendezvous),
        "zygote": spec.zygote,
        "pty": spec.pty,
        "probe_file": str(PROBE_DIR / "sitecustomize.py") if spec.probe else None,
        "probe_dir": str(PROBE_DIR) if spec.probe else None,
        "probe_socket": str(folder.probe_socket),
        "stacks_dir": str(folder.evidence_dir / "stacks"),
        "save_flag": str(folder.save_flag),
    }
