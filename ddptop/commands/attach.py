"""`ddptop attach`, `ddptop watch` and `ddptop`: the terminal interface."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from ddptop import terminal
from ddptop.commands.unguarded import adopt_if_unguarded, guard
from ddptop.output import info, is_terminal
from ddptop_runner.base.errors import UsageError
from ddptop_runner.job.registry import all_jobs

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
        job: one of ddptop's own jobs; None for all jobs.
        watched: a foreign job to show instead.
        readonly: refuse all actions that change a job.
        opening: a message that opens another screen first, such as a comparison.
        ascii_only: draw with ASCII only; None depends on the settings, else on the terminal.

    Raises:
        UsageError: stderr, on which the screen is drawn, is not a suitable terminal.
    """
    terminal.check()
    gc.disable()  # until the first frame: it would take a tenth of that time in vain
    from ddptop.tui.app import DdptopApp
    from ddptop.tui.settings import read_settings, recall, remember
    from ddptop.tui.textual_gaps import TerminalDriver

    settings = read_settings()
    asked = settings.interface.ascii if ascii_only is None else ascii_only
    poor = terminal.wants_ascii(os.environ) if asked == "auto" else asked
    written = sys.__stderr__.encoding if sys.__stderr__ else None
    app = DdptopApp(
        job,
        tick_s=settings.interface.refresh_s,
        watched=watched,
        readonly=readonly,
        opening=opening,
        settings=settings,
        memory=recall(),
        remember=remember,
        letters=terminal.letters(os.environ, written) if poor else None,
    )
    app.driver_class = TerminalDriver
    app.run(mouse=settings.interface.mouse)
    _print_reattach_hint(app.latest)
    return app.return_code or 0


def _print_reattach_hint(latest: Answer | None) -> None:
    """If the last screen showed one of ddptop's own live jobs, print how to reattach."""
    view = None if latest is None else latest.view
    if view is not None and view.can_restart and view.is_live:
        from ddptop.commands.attach_host import HOST

        host = os.environ.get(HOST)
        job = f"{host}:{view.name}" if host else view.name
        info(f"{job} keeps running; reattach with `ddptop attach {job}`")


def run_job(job: str | None, *, readonly: bool = False, ascii_only: bool | None = None) -> int:
    """Show a job of this machine, or HOST:JOB, until the user quits; return the exit status."""
    if job is not None and ":" in job:
        from ddptop.commands.attach_host import run_there

        return run_there(job, readonly=readonly, ascii_only=ascii_only, terminal=is_terminal())
    from ddptop_runner.jobs.slurm_queue import find

    view = find(job)
    if not is_terminal():
        raise UsageError("attach needs a terminal", f"use ddptop status {view.job} in scripts")
    if not readonly:
        adopt_if_unguarded(view)
    return run(view.job, readonly=readonly, ascii_only=ascii_only)


def run_overview(*, readonly: bool = False, ascii_only: bool | None = None) -> int:
    """Show all jobs until the user quits; return the exit status."""
    if not is_terminal():
        raise UsageError("the overview needs a terminal", "use ddptop ls or ddptop gpus in scripts")
    if not readonly:
        guard(all_jobs())
    return run(None, readonly=readonly, ascii_only=ascii_only)
