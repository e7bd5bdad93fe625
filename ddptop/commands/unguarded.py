"""Adopts jobs whose guardian was killed, and reports it.

If every job is guarded, which is the usual case, nothing more is imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from ddptop.output import info
from ddptop_runner.job.registry import JobView, read_job

TRY_AGAIN_S = 30.0
"""How long to wait before trying to adopt a job again."""


def guard(views: Iterable[JobView]) -> None:
    """Adopt the jobs that need a guardian."""
    for view in views:
        if view.needs_guardian:
            adopt_if_unguarded(view)


def adopt_if_unguarded(view: JobView) -> JobView:
    """The job's current view, after adopting it if it needs a guardian; prints the result."""
    if not view.needs_guardian:
        return view
    from ddptop_runner.base.errors import DdptopError
    from ddptop_runner.node import adoption

    try:
        done = adoption.adopt(view, os.environ)
    except (DdptopError, OSError) as error:
        info(f"ddptop: {view.job} is unguarded and cannot be adopted: {error}")
        return view
    if done is None:
        return read_job(view.folder)
    info(f"ddptop: adopted {view.job}, which had lost its guardian")
    if done.missing and done.view.spec.placement is None:  # else its hosts have them
        info(f"ddptop: could not recover these environment variables: {', '.join(done.missing)}")
    return done.view


class KeptGuarded:
    """Adopts a job whenever it needs a guardian, for commands that poll it."""

    def __init__(self) -> None:
        self._tried_s: float | None = None

    def __call__(self, view: JobView) -> None:
        """Adopt the job if it needs a guardian, unless that was tried recently."""
        if not view.needs_guardian:
            return
        now_s = time.monotonic()
        if self._tried_s is None or now_s - self._tried_s >= TRY_AGAIN_S:
            self._tried_s = now_s
            adopt_if_unguarded(view)
