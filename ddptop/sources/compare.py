"""Several jobs on one axis: what their screen asks and gets, and how a job is read for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from ddptop.job.compare import Comparison, LossCurve, Run, compare
from ddptop.job.groups import labels
from ddptop.job.record import Job
from ddptop.job.series import Points
from ddptop.sources.history import Histories, JobHistory, history_stamps
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError

MOST_POINTS = 4000
"""Maximum number of losses read of a run: enough to zoom in."""
LIVE_PAUSE_S = 2.0
"""Interval between reads of a live job's losses."""


class CompareQuery(Query, frozen=True, kw_only=True):
    """The losses of jobs on one axis."""

    jobs: tuple[str, ...]

    def answer(self, look: Look, sources: Sources) -> CompareAnswer:
        """Compare the jobs that still exist."""
        by_name = {view.name: view for view in look.own}
        chosen = [by_name[name] for name in self.jobs if name in by_name]
        if not chosen:
            return CompareAnswer(query=self, look=look, asked=self.jobs)
        histories = sources[Histories]
        runs = [
            replace(_cached_run(view, histories.of(view), look.now_s), label=label)
            for view, label in zip(chosen, labels(chosen), strict=True)
        ]
        return CompareAnswer(query=self, look=look, asked=self.jobs, comparison=compare(runs))


class CompareAnswer(Answer, frozen=True, kw_only=True):
    """What the comparison shows."""

    asked: tuple[str, ...]
    """The requested jobs."""
    comparison: Comparison | None = None
    """None if none of them exists."""


def _cached_run(view: Job, history: JobHistory, now_s: float) -> Run:
    """The job with the losses of its whole run; the same curve while nothing changes."""

    def read() -> tuple[Run, float]:
        try:
            run = read_run(view, history)
        except DdptopError as error:
            run = Run(view, trouble=str(error))
        return run, LIVE_PAUSE_S if view.is_live else math.inf

    stamps = None if view.is_live else history_stamps(view.folder.history_db)
    return replace(history.cached("run", (view.state, stamps), now_s, read), view=view)


def read_run(view: Job, history: JobHistory) -> Run:
    """One job with the losses of its whole run.

    Raises:
        DdptopError: its history cannot be read.
    """
    start = view.snapshot.started_at
    run = Run(
        view,
        attempts=tuple(
            (one.attempt, one.started - start.timestamp()) for one in history.attempts()
        ),
        start_s=start.timestamp(),
    )
    span = history.reader.span()
    if span is None:
        return run
    scalars = history.scalars(view, *span, MOST_POINTS)
    return replace(
        run,
        curve=_curve(history.losses(view, *span, MOST_POINTS), run.start_s),
        scalars={name: _curve(points, run.start_s) for name, points in scalars.items()},
    )


def _curve(points: Points, start_s: float) -> LossCurve:
    def since_start(times: Sequence[float]) -> list[float]:
        return [max(0.0, t - start_s) for t in times]

    return LossCurve(
        replace(points, t=since_start(points.t), not_finite=since_start(points.not_finite))
    )
