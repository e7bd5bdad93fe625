"""`ddptop attach`, `ddptop watch` and `ddptop`: the terminal interface."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ddptop_runner.errors import UsageError
from ddptop_runner.foreign.types import ForeignJob

if TYPE_CHECKING:
    from textual.message import Message


def run(
    job: str | None,
    *,
    watched: ForeignJob | None = None,
    readonly: bool = False,
    opening: Message | None = None,
) -> int:
    """Show one job until the person leaves; the process's exit status.

    Args:
        job: one of ddptop's own; None for all jobs.
        watched: a job that ddptop did not start, instead.
        readonly: refuse everything that does something to a job.
        opening: the message that opens another screen first, such as CompareWanted.

    Raises:
        UsageError: when stderr, on which the screen is drawn, is not a terminal.
    """
    if not sys.__stderr__ or not sys.__stderr__.isatty():
        raise UsageError(
            "the screen is drawn on stderr, which is not a terminal", "do not redirect stderr"
        )
    from ddptop.tui.app import DdptopApp

    app = DdptopApp(job, watched=watched, readonly=readonly, opening=opening)
    app.run()
    return app.return_code or 0


def run_overview(*, readonly: bool = False) -> int:
    """Show all jobs until the person leaves; the process's exit status."""
    return run(None, readonly=readonly)
