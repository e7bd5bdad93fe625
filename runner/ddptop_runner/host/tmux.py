"""The only module that calls tmux: ddptop's own server with its own configuration.

Sessions of the user's tmux are never touched: the server listens on its own socket
(`-L ddptop`), so it works the same inside tmux, byobu or GNU screen.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.files import belongs, is_private_folder
from ddptop_runner.host.handover import OF_A_RANK

DEFAULT_SOCKET = "ddptop"
MINIMUM_VERSION = (3, 2)
"""3.2 itself is not enough: 3.2a mended `new-session -e`."""

TRIES = 5
"""A server that somebody kills takes along what it is just asked for: another one is started."""
TRY_AGAIN_S = 0.2
ANSWER_S = 5.0
_SERVER_GONE = re.compile(r"server exited|lost server|no server running|error connecting to")

CONFIG = Path(__file__).with_name("tmux.conf")
"""Of the installed package: who can change it can change the program as well."""


def socket_name() -> str:
    """The name of the server's socket: `$DDPTOP_TMUX_SOCKET`, else "ddptop"."""
    return os.environ.get("DDPTOP_TMUX_SOCKET") or DEFAULT_SOCKET


def parse_version(text: str) -> tuple[int, int, str] | None:
    """(3, 2, "a") of "tmux 3.2a"; None for what is not a version. "next-3.4" counts as 3.4."""
    found = re.search(r"(\d+)\.(\d+)([a-z]?)", text)
    return (int(found[1]), int(found[2]), found[3]) if found else None


def why_unusable() -> str | None:
    """Why tmux cannot hold a job here, or None when it can."""
    if (why := program_problem()) is not None:
        return why
    problem = folder_problem()
    return None if problem is None else f"tmux cannot be used: {socket_dir()} {problem}"


def socket_dir() -> Path:
    """The folder of this user's tmux sockets, as tmux itself chooses it."""
    base = os.environ.get("TMUX_TMPDIR")
    return Path(base if base and Path(base).is_dir() else "/tmp") / f"tmux-{os.geteuid()}"


def folder_problem() -> str | None:
    """Why no socket can be had there, or None.

    Anybody can make a folder of that name in /tmp first. tmux refuses it, and who puts a server of
    their own into it has the client's rights.
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


def program_problem() -> str | None:
    """Why the program itself is of no use, or None."""
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


def start_session(
    job: str,
    argv: Sequence[str],
    cwd: Path,
    job_id_file: Path,
) -> None:
    """Start a detached session whose only pane runs `argv`.

    Args:
        job: the session's name.
        argv: run without a shell; the session ends with it.
        cwd: its working folder.
        job_id_file: its first line becomes DDPTOP_JOB_ID, which everybody could read in the
            command line of tmux, which remains for as long as its server runs.

    Raises:
        UsageError: when a session of that name exists.
        DdptopError: when tmux refuses.
    """
    words = shell_words(argv, job_id_file)
    # what it prints is asked for: it also exits with 0 when its server ends meanwhile
    shown = ("-P", "-F", "#{session_name}")
    place = ("-s", job, "-n", job, "-c", os.fspath(cwd), "-x", "120", "-y", "40")
    # a server keeps the variables it was started with, and hands them to every later session
    env = {name: value for name, value in os.environ.items() if name not in OF_A_RANK}
    for left in reversed(range(TRIES)):
        try:
            answer = _tmux("-f", str(CONFIG), "new-session", "-d", *shown, *place, words, env=env)
        except OSError as error:
            raise DdptopError(f"tmux cannot start session {job!r}: {error}") from error
        if answer.stdout.strip():
            return
        error_text = answer.stderr.strip()
        if error_text.startswith("duplicate session"):
            if not left and holds(job):  # and it is not just ending with its program
                raise UsageError(
                    f"tmux session {job!r} already exists on socket {socket_name()!r}",
                    "choose another --name",
                )
        elif error_text and (not left or not _SERVER_GONE.search(error_text)):
            raise DdptopError(f"tmux cannot start session {job!r}: {error_text}")
        time.sleep(TRY_AGAIN_S)
    raise DdptopError(
        f"tmux cannot start session {job!r}: its server keeps exiting",
        "find out what is killing it, or try again",
    )


def holds(job: str) -> bool:
    """Whether the server has a session of that exact name.

    What it lists is asked for: `has-session` also exits with 0 when its server ends meanwhile.
    """
    try:
        answer = _tmux("list-sessions", "-F", "#{session_name}", timeout_s=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DdptopError(f"tmux is not responding ({error})", "run `ddptop doctor`") from error
    return job in answer.stdout.splitlines()


def end_session(job: str) -> None:
    """Hang up the session of that exact name, if there is one and tmux answers."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        _tmux("kill-session", "-t", f"={job}", timeout_s=ANSWER_S)


def _tmux(
    *command: str, env: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    return programs.run(["tmux", "-L", socket_name(), *command], timeout_s, env=env)


def shell_words(argv: Sequence[str], job_id_file: Path) -> str:
    """One command line that tmux's `sh -c` execs word by word, with the job's id."""
    read = f"IFS= read -r DDPTOP_JOB_ID <{shlex.quote(os.fspath(job_id_file))}"
    return f"{read}; export DDPTOP_JOB_ID; exec {shlex.join(argv)}"
