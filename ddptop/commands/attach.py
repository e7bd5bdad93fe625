"""`ddptop attach`, `ddptop watch` and `ddptop`: the terminal interface."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ddptop.plain.output import say
from ddptop.view import terminal
from ddptop_runner.job.registry import JobView

if TYPE_CHECKING:
    from ddptop.sources.query import Answer
    from ddptop.tui.messages import ScreenWanted
    from ddptop_runner.foreign.types import ForeignJob


def run(
    job: str | None,
    *,
    watched: ForeignJob | None = None,
    readonly: bool = False,
    opening: ScreenWanted | None = None,
    ascii_only: bool | None = None,
) -> int:
    """Show one job until the user quits; return the exit status.

    Args:
        job: one of ddptop's own; None for all jobs.
        watched: a job that ddptop did not start, instead.
        readonly: refuse everything that does something to a job.
        opening: the message that opens another screen first, such as CompareWanted.
        ascii_only: draw with ASCII only; None: as the settings say, else as the terminal needs.

    Raises:
        UsageError: when stderr, on which the screen is drawn, is no terminal that can show it.
    """
    terminal.check()
    from ddptop.tui.process import wait_with_garbage

    wait_with_garbage()
    from ddptop.tui.app import app_with
    from ddptop.tui.prefs.settings import read_settings
    from ddptop.tui.textual_gaps import TerminalDriver

    settings = read_settings()
    asked = settings.interface.ascii if ascii_only is None else ascii_only
    poor = terminal.wants_ascii(os.environ) if asked is None else asked
    written = sys.__stderr__.encoding if sys.__stderr__ else None
    app = app_with(
        settings,
        job,
        watched=watched,
        readonly=readonly,
        opening=opening,
        letters=terminal.letters(os.environ, written) if poor else None,
    )
    app.driver_class = TerminalDriver
    app.run(mouse=settings.interface.mouse)
    _say_what_runs_on(app.latest)
    return app.return_code or 0


def _say_what_runs_on(latest: Answer | None) -> None:
    """Where the last screen was of a live job of ddptop's own: how to come back to it."""
    view = None if latest is None else latest.view
    if isinstance(view, JobView) and view.is_live:
        from ddptop.commands import attach_host

        host = os.environ.get(attach_host.HOST)
        job = f"{host}:{view.job}" if host else view.job
        say(f"{job} keeps running; reattach with `ddptop attach {job}`")


def run_overview(*, readonly: bool = False, ascii_only: bool | None = None) -> int:
    """Show all jobs until the user quits; return the exit status."""
    return run(None, readonly=readonly, ascii_only=ascii_only)
