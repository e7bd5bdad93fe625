"""The console entry point: every error a person can meet ends as one line and an exit status."""

from __future__ import annotations

import io
import os
import sys

from ddptop_runner.base import start

INTERRUPTED = 130


def main() -> int:
    """Run the command line; the process's exit status."""
    start.search_safely()
    try:
        _open_standard_streams()
        start.keep_files_private()
        status = _run()
        sys.stdout.flush()
    except KeyboardInterrupt:  # it was still being loaded
        status = INTERRUPTED
    except BrokenPipeError:  # what reads stdout is gone: there is nobody to say more to
        status = 1
        _drop_stdout()
    except OSError as error:
        status = 1
        _drop_stdout()
        sys.stderr.write(f"ddptop: {error}\n")
    return status


def _run() -> int:
    if sys.argv[1:2] == ["gpus"]:
        from ddptop.commands.gpus import FLAGS

        if all(argument in FLAGS for argument in sys.argv[2:]):
            return _run_gpus(set(sys.argv[2:]))
    import click

    from ddptop.cli import cli
    from ddptop.plain.output import say
    from ddptop_runner.base.errors import DdptopError

    try:
        status = cli.main(prog_name="ddptop", standalone_mode=False)
    except DdptopError as error:
        say(f"ddptop: {error}")
        return error.exit_code
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        verb = f" {context.info_name}" if context is not None and context.parent else ""
        message = " ".join(error.format_message().split()).rstrip(".")
        say(f"ddptop: {message}; see ddptop{verb} --help")
        return 2
    return status if isinstance(status, int) else 0


def _run_gpus(flags: set[str]) -> int:
    """What people put into `watch` starts without click, which takes as long as the driver."""
    from ddptop.commands.gpus import run
    from ddptop_runner.base.errors import DdptopError

    try:
        return run("--json" in flags, links="--links" in flags)
    except DdptopError as error:
        sys.stderr.write(f"ddptop: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_standard_streams() -> None:
    """Where a caller closed one of them, the next file opened would be written into instead."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is fd
            os.set_inheritable(opened, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for the process's life
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale may lack a letter of a script's name
        sys.stdout.reconfigure(errors="replace")


def _drop_stdout() -> None:
    """Let Python's own last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_current_folder() -> None:
    """Let `python -m ddptop` import nothing from the folder that it is typed in."""
    try:
        if sys.path[0] == os.getcwd():  # noqa: PTH109
            del sys.path[0]
    except FileNotFoundError:
        pass  # it was deleted, and holds nothing


if __name__ == "__main__":
    _leave_current_folder()
    sys.exit(main())
