"""What survives a logout: the decision as a table, with facts from fake roots and a fake busctl."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.support.tables import table

from ddptop_runner.host import survival
from ddptop_runner.host.survival import SurvivalFacts, gather, placement, plan, scope_command

ANN = SurvivalFacts(
    systemd=True,
    uid=1000,
    user="ann",
    placement="session",
    kill_user_processes=True,
    linger=False,
    systemd_version=252,
    systemd_run=True,
    has_manager=True,
)
SCOPE = ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--description=ddptop"]
LINGER = "loginctl enable-linger ann"


def ann(**changes: object) -> SurvivalFacts:
    return msgspec.structs.replace(ANN, **changes)


CASES = {
    "no systemd": (SurvivalFacts(systemd=False), [], None),
    "killed, lingers: the scope is enough": (ann(linger=True), SCOPE, None),
    "killed, does not linger: the scope helps till the last session": (ann(), SCOPE, LINGER),
    "killed, no systemd-run": (ann(linger=True, systemd_run=False), [], "cannot be used here"),
    "killed, a shell from su": (
        ann(linger=True, has_manager=False),
        [],
        "systemd-run --user cannot be used here",
    ),
    # a scope of the manager would die with the last session; the abandoned session continues
    "not killed, does not linger": (ann(kill_user_processes=False), [], None),
    "not killed, lingers": (ann(kill_user_processes=False, linger=True), [], None),
    "unknown, lingers: the scope cannot hurt": (
        ann(kill_user_processes=None, linger=True),
        SCOPE,
        None,
    ),
    "unknown, does not linger": (ann(kill_user_processes=None), [], LINGER),
    "desktop terminal below the manager": (ann(placement="manager"), [], LINGER),
    "below the manager, lingers": (ann(placement="manager", linger=True), [], None),
    "batch step": (ann(placement="elsewhere"), [], None),
}


@pytest.mark.parametrize(("facts", "wrap", "warning"), CASES.values(), ids=CASES.keys())
def test_plan(facts, wrap, warning):
    decided = plan(facts)
    assert decided.wrap == wrap
    if warning is None:
        assert decided.warning is None
    else:
        assert decided.warning is not None and warning in decided.warning
        assert "loginctl enable-linger ann" in decided.warning
        assert "\n" not in decided.warning


def test_root_is_not_killed_by_default():
    assert plan(ann(uid=0, user="root")).wrap == []


def test_a_scope_outlives_the_oom_kill_of_one_rank_where_systemd_knows_the_setting():
    assert "--property=OOMPolicy=continue" in scope_command(ann(systemd_version=253))
    assert "--property=OOMPolicy=continue" not in scope_command(ann(systemd_version=252))
    assert "--property=OOMPolicy=continue" not in scope_command(ann(systemd_version=None))


@pytest.mark.parametrize(("cgroup", "where"), table(__file__, "placement"))
def test_placement(cgroup, where):
    assert placement(cgroup) == where


def fake_root(folder: Path, cgroup: str = "0::/user.slice/user-0.slice/session-3.scope\n") -> Path:
    for name in ("run/systemd/system", "proc/self", "bin"):
        (folder / name).mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(cgroup)
    return folder


def executable(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def env_of(root: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(root / "bin"), **more}


def test_without_systemd_nothing_is_asked(tmp_path):
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin/busctl", f"touch {tmp_path}/asked")
    assert gather(env_of(tmp_path), tmp_path) == SurvivalFacts(systemd=False)
    assert not (tmp_path / "asked").exists()


def test_live_settings_come_from_logind(tmp_path, monkeypatch):
    monkeypatch.setattr(survival, "BUSCTL_TIMEOUT_S", 60.0)  # however busy the machine is
    root = fake_root(tmp_path)
    executable(
        root / "bin/busctl",
        f"echo \"$@\" >{root}/asked\necho 'b true'",
    )
    executable(root / "bin/systemd-run", "exit 0")
    facts = gather(env_of(root), root)
    assert facts.systemd and facts.placement == "session" and facts.systemd_run
    assert facts.kill_user_processes is True
    assert facts.uid == os.getuid()
    assert "KillUserProcesses" in (root / "asked").read_text()


@pytest.mark.parametrize("script", [None, "exit 1", "echo nonsense", "exec /bin/sleep 60"])
def test_what_is_not_answered_is_unknown(tmp_path, script, monkeypatch):
    monkeypatch.setattr(survival, "BUSCTL_TIMEOUT_S", 0.5)
    root = fake_root(tmp_path)
    if script is not None:
        executable(root / "bin/busctl", script)
    facts = gather(env_of(root), root)
    assert facts.kill_user_processes is None
    assert facts.systemd_version is None and not facts.has_manager
    assert facts.systemd_run is False and facts.linger is False


def test_linger_version_and_runtime_dir(tmp_path):
    root = fake_root(tmp_path)
    user = gather(env_of(root), root).user
    (root / "var/lib/systemd/linger").mkdir(parents=True)
    (root / "var/lib/systemd/linger" / user).touch()
    library = root / "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-255.4-1.so"
    library.parent.mkdir(parents=True)
    library.touch()
    standard = f"/run/user/{os.getuid()}"
    (root / standard.lstrip("/") / "systemd").mkdir(parents=True)
    (root / standard.lstrip("/") / "systemd/private").touch()
    facts = gather(env_of(root, XDG_RUNTIME_DIR=standard), root)
    assert facts.linger is True
    assert facts.systemd_version == 255
    assert facts.has_manager and not gather(env_of(root), root).has_manager
