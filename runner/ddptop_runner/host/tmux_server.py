"""Manages sessions of ddptop's own tmux server, and limits what any server can do, with libtmux.

libtmux waits for a server without limit, reads all of its output, and passes this process's
variables to it. `Server.cmd`, which libtmux uses for its commands, therefore runs tmux with
`programs.run`. ddptop does not use what bypasses `cmd` (`Server.sessions`, `Server.panes`), nor
`Server.new_session`, which fails if the new session has already ended.

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
"""A server that is killed while it creates a session loses it; tmux then starts another."""
TRY_AGAIN_S = 0.2
_SERVER_GONE = re.compile(r"server exited|lost server|no server running|error connecting to")
_NOT_FOR_A_SERVER = {*OF_A_RANK, "TMUX"}
"""A server passes the variables that it was started with to all later sessions."""

CONFIG = Path(__file__).with_name("tmux.conf")
"""In the installed package: anyone who can change it can change the program, too."""


class Server(libtmux.Server):
    """A server whose answers are limited in time and size.

    Args:
        timeout_s: limit for each command; None for no limit.
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
        job_id_file: its first line becomes DDPTOP_JOB_ID. As an argument, any user could read it
            for as long as the server runs.

    Raises:
        UsageError: a session of that name exists.
        DdptopError: tmux refuses.
    """
    # tmux also exits with 0 if its server ends meanwhile, so only its output proves success
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
            if not left and holds(job):  # a session that is about to end is gone by now
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

    `has-session` also exits with 0 if its server ends meanwhile, so this lists the sessions.
    """
    try:
        answer = _own(ANSWER_S).cmd("list-sessions", "-F", "#{session_name}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DdptopError(f"tmux is not responding ({error})", "run `ddptop doctor`") from error
    return job in answer.stdout


def end_session(job: str) -> None:
    """End the session of that exact name, if there is one and tmux responds."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, LibTmuxException):
        _own(ANSWER_S).kill_session(f"={job}")


def shell_words(argv: Sequence[str], job_id_file: Path) -> str:
    """The command line that makes tmux's `sh -c` exec these words, with the job's ID."""
    read = f"IFS= read -r DDPTOP_JOB_ID <{shlex.quote(os.fspath(job_id_file))}"
    return f"{read}; export DDPTOP_JOB_ID; exec {shlex.join(argv)}"
