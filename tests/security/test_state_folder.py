"""Who may look into a user's state folder, whatever the umask, and what another's says."""

from __future__ import annotations

import stat
import uuid
from pathlib import Path

import pytest
from tests.security.conftest import Account

VERBS = {
    "ls": ["ls"],
    "status": ["status"],
    "logs": ["logs", "train"],
    "events": ["events", "train"],
    "stop": ["stop", "train"],
    "kill": ["kill", "train"],
    "rm": ["rm", "train"],
    "wait": ["wait", "train"],
    "restart": ["restart", "train"],
    "launch": ["launch", "-d", "--", "true"],
}


def open_to_others(folder: Path) -> list[str]:
    """What others may do something with, or the owner nothing."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        wanted = 0o700 if path.is_dir() else 0o600
        if not path.is_symlink() and mode & 0o777 != wanted:
            found.append(f"{path.relative_to(folder)} {mode:04o}")
    return found


@pytest.mark.tmux
@pytest.mark.parametrize(
    ("umask", "held"), [("0000", "tmux"), ("0777", "tmux"), ("0777", "daemon")]
)
def test_all_of_a_job_is_its_users_alone_whatever_the_umask(
    victim: Account, wait_until, umask, held
) -> None:
    home = victim.home / f"state-{umask}-{held}" / "deep"
    base = victim.home / f"state-{umask}-{held}"
    victim.run(["mkdir", "-m", "755", str(base)])
    socket = f"dt-{uuid.uuid4().hex[:8]}"
    env = victim.environment(DDPTOP_HOME=str(home), DDPTOP_TMUX_SOCKET=socket)
    if held == "daemon":
        env["PATH"] = str(base)  # no tmux
    script = 'umask "$1"; shift; exec "$@"'
    command = f"umask > {base}/seen; /bin/sleep 1000"
    launch = ["launch", "-d", "--name", "job", "--", "/bin/sh", "-c", command]
    launched = victim.run(
        ["/bin/sh", "-c", script, "sh", umask, victim.python, "-m", "ddptop", *launch], env=env
    )
    assert launched.returncode == 0, launched.stderr
    try:
        wait_until(lambda: (base / "seen").exists() and (base / "seen").stat().st_size)
        assert (base / "seen").read_text().strip() == umask  # the job's own is as it was
        wait_until(lambda: "running" in victim.ddptop("status", "--json", env=env).stdout)
        assert open_to_others(home) == []
    finally:
        stopped = victim.ddptop("kill", "job", env=env)
    assert stopped.returncode == 0, stopped.stderr
    assert open_to_others(home) == []


@pytest.mark.parametrize("verb", VERBS)
def test_another_users_state_folder_says_whose_it_is(
    attacker: Account, victim: Account, verb
) -> None:
    theirs = attacker.home / "state"
    attacker.run(["mkdir", "-p", "-m", "700", str(theirs)])
    answer = victim.ddptop(*VERBS[verb], env=victim.environment(DDPTOP_HOME=str(theirs)))
    assert answer.returncode == 2
    assert f"belongs to {attacker.name} (mode 0700)" in answer.stderr
    assert "set DDPTOP_HOME to a folder of your own" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_nothing_is_started_out_of_a_folder_that_another_user_owns(
    attacker: Account, victim: Account
) -> None:
    shared = attacker.home / "shared"
    attacker.run(["mkdir", "-m", "1777", str(shared)])
    shared.chmod(0o1777)
    env = victim.environment(DDPTOP_HOME=str(shared))
    answer = victim.ddptop("launch", "-d", "--", "true", env=env)
    assert answer.returncode == 2
    assert f"{shared} belongs to {attacker.name} (mode 1777)" in answer.stderr
    assert list(shared.iterdir()) == []


def test_a_state_folder_that_others_may_write_is_closed_to_them(victim: Account) -> None:
    home = victim.home / "open"
    victim.run(["mkdir", "-p", str(home / "runs")])
    for folder in (home, home / "runs"):
        folder.chmod(0o777)
    env = victim.environment(DDPTOP_HOME=str(home), PATH=str(home))
    answer = victim.ddptop("launch", "-d", "--name", "job", "--", "/bin/true", env=env)
    assert answer.returncode == 0, answer.stderr
    assert f"{home} could be written by other users (mode 0777)" in answer.stderr
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (home, home / "runs")] == [0o755] * 2
    assert victim.ddptop("wait", "job", env=env).returncode == 0
