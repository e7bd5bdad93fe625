"""The console entry point: every error a person can meet ends as one line and an exit status."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line; the process's exit status."""
    import click

    from ddptop.cli import cli
    from ddptop_runner.errors import DdptopError

    try:
        status = cli.main(standalone_mode=False)
    except DdptopError as error:
        sys.stderr.write(f"ddptop: {error}\n")
        return error.exit_code
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        sys.stderr.write(f"ddptop: {error.format_message().rstrip('.')}")
        sys.stderr.write("; see ddptop --help\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # what reads stdout is gone; nothing more can be said, also not by Python's own last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
