"""Determines whether tmux can hold a job here, on ddptop's own server and configuration.

ddptop never touches sessions of the user's tmux: its server listens on its own socket
(`-L ddptop`), so it works the same inside tmux, byobu, or GNU screen.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
import subprocess
import threading
from pathlib import Path

from ddptop_runner.base import programs
from ddptop_runner.base.bounded import is_file_name
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.files import belongs, is_private_folder

DEFAULT_SOCKET = "ddptop"
MINIMUM_VERSION = (3, 2)
"""3.2 itself is not enough: 3.2a fixed `new-session -e`."""

ANSWER_S = 5.0
"""How long a server may take to answer a command."""


def socket_name() -> str:
    """The name of the server's socket: `$DDPTOP_TMUX_SOCKET`, else "ddptop".

    Raises:
        UsageError: the variable contains a path.
    """
    name = os.environ.get("DDPTOP_TMUX_SOCKET") or DEFAULT_SOCKET
    if not is_file_name(name):
        raise UsageError(
            f"DDPTOP_TMUX_SOCKET is {name[:80]!r}, which is not a file name", "use a plain name"
        )
    return name


def parse_version(text: str) -> tuple[int, int, str] | None:
    """(3, 2, "a") for "tmux 3.2a"; None if the text has no version. "next-3.4" counts as 3.4."""
    found = re.search(r"(\d+)\.(\d+)([a-z]?)", text)
    return (int(found[1]), int(found[2]), found[3]) if found else None


def why_unusable() -> str | None:
    """Why tmux cannot hold a job here; None if it can."""
    if (why := program_problem()) is not None:
        return why
    if (problem := folder_problem()) is not None:
        return f"tmux cannot be used: {socket_dir()} {problem}"
    return server_problem()


def socket_dir() -> Path:
    """The folder of this user's tmux sockets, as tmux itself chooses it."""
    base = os.environ.get("TMUX_TMPDIR")
    return Path(base if base and Path(base).is_dir() else "/tmp") / f"tmux-{os.geteuid()}"


def folder_problem() -> str | None:
    """Why no socket can be created there; None if one can.

    Anyone can create a folder of that name in /tmp first. tmux refuses to use it, since a server
    that its owner runs there would get the client's rights.
    """
    folder = socket_dir()
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return None if os.access(folder.parent, os.W_OK | os.X_OK) else "cannot be created"
    except OSError as error:
        return f"cannot be accessed ({error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != os.geteuid():
        return belongs(status)
    if not is_private_folder(folder):
        return f"is accessible to other users (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def server_problem() -> str | None:
    """Why the server that already listens there cannot be used, or None.

    A stopped one never answers, and `new-session` has no limit of its own.
    """
    if not (socket_dir() / socket_name()).exists():
        return None
    try:
        programs.run(["tmux", "-L", socket_name(), "list-sessions"], ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return f"the tmux server {socket_name()!r} does not respond"
    return None


def program_problem() -> str | None:
    """Why the program cannot be used; None if it can."""
    if shutil.which("tmux") is None:
        return "tmux is not installed"
    try:
        answer = programs.run(["tmux", "-V"], 5)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"tmux cannot be run ({error})"
    version = parse_version(answer.stdout)
    if version is None:
        output = answer.stdout.strip() or answer.stderr.strip()
        return f"cannot determine the tmux version ({output})"
    if version < (*MINIMUM_VERSION, "a"):
        return f"{answer.stdout.strip()} is too old (3.2a or newer is required)"
    return None


def import_early() -> None:
    """Import `tmux_server` in a thread, while the caller does something else.

    Python waits for the thread: an exit during the import of a C extension may crash.
    """
    name = "ddptop_runner.host.tmux_server"
    threading.Thread(target=importlib.import_module, args=(name,)).start()
