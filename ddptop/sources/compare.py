"""Several jobs on one axis: what their screen asks and gets, and how a job is read for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from ddptop.charts.compared import by_step_data, by_time_data
from ddptop.charts.figures import FiguresData
from ddptop.job.compare import Comparison, LossCurve, Run, Sample, compare, offsets_of
from ddptop.job.record import Job
from ddptop.sources.chart import history_stamps
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.model.run_step import is_printed
from ddptop_runner.store.history_reader import HistoryReader, Series, attempts_taken

Part: TypeAlias = tuple[str, float, float]
"""An axis, "time" or "step", and the start and end of the zoomed part."""

LEAST_PAUSE_S = 2.0
"""Shortest interval between reads of a live job's losses."""
COST_SHARE = 0.05
"""Maximum share of the time spent reading them."""
REMEMBERED = 8
"""Number of jobs whose losses are cached while the cursor moves through the list."""


MOST_POINTS = 1000
"""Maximum number of points read of a whole run, and again of a zoomed part."""


class CompareQuery(Query, frozen=True, kw_only=True):
    """The losses of jobs on one axis."""

    jobs: tuple[str, ...]
    part: Part | None = None
    """The zoomed part of the axis; None: all of it."""

    def answer(self, look: Look, sources: Sources) -> CompareAnswer:
        """Compare the jobs that still exist."""
        by_name = {view.name: view for view in look.own}
        chosen = [by_name[name] for name in self.jobs if name in by_name]
        compared = sources[CompareSource].read(chosen, self.part)
        return CompareAnswer(query=self, look=look, asked=self.jobs, compared=compared)


class CompareAnswer(Answer, frozen=True, kw_only=True):
    """What the comparison shows."""

    asked: tuple[str, ...]
    """The requested jobs."""
    compared: Compared | None = None
    """None if none of them exists."""


@dataclass(frozen=True)
class Compared:
    """A comparison of several jobs."""

    jobs: tuple[str, ...] = ()
    comparison: Comparison | None = None
    by_time: FiguresData = field(default_factory=FiguresData)
    """Losses by time since each job's start."""
    by_step: FiguresData | None = None
    """Losses by step; None if any job's steps are unknown."""


@dataclass
class _Known:
    """A job's cached losses."""

    reader: RunReader
    run: Run
    stamp: object = None
    at_s: float = 0.0
    took_s: float = 0.0


class CompareSource:
    """Reads and caches jobs for comparison. Used only by the collector's thread."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last: tuple[tuple[object, ...], Compared] | None = None

    def read(self, views: Sequence[Job], part: Part | None = None) -> Compared | None:
        """The jobs' losses, finer in the zoomed part of the axis; None without jobs."""
        if not views:
            self._last = None
            return None
        runs = [self._run(view) for view in views]
        # rebuild the charts only if a curve changed
        key = (part, *(run.curve for run in runs))
        comparison = compare(runs)
        if self._last is not None and _same(self._last[0], key):
            compared = replace(self._last[1], comparison=comparison)
        else:
            drawn = runs if part is None else [self._closer(run, part) for run in runs]
            compared = Compared(
                tuple(run.job for run in runs), comparison, by_time_data(drawn), by_step_data(drawn)
            )
        self._last = (key, compared)
        return compared

    def _run(self, view: Job) -> Run:
        known = self._known.pop(view.spec.job_id, None)
        if known is None:
            known = _Known(RunReader(view.folder.history_db), Run(view))
        self._known[view.spec.job_id] = known
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        stamps, now_s = (view.state, history_stamps(view.folder.history_db)), time.monotonic()
        pause_s = max(LEAST_PAUSE_S, known.took_s / COST_SHARE)
        is_young = view.is_live and known.stamp is not None and now_s - known.at_s < pause_s
        if stamps == known.stamp or is_young:
            known.run = replace(known.run, view=view)
            return known.run
        try:
            known.run = known.reader.read(view)
        except DdptopError as error:
            known.run = Run(view, trouble=str(error))
        known.stamp, known.at_s, known.took_s = stamps, now_s, time.monotonic() - now_s
        return known.run

    def _closer(self, run: Run, part: Part) -> Run:
        """A run with finer losses in the zoomed part."""
        span = times_of(run.curve, part)
        if span is None:
            return run
        try:
            return self._known[run.view.spec.job_id].reader.closer(run, *span)
        except DdptopError:
            return run


def times_of(curve: LossCurve, part: Part) -> tuple[float, float] | None:
    """A part of the axis in seconds since the job's start; None if the job has none of it."""
    axis, since, until = part
    if not curve.samples:
        return None
    if axis == "time":
        return since, until
    inside = [
        one.at_s for one in curve.samples if one.step is not None and since <= one.step <= until
    ]
    if not inside:
        return None
    # one sample more on each side: a coarse sample may cover more than the zoomed part
    apart = (curve.samples[-1].at_s - curve.samples[0].at_s) / max(1, len(curve.samples) - 1)
    return max(0.0, min(inside) - apart), max(inside) + apart


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return (
        len(one) == len(other)
        and one[0] == other[0]
        and all(a is b for a, b in zip(one[1:], other[1:], strict=True))
    )


class RunReader:
    """Reads one job, and only new losses each time. Not thread-safe."""

    def __init__(self, history_db: Path) -> None:
        self._reader = HistoryReader(history_db)

    def read(self, view: Job) -> Run:
        """The job, with the losses of its whole run.

        Raises:
            DdptopError: its history cannot be read.
        """
        start = view.created_at if view.snapshot is None else view.snapshot.started_at
        start_s = start.timestamp()
        printed = is_printed(view.snapshot)
        taken = attempts_taken(self._reader)
        run = Run(
            view,
            attempts=tuple((one.attempt, one.started - start_s) for one in taken),
            offsets=offsets_of(
                [(one.attempt, one.taken or 0) for one in taken],
                {} if view.snapshot is None else view.snapshot.attempts_began,
                printed=printed,
            ),
            start_s=start_s,
        )
        span = self._reader.span()
        if span is None:
            return run
        losses = self._reader.losses(span[0], span[1], MOST_POINTS) or Series(bucket_s=1)
        scalars = self._reader.scalar_series(span[0], span[1], MOST_POINTS)
        return replace(
            run,
            curve=curve_of(losses, start_s, run.offsets, printed=printed),
            scalars={
                name: curve_of(one, start_s, run.offsets, printed=printed)
                for name, one in scalars.items()
            },
        )

    def closer(self, run: Run, since_s: float, until_s: float) -> Run:
        """The run with finer losses between two times, in seconds since the job's start.

        Raises:
            DdptopError: its history cannot be read.
        """
        since, until = run.start_s + since_s, run.start_s + until_s
        losses = self._reader.losses(since, until, MOST_POINTS) or Series(bucket_s=1)
        part = curve_of(losses, run.start_s, run.offsets, printed=is_printed(run.view.snapshot))
        if len(part.samples) < 2:
            return run
        first, last = part.samples[0].at_s, part.samples[-1].at_s
        before = [one for one in run.curve.samples if one.at_s < first]
        after = [one for one in run.curve.samples if one.at_s > last]
        return replace(run, curve=LossCurve((*before, *part.samples, *after)))


def read_run(view: Job) -> Run:
    """Read one job with its losses.

    Raises:
        DdptopError: its history cannot be read.
    """
    return RunReader(view.folder.history_db).read(view)


def curve_of(
    series: Series, start_s: float, offsets: Mapping[int, int], *, printed: bool
) -> LossCurve:
    """The means of a series as one curve.

    Args:
        series: the losses of all ranks, or a scalar.
        start_s: the job's start, unix seconds.
        offsets: by attempt, the number of steps before it; the steps of other attempts are
            unknown.
        printed: whether step numbers come from the output; these need no offset.
    """
    points: dict[int, tuple[float | None, int | None, int | None]] = {
        t: (None, step, attempt)
        for t, step, attempt in zip(
            series.nonfinite_t, series.nonfinite_step, series.nonfinite_attempt, strict=True
        )
    }
    bad = points.keys() | set()
    rows = zip(series.t, series.mean, series.step, series.attempt, strict=True)
    points |= {t: (loss, step, attempt) for t, loss, step, attempt in rows}

    def sample(t: int) -> Sample:
        loss, step, attempt = points[t]
        offset = offsets.get(attempt or 0, 0 if printed else None)
        return Sample(
            at_s=max(0.0, t + series.bucket_s / 2 - start_s),
            step=None if step is None or offset is None else offset + step,
            loss=loss,
            attempt=attempt,
            is_bad=t in bad,
        )

    return LossCurve(tuple(map(sample, sorted(points))))
