"""Somebody made /tmp/tmux-UID before its user did: jobs run as daemons, and a line says why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.accounts import Account


@pytest.fixture
def sockets(victim: Account) -> Iterator[Path]:
    """Where the victim's tmux would put its sockets."""
    folder = Path(f"/tmp/tmux-{victim.uid}")
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    folder.unlink() if folder.is_symlink() else shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.tmux
@pytest.mark.parametrize("squat", ["folder", "link", "open", "group"])
def test_job_is_launched_despite_a_squatted_folder(attacker, victim, sockets, squat):
    if squat == "folder":
        attacker.run(["mkdir", "-m", "777", str(sockets)])
        told = f"{sockets} is owned by {attacker.name} (mode 0777)"
    elif squat == "link":
        attacker.run(["ln", "-s", str(attacker.home), str(sockets)])
        told = f"{sockets} is not a directory"
    else:
        mode = 0o755 if squat == "open" else 0o770
        victim.run(["mkdir", str(sockets)])
        sockets.chmod(mode)
        told = f"{sockets} is accessible to other users (mode {mode:04o})"
    env = victim.environment(DDPTOP_HOME=str(victim.home / f"squat-{squat}"))
    launched = victim.ddptop("launch", "-d", "--name", "job", "--", "/bin/true", env=env)
    assert launched.returncode == 0, launched.stderr
    assert told in launched.stderr and "runs as a daemon" in launched.stderr
    assert len(launched.stderr.splitlines()) == 1
    assert victim.ddptop("wait", "job", env=env).returncode == 0
    assert squat == "link" or list(sockets.iterdir()) == []
    doctor = victim.ddptop("doctor", env=env)
    assert told in doctor.stdout and "jobs run as daemons" in " ".join(doctor.stdout.split())
