"""Jobs whose guardian was killed, as a command meets them: they are taken up again, and it says so.

Nothing is imported where every job is guarded, which is the usual case.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from ddptop.plain.output import say
from ddptop_runner.job.registry import JobView, read_job

TRY_AGAIN_S = 30.0
"""How long to wait before trying to adopt a job again."""


def guard(views: Iterable[JobView]) -> None:
    """Adopt those that need it."""
    for view in views:
        if view.needs_guardian:
            taken_up(view)


def taken_up(view: JobView) -> JobView:
    """The job's current view, after adopting it if it has no guardian; a line reports why not."""
    if not view.needs_guardian:
        return view
    from ddptop_runner.base.errors import DdptopError
    from ddptop_runner.node import adoption

    try:
        done = adoption.adopt(view, os.environ)
    except (DdptopError, OSError) as error:
        say(f"ddptop: {view.job} is unguarded and cannot be adopted: {error}")
        return view
    if done is None:
        return read_job(view.folder)
    say(f"ddptop: adopted {view.job}, which had lost its guardian")
    if done.missing:
        say(f"ddptop: could not recover these environment variables: {', '.join(done.missing)}")
    return done.view


class KeptGuarded:
    """Takes a job up again whenever it needs it, for who looks at it again and again."""

    def __init__(self) -> None:
        self._tried_s: float | None = None

    def __call__(self, view: JobView) -> None:
        """Look at it as it is now."""
        if not view.needs_guardian:
            return
        now_s = time.monotonic()
        if self._tried_s is None or now_s - self._tried_s >= TRY_AGAIN_S:
            self._tried_s = now_s
            taken_up(view)
