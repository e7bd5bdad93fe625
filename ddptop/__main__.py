"""The console entry point, which turns every user error into one line and an exit status."""

from __future__ import annotations

import gc
import io
import os
import sys

from ddptop_runner.base import start

INTERRUPTED = 130


def main() -> int:
    """Run the command line; returns the exit status."""
    gc.disable()  # until _run_click: short-lived commands exit before a collection pays off
    try:
        start.search_safely()
        _open_standard_streams()
        start.keep_files_private()
        status = _run()
        sys.stdout.flush()
    except KeyboardInterrupt:  # during imports
        status = INTERRUPTED
    except BrokenPipeError:  # the reader of stdout is gone
        status = 1
        _drop_stdout()
    except OSError as error:
        status = 1
        _drop_stdout()
        sys.stderr.write(f"ddptop: {error}\n")
    gc.freeze()  # at exit, Python would search all modules for cycles, which takes 4 ms
    return status


def _run() -> int:
    from ddptop_runner.base.errors import DdptopError

    try:
        status = _run_directly(sys.argv[1:])
        return _run_click() if status is None else status
    except DdptopError as error:
        from ddptop.output import info

        info(f"ddptop: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _run_directly(arguments: list[str]) -> int | None:
    """Run what opens a screen, or is often used with `watch`, without click: it is slow to load.

    Returns:
        The exit status; None for all other arguments.
    """
    verb, flags = arguments[:1], set(arguments[1:])
    if verb == ["gpus"] and flags <= {"--json"}:
        from ddptop.commands.gpus import run as run_gpus

        return run_gpus("--json" in flags)
    from ddptop_runner.base.paths import require_readable

    if verb == ["ls"] and flags <= {"--all", "--json"}:
        require_readable()
        from ddptop.commands.ls import run as run_ls

        return run_ls("--all" in flags, "--json" in flags, None)
    jobs = [argument for argument in arguments[1:] if argument != "--json"]
    at_most_one = len(jobs) < 2 and not any(job.startswith("-") for job in jobs)
    job = jobs[0] if jobs else None
    if verb == ["status"] and at_most_one:
        require_readable()
        from ddptop.commands.status import run as run_status

        return run_status(job, "--json" in flags)
    if verb == ["attach"] and at_most_one and "--json" not in flags:
        require_readable()
        from ddptop.commands.attach import run_job

        return run_job(job)
    from ddptop.output import COMPLETE_VARIABLE

    if not arguments and COMPLETE_VARIABLE not in os.environ:
        require_readable()
        from ddptop.commands.attach import run_overview

        return run_overview()
    return None


def _run_click() -> int:
    import click

    from ddptop.cli import cli
    from ddptop.output import info

    gc.enable()
    try:
        status = cli.main(prog_name="ddptop", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        verb = f" {context.info_name}" if context is not None and context.parent else ""
        message = " ".join(error.format_message().split()).rstrip(".")
        info(f"ddptop: {message}; see ddptop{verb} --help")
        return 2
    return status if isinstance(status, int) else 0


def _open_standard_streams() -> None:
    """Open closed standard streams, so that no other file gets their file descriptors."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is fd
            os.set_inheritable(opened, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for the process's life
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # the locale may lack a letter of a script's name
        sys.stdout.reconfigure(errors="replace")


def _drop_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python's final flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_current_folder() -> None:
    """Keep `python -m ddptop` from importing modules from the current folder."""
    try:
        if sys.path[0] == os.getcwd():  # noqa: PTH109
            del sys.path[0]
    except FileNotFoundError:
        pass  # the folder was deleted, so it has no modules


if __name__ == "__main__":
    _leave_current_folder()
    sys.exit(main())
