"""Several jobs on one axis: what their screen asks and gets, and how a job is read for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ddptop.charts.axis import Axis
from ddptop.job.compare import Comparison, LossCurve, Run, compare
from ddptop.job.record import Job
from ddptop.job.series import Points
from ddptop.sources.history import (
    MOST_POINTS,
    Histories,
    JobHistory,
    Paced,
    history_stamps,
    times_of,
)
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError

Part = tuple[Axis, float, float]
"""The axis, and the start and end of the zoomed part."""

LIVE_PAUSE_S = 2.0
"""Interval between reads of a live job's losses."""


class CompareQuery(Query, frozen=True, kw_only=True):
    """The losses of jobs on one axis."""

    jobs: tuple[str, ...]
    part: Part | None = None
    """The zoomed part of the axis; None: all of it."""

    def answer(self, look: Look, sources: Sources) -> CompareAnswer:
        """Compare the jobs that still exist."""
        by_name = {view.name: view for view in look.own}
        chosen = [by_name[name] for name in self.jobs if name in by_name]
        if not chosen:
            return CompareAnswer(query=self, look=look, asked=self.jobs)
        source, histories = sources[CompareSource], sources[Histories]
        runs = [source.read(view, histories.of(view), look.now_s) for view in chosen]
        drawn = runs
        if self.part is not None:
            drawn = [closer(run, histories.of(run.view), self.part) for run in runs]
        return CompareAnswer(
            query=self, look=look, asked=self.jobs, comparison=compare(runs), drawn=tuple(drawn)
        )


class CompareAnswer(Answer, frozen=True, kw_only=True):
    """What the comparison shows."""

    asked: tuple[str, ...]
    """The requested jobs."""
    comparison: Comparison | None = None
    """None if none of them exists."""
    drawn: tuple[Run, ...] = ()
    """The same jobs, with finer losses in the zoomed part."""


class CompareSource:
    """Reads and caches jobs for comparison. Used only by the collector's thread."""

    def __init__(self) -> None:
        self._known: dict[str, Paced[Run]] = {}

    def read(self, view: Job, history: JobHistory, now_s: float) -> Run:
        """The job with the losses of its whole run; the same curve while nothing changes."""

        def read() -> tuple[Run, float]:
            try:
                run = read_run(view, history)
            except DdptopError as error:
                run = Run(view, trouble=str(error))
            return run, LIVE_PAUSE_S if view.is_live else math.inf

        stamps = None if view.is_live else history_stamps(view.folder.history_db)
        known = self._known.setdefault(view.spec.job_id, Paced())
        return replace(known.get((view.state, stamps), now_s, read), view=view)


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
        msgspec.structs.replace(
            points, t=since_start(points.t), not_finite=since_start(points.not_finite)
        )
    )


def closer(run: Run, history: JobHistory, part: Part) -> Run:
    """A run with finer losses in the zoomed part, if it has any of it."""
    axis, since, until = part
    found = (since, until) if axis == "time" else times_of(run.curve.points, since, until)
    if found is None:
        return run
    try:
        since, until = (run.start_s + at for at in found)
        fine = _curve(history.losses(run.view, since, until, MOST_POINTS), run.start_s).points
    except DdptopError:
        return run
    if len(fine.t) < 2:
        return run
    return replace(run, curve=LossCurve(_replaced(run.curve.points, fine)))


def _replaced(points: Points, fine: Points) -> Points:
    """The points, with finer ones in their part."""
    before = sum(t < fine.t[0] for t in points.t)
    after = sum(t <= fine.t[-1] for t in points.t)
    columns = ("t", "low", "mean", "high", "step", "attempt")
    joined = {
        name: [
            *getattr(points, name)[:before],
            *getattr(fine, name),
            *getattr(points, name)[after:],
        ]
        for name in columns
    }
    return msgspec.structs.replace(
        points, **joined, not_finite=sorted({*points.not_finite, *fine.not_finite})
    )
