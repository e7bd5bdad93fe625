"""A tmux client obeys its server, so nobody else's server may ever be asked about a pane."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.accounts import Account

from ddptop_runner.host.tmux import DEFAULT_SOCKET

HERE = Path(__file__).parent / "scripts"
LOOK = str(HERE / "look.py")

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@dataclass(frozen=True)
class Trap:
    """The attacker's server with a training beside it."""

    pid: int
    seen: Path
    booty: Path

    def caught(self) -> tuple[str, str]:
        """(uids that connected, uids that ran the payload)."""
        return tuple(file.read_text() if file.exists() else "" for file in (self.seen, self.booty))


@contextlib.contextmanager
def trap(attacker: Account, folder: Path, name: str = "s") -> Iterator[Trap]:
    """A server whose socket of that name lies in `folder`."""
    booty, seen, payload = (folder / name for name in ("booty", "seen", "payload"))
    payload.write_text(f"#!/bin/sh\nid -u >>{booty}\n")
    payload.chmod(0o755)
    server = attacker.popen(
        [attacker.python, str(HERE / "hostile_tmux.py"), str(folder / name), payload, seen],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        yield Trap(int(server.stdout.readline()), seen, booty)
    finally:
        server.communicate(timeout=60)


def folder_of(owner: Account, path: Path, mode: int) -> Path:
    path.mkdir()
    os.chown(path, owner.uid, owner.gid)
    path.chmod(mode)
    return path


def test_the_trap_catches_whoever_asks_it(attacker):
    folder = folder_of(attacker, attacker.home / "open", 0o755)
    with trap(attacker, folder) as found:
        subprocess.run(["tmux", "-S", folder / "s", "list-panes"], capture_output=True, check=False)
        assert found.caught() == ("0\n", "0\n")


def test_root_does_not_ask_the_server_that_a_variable_names(attacker):
    folder = folder_of(attacker, attacker.home / "named", 0o755)
    with trap(attacker, folder) as found:
        words = subprocess.run(
            [sys.executable, LOOK, str(found.pid)], capture_output=True, text=True, check=True
        ).stdout
        assert found.caught() == ("", "")
    assert "not readable" in words


def test_root_does_not_ask_the_server_in_another_users_folder(attacker):
    folder = folder_of(attacker, Path(f"/tmp/tmux-{attacker.uid}"), 0o700)
    with trap(attacker, folder) as found:
        subprocess.run([sys.executable, LOOK, str(found.pid)], capture_output=True, check=True)
        assert found.caught() == ("", "")


@pytest.mark.parametrize("kind", ["squatted", "linked"])
def test_a_user_does_not_ask_a_server_that_somebody_else_put_in_place(attacker, victim, kind):
    place = Path(f"/tmp/tmux-{victim.uid}")
    folder = attacker.home / kind if kind == "linked" else place
    folder_of(attacker, folder, 0o777)
    if kind == "linked":
        place.symlink_to(folder)
    try:
        training = folder_of(victim, victim.home / kind, 0o755)
        with trap(attacker, folder) as found, trap(victim, training) as mine:
            words = victim.run([victim.python, LOOK, str(mine.pid)])
            assert "terminal" in words.stdout, words.stderr
            assert found.caught() == ("", "")
    finally:
        place.unlink() if place.is_symlink() else shutil.rmtree(place)


def test_no_job_is_held_by_a_server_that_somebody_else_put_in_place(attacker, victim):
    place = folder_of(attacker, Path(f"/tmp/tmux-{victim.uid}"), 0o777)
    try:
        with trap(attacker, place, DEFAULT_SOCKET) as found:
            job = ("--name", "held", "--", "/bin/true")
            launched = victim.ddptop("launch", "-d", *job)
            waited = victim.ddptop("wait", "held") if launched.returncode == 0 else launched
            assert found.caught() == ("", "")
        assert "Traceback" not in launched.stderr + waited.stderr
    finally:
        shutil.rmtree(place)


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
