"""`ddptop attach` and `ddptop`: the terminal interface."""

from __future__ import annotations

import sys

from ddptop_runner.errors import UsageError


def run(job: str | None) -> int:
    """Show one job until the person leaves; the process's exit status.

    Raises:
        UsageError: when stderr, on which the screen is drawn, is not a terminal.
    """
    if not sys.__stderr__ or not sys.__stderr__.isatty():
        raise UsageError(
            "the screen is drawn on stderr, which is not a terminal", "do not redirect stderr"
        )
    from ddptop.tui.app import DdptopApp

    app = DdptopApp(job)
    app.run()
    return app.return_code or 0


def run_overview() -> int:
    """Show all jobs until the person leaves; the process's exit status."""
    return run(None)
