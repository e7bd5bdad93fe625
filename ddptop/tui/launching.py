"""Launches a job from the form with the command line that a user would type."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddptop_runner.base import units
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.start import own_command
from ddptop_runner.foreign.arguments import launcher_of, python_target
from ddptop_runner.launch.launchers import inner

TIMEOUT_S = 120.0
"""Launching takes a second or two; a home on a slow network file system may take longer."""

DEFAULT_MAX_RESTARTS = "3"


@dataclass(frozen=True)
class LaunchForm:
    """What was filled in, as typed."""

    script: str = ""
    """A script's path, or a command: `-- ./run.sh`, or one that names a launcher or a Python."""
    arguments: str = ""
    gpus: tuple[int, ...] | None = None
    """Machine indices; () is none of them, None where there is no device to choose."""
    nproc: str = ""
    name: str = ""
    max_restarts: str = DEFAULT_MAX_RESTARTS
    force: bool = False
    """Use GPUs that are busy."""
    wait: bool = False
    """Queue the job until its GPUs are free."""


def is_busy_refusal(line: str) -> bool:
    """Whether a launch was refused only because GPUs are busy."""
    return "--force" in line and "--wait-gpus" in line


def command_words(script: str) -> list[str] | None:
    """The words of a command in place of a script; None for a script.

    Raises:
        ValueError: when a quote in a command is not closed.
    """
    text = script.strip()
    if text == "--" or text.startswith("-- "):
        return shlex.split(text[2:])
    try:
        words = shlex.split(text)
    except ValueError:
        return None  # a file may have such a name
    within = inner(words)
    return words if launcher_of(within) or python_target(within) else None


def problem(form: LaunchForm) -> str | None:
    """What is missing or cannot be meant, in one line; None when it can be tried."""
    if form.script.strip() in ("", "--"):
        return "script is required"
    try:
        is_command = command_words(form.script) is not None
    except ValueError:
        return "script: unclosed quote"
    try:
        shlex.split(form.arguments)
    except ValueError:
        return "arguments: unclosed quote"
    if is_command and form.nproc.strip():
        return "ranks: a command starts its own ranks; set the number in its arguments"
    if not is_command and not form.gpus and not form.nproc.strip():
        return "number of ranks is required when no GPUs are selected"
    for label, text in (("ranks", form.nproc), ("max restarts", form.max_restarts)):
        if text.strip() and not text.strip().isdecimal():
            return f"{label}: {text.strip()} is not a number"
    return None


def launch_argv(form: LaunchForm) -> list[str]:
    """The arguments to `ddptop` that launch the form's job.

    Raises:
        ValueError: when a quote in the arguments or a command is not closed.
    """
    argv = ["launch"]
    if form.gpus is not None:
        argv += ["--gpus", units.ranks(list(form.gpus)) or "none"]
    if form.force or form.wait:
        argv.append("--force" if form.force else "--wait-gpus")
    if form.nproc.strip():
        argv += ["--nproc", form.nproc.strip()]
    if form.name.strip():
        argv += ["--name", form.name.strip()]
    if form.max_restarts.strip() not in ("", DEFAULT_MAX_RESTARTS):
        argv += ["--max-restarts", form.max_restarts.strip()]
    command = command_words(form.script)
    if command is not None:
        return [*argv, "--", *command, *shlex.split(form.arguments)]
    script = form.script.strip()
    if script.startswith("~"):
        script = os.path.expanduser(script)  # noqa: PTH111 - "~x" of no user stays as it is
    if script.startswith("-"):
        script = f"./{script}"
    return [*argv, script, *shlex.split(form.arguments)]


def command_line(form: LaunchForm) -> str:
    """The same as one line for a shell, with what is missing named in capitals."""
    try:
        argv = launch_argv(form)
    except ValueError:
        return "ddptop launch ..."
    words = [word for word in argv if word]
    line = shlex.join(["ddptop", *words])
    return line if form.script.strip() else f"{line} SCRIPT"


def run_cli(arguments: Sequence[str]) -> str:
    """Run ddptop's own command line without a terminal; what it printed on stdout.

    Raises:
        DdptopError: with the command's own line when it fails.
    """
    try:
        ended = subprocess.run(
            own_command("ddptop", *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DdptopError(
            f"ddptop {arguments[0]} did not respond within {TIMEOUT_S:.0f} s",
            "run ddptop ls to see whether the job started",
        ) from error
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines()
        text = lines[-1].removeprefix("ddptop: ") if lines else "no error message"
        raise DdptopError(text)
    return ended.stdout


def launch(form: LaunchForm) -> str:
    """Launch; the new job's name.

    Raises:
        DdptopError: with the command's own line when it was refused.
    """
    argv = launch_argv(form)
    return run_cli([argv[0], "-d", *argv[1:]]).strip().splitlines()[-1]


def restart_ended(job: str) -> None:
    """Start an ended job again.

    Raises:
        DdptopError: with the command's own line when it was refused.
    """
    run_cli(["restart", job])


def complete_path(text: str) -> str | None:
    """The first folder or Python file that begins with `text`, completed as far as it is one.

    Asks the file system: not to be called where a widget waits.
    """
    if not text:
        return None
    expanded = os.path.expanduser(text)  # noqa: PTH111 - keeps a trailing slash
    folder, start = os.path.split(expanded)
    try:
        with os.scandir(folder or ".") as entries:
            names = sorted(
                entry.name + "/" if entry.is_dir() else entry.name
                for entry in entries
                if entry.name.startswith(start)
                and (start.startswith(".") or not entry.name.startswith("."))
                and (entry.is_dir() or entry.name.endswith(".py"))
            )
    except OSError:
        return None
    # a script is meant more often than a folder
    names.sort(key=lambda name: name.endswith("/"))
    if not names or names[0] == start:
        return None
    return text[: len(text) - len(start)] + names[0]


def exists(script: str) -> bool:
    """Whether there is such a file here."""
    return Path(script).expanduser().is_file()
