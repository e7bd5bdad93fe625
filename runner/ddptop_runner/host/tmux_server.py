"""Sessions of ddptop's own tmux server, and a bounded connection to any server, through libtmux.

libtmux alone waits for a server without limit, reads whatever it prints, and hands it this
process's variables. `Server.cmd`, through which libtmux sends its commands, therefore runs tmux
with `programs.run`. Not used is what libtmux does past `cmd`: `Server.sessions`, `Server.panes`,
and `Server.new_session`, which looks for the new session again and fails if it has ended since.

Importing libtmux takes as long as a whole `ddptop ls`, so this module is imported in a thread while
a command is checked (`tmux.import_early`), and never by a command that only reads jobs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libtmux
from libtmux.common import tmux_cmd
from libtmux.exc import LibTmuxException

from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.host.handover import OF_A_RANK
from ddptop_runner.host.tmux import ANSWER_S, socket_name

TRIES = 5
"""A killed server takes the session along that it is creating; another server is started."""
TRY_AGAIN_S = 0.2
_SERVER_GONE = re.compile(r"server exited|lost server|no server running|error connecting to")
_NOT_FOR_A_SERVER = {*OF_A_RANK, "TMUX"}
"""A server keeps the variables it was started with, and hands them to every later session."""

CONFIG = Path(__file__).with_name("tmux.conf")
"""Of the installed package: who can change it can change the program as well."""


class Server(libtmux.Server):
    """A server whose answers are limited in time and size.

    Args:
        timeout_s: for each command; None: no limit.
        socket_name: as for `libtmux.Server`, like the others.
        socket_path: used if there is no name.
        config_file: read by a server that a command starts.
    """

    def __init__(
        self,
        timeout_s: float | None,
        *,
        socket_name: str | None = None,
        socket_path: str | None = None,
        config_file: str | None = None,
    ) -> None:
        super().__init__(socket_name, socket_path, config_file)
        self.timeout_s = timeout_s

    def cmd(self, cmd: str, *args: Any, target: str | int | None = None) -> tmux_cmd:
        """Run one tmux command.

        Raises:
            OSError: tmux cannot be run, or prints too much.
            subprocess.TimeoutExpired: the server does not answer.
        """
        options = {"-f": self.config_file, "-L": self.socket_name, "-S": self.socket_path}
        words = [f"{option}{value}" for option, value in options.items() if value]
        aim = () if target is None else ("-t", target)
        argv = list(map(str, ["tmux", "-u", *words, cmd, *aim, *args]))
        env = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_A_SERVER}
        return _Answer(programs.run(argv, self.timeout_s, env=env))


class _Answer(tmux_cmd):
    """What libtmux expects of a command that was run."""

    def __init__(self, ran: subprocess.CompletedProcess[str]) -> None:
        self.cmd = list(ran.args)
        self.returncode = ran.returncode
        self.stdout = ran.stdout.rstrip("\n").split("\n") if ran.stdout.strip("\n") else []
        self.stderr = list(filter(None, ran.stderr.split("\n")))


def _own(timeout_s: float | None) -> Server:
    return Server(timeout_s, socket_name=socket_name(), config_file=os.fspath(CONFIG))


def start_session(job: str, argv: Sequence[str], cwd: Path, job_id_file: Path) -> None:
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
    # what it prints is asked for: it also exits with 0 when its server ends meanwhile
    shown = ("-P", "-F", "#{session_name}")
    place = ("-s", job, "-n", job, "-c", cwd, "-x", 120, "-y", 40)
    for left in reversed(range(TRIES)):
        try:
            command = shell_words(argv, job_id_file)
            answer = _own(None).cmd("new-session", "-d", *shown, *place, command)
        except OSError as error:
            raise DdptopError(f"tmux cannot start session {job!r}: {error}") from error
        if answer.stdout:
            return
        error_text = " ".join(answer.stderr)
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
        answer = _own(ANSWER_S).cmd("list-sessions", "-F", "#{session_name}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DdptopError(f"tmux is not responding ({error})", "run `ddptop doctor`") from error
    return job in answer.stdout


def end_session(job: str) -> None:
    """Hang up the session of that exact name, if there is one and tmux answers."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, LibTmuxException):
        _own(ANSWER_S).kill_session(f"={job}")


def shell_words(argv: Sequence[str], job_id_file: Path) -> str:
    """One command line that tmux's `sh -c` execs word by word, with the job's id."""
    read = f"IFS= read -r DDPTOP_JOB_ID <{shlex.quote(os.fspath(job_id_file))}"
    return f"{read}; export DDPTOP_JOB_ID; exec {shlex.join(argv)}"
