"""Two real unprivileged users, for tests of what one user of a machine can do to another.

`attacker` and `victim` are accounts made by `useradd` for the session and removed after it. Tests
that take them need root and are skipped, with the reason, elsewhere. Their processes run without
root's environment; whatever still runs under their uid at the end is killed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support import system_tools
from tests.support.programs import captured

from ddptop_runner.host import procs

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = [path for path in sys.path if path.endswith("site-packages")]


@dataclass(frozen=True)
class Account:
    """A user of the machine that owns nothing but its home."""

    name: str
    uid: int
    gid: int
    home: Path
    python: str
    """An interpreter of this version that the account may run."""

    def environment(self, **extra: str) -> dict[str, str]:
        """The variables of a fresh login, and `extra`; nothing of root's."""
        return {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "runner"), *PACKAGES]),
        } | extra

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start `argv` as this user, in its home unless `cwd` is given."""
        options.setdefault("cwd", self.home)
        options.setdefault("env", self.environment())
        options.setdefault("text", True)
        return subprocess.Popen(
            argv, user=self.uid, group=self.gid, extra_groups=[], umask=0o022, **options
        )

    def run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `argv` as this user to its end, its output captured."""
        timeout_s = options.pop("timeout", 60)
        options.setdefault("stdin", subprocess.DEVNULL)
        process = self.popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **options
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            pytest.fail(f"{argv} took over {timeout_s} s\n{stdout}{stderr}", pytrace=False)
        return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)

    def ddptop(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run this checkout's command line as this user."""
        return self.run([self.python, "-m", "ddptop", *args], **options)


def _make(purpose: str, useradd: str) -> Account:
    name = f"ddptop-{purpose[:3]}-{uuid.uuid4().hex[:6]}"
    home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/tmp"))
    made = captured(
        useradd, "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", name
    )
    if made.returncode != 0:
        shutil.rmtree(home)
        pytest.skip(f"useradd failed: {made.stderr.strip()}")
    entry = pwd.getpwnam(name)
    _clear_sockets(entry.pw_uid)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    home.chmod(0o755)
    return Account(name, entry.pw_uid, entry.pw_gid, home, _interpreter(entry.pw_uid))


def _interpreter(uid: int) -> str:
    """This interpreter, or the system's of the same version where this one lies in root's home."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        try:
            subprocess.run([python, "-c", ""], user=uid, cwd="/", check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    return sys.executable


def _clear_sockets(uid: int) -> None:
    """Remove the tmux folder that an earlier account with this uid may have left behind."""
    folder = Path(f"/tmp/tmux-{uid}")
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _remove(account: Account) -> None:
    for pid in procs.all_pids():
        try:
            if Path(f"/proc/{pid}").stat().st_uid == account.uid:
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue
    _clear_sockets(account.uid)
    subprocess.run(
        [system_tools.find("userdel") or "userdel", account.name], capture_output=True, check=False
    )
    shutil.rmtree(account.home, ignore_errors=True)


def _account(purpose: str) -> Iterator[Account]:
    if os.geteuid() != 0:
        pytest.skip("a second user of the machine can only be made by root")
    useradd = system_tools.find("useradd")
    if useradd is None:
        pytest.skip("useradd is not installed")
    account = _make(purpose, useradd)
    try:
        try:
            readable = account.run([account.python, "-c", "import ddptop.cli, textual"])
        except OSError:
            pytest.skip("another user has no Python of this version")
        if readable.returncode != 0:
            pytest.skip("another user cannot read this checkout or its packages")
        yield account
    finally:
        _remove(account)


@pytest.fixture(scope="session")
def attacker() -> Iterator[Account]:
    """The user who wants to run code as somebody else."""
    yield from _account("attacker")


@pytest.fixture(scope="session")
def victim() -> Iterator[Account]:
    """The user whose processes and files are to stay their own."""
    yield from _account("victim")
