"""Reads a job's losses for its chart. Used only by the collector's thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ddptop.job.record import Job
from ddptop.job.series import AttemptSteps, ChartData, Frame, Points
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.median import median
from ddptop_runner.judge.balance.imbalance import slow_ranks
from ddptop_runner.model import events as ev
from ddptop_runner.model.run_step import is_printed
from ddptop_runner.model.snapshot import Alert
from ddptop_runner.store.history_reader import (
    AttemptTaken,
    HistoryReader,
    Series,
    attempts_taken,
)

BAND_RANKS = 64
"""With more ranks, the history yields their minimum, median, and maximum; only outliers are read
individually."""

ODD_SHOWN = 6
"""Maximum number of outlier ranks drawn next to the band."""

RECENT_POINTS = 12
"""Number of latest points over which an outlier is compared with the median."""

MAX_REDRAW_S = 15.0
"""Longest interval between reads of a live job's chart."""

GLANCE_S = 5.0
"""Shortest interval between reads of a chart in the job list."""


class ChartQuery(msgspec.Struct, frozen=True):
    """The window of a run that a chart shows."""

    columns: int = 200
    """Dots across; more points cannot be distinguished."""
    window_s: float | None = None
    """None: the whole run."""
    until: float | None = None
    """Right edge, unix seconds; None: the latest data."""
    rank: int | None = None
    """A rank to show individually even if the job is drawn as a band."""
    glance: bool = False
    """Whether the chart is part of the job list, where it may be older."""

    def part(
        self, run: tuple[float, float], now_s: float, *, live: bool
    ) -> tuple[float, float, tuple[float, float]]:
        """The window's start and end, and the start and end of the whole `run`."""
        first, end = run[0], run[1] + 1.0
        end = until = max(end, now_s) if live else end
        if self.until is not None:
            until = min(until, self.until)
        since = first if self.window_s is None else max(until - self.window_s, 0.0)
        return since, until, (first, end)


def redraw_pause_s(chart: Frame, query: ChartQuery) -> float:
    """How long a chart stays valid: until it would change by a column."""
    step_s = (chart.until - chart.since) / max(1, query.columns)
    return min(MAX_REDRAW_S, max(GLANCE_S if query.glance else 0.9, step_s))


def stamp(path: Path) -> int | None:
    """When a file last changed; None if it does not exist."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None


def history_stamps(path: Path) -> tuple[int | None, int | None]:
    """When a history database and its write-ahead log last changed."""
    return stamp(path), stamp(path.with_name(path.name + "-wal"))


def odd_ranks(view: Job, reader: HistoryReader) -> tuple[int, ...]:
    """Ranks that alerts mark: active ones of a live job, all of an ended job."""
    alerts: Sequence[Alert] = () if view.snapshot is None else view.snapshot.alerts
    if not view.is_live:
        raised = map(ev.of_row, reader.events())
        alerts = [event.alert for event in raised if isinstance(event, ev.AlertRaised)]
    return tuple(sorted(slow_ranks(alerts)))


def away_from_median(one: Series, band: Series) -> float | None:
    """The recent relative deviation of a rank's loss from the median; None if unknown."""
    usual = dict(zip(band.t[-RECENT_POINTS:], band.mean[-RECENT_POINTS:], strict=True))
    away = [
        (value - usual[t]) / abs(usual[t])
        for t, value in zip(one.t, one.mean, strict=True)
        if usual.get(t)
    ]
    return median(away) if away else None


class ChartSource:
    """One job's chart, reread only if it may look different."""

    def __init__(self) -> None:
        self._key: object = None
        self._at = 0.0
        self._chart = ChartData()
        self._many = False
        self._ranks = 0
        self._attempts: tuple[object, object, list[AttemptTaken]] = (None, None, [])
        """The history, the time up to which it was read, and the result."""

    def read(self, view: Job, query: ChartQuery, now_s: float) -> ChartData:
        """The losses in the requested window; the same object while nothing changes.

        Raises:
            DdptopError: the history cannot be read.
        """
        reader = HistoryReader(view.folder.history_db)
        self._ranks = view.spec.nproc if view.snapshot is None else len(view.snapshot.ranks)
        self._many = self._ranks > BAND_RANKS
        asked = (query.window_s, query.until, query.columns)
        key = (view.spec.job_id, *asked, query.rank if self._many else None, view.state)
        pause_s = redraw_pause_s(self._chart, query)
        if key == self._key and (not view.is_live or now_s - self._at < pause_s):
            return self._chart
        self._key, self._at = key, now_s
        try:
            self._chart = self._read(view, reader, query, now_s)
        except DdptopError:
            self._key = None  # retry on the next poll
            raise
        return self._chart

    def _read(self, view: Job, reader: HistoryReader, query: ChartQuery, now_s: float) -> ChartData:
        span = reader.span()
        if span is None:
            return ChartData(window_s=query.window_s, ended=not view.is_live)
        since, until, whole = query.part(span, now_s, live=view.is_live)
        taken = self._taken(reader, span, printed=is_printed(view.snapshot))
        frame = ChartData(
            odd=odd_ranks(view, reader),
            since=since,
            until=until,
            window_s=query.window_s,
            marks=tuple((one.started, f"attempt {one.attempt}") for one in taken if one.attempt),
            ended=not view.is_live,
            whole=whole,
            attempts=tuple(
                AttemptSteps(one.attempt, one.started, one.before, one.first) for one in taken
            ),
            last_step=taken[-1].before + (taken[-1].taken or 0) if taken else None,
        )
        scalars = reader.scalar_series(since, until, query.columns)
        frame = replace(
            frame, scalars={name: at_new_steps(points_of(one)) for name, one in scalars.items()}
        )
        return self._filled(frame, reader, query)

    def _taken(
        self, reader: HistoryReader, span: tuple[int, int], *, printed: bool
    ) -> list[AttemptTaken]:
        """Each attempt's steps; reread each time because the last attempt is still running."""
        of, seen, known = self._attempts
        if of != (reader.path, printed):
            known = []
        elif seen == span:
            return known
        taken = attempts_taken(reader, printed=printed, known=known)
        self._attempts = (reader.path, printed), span, taken
        return taken

    def _filled(self, frame: ChartData, reader: HistoryReader, query: ChartQuery) -> ChartData:
        """The frame with its curves: one per rank, or a band for many ranks."""
        since, until, most = frame.since, frame.until, query.columns
        if not self._many:
            series = reader.rank_series("loss", since, until, most)
            points = {rank: at_new_steps(points_of(one)) for rank, one in series.items()}
            return replace(frame, series=points)
        band = reader.losses(since, until, most)
        if band is None:
            return frame
        asked = set() if query.rank is None or query.rank < 0 else {query.rank}
        some = sorted({*frame.odd, *asked})
        few = reader.rank_series("loss", since, until, most, some) if some else {}
        apart = {
            rank: away
            for rank in frame.odd
            if rank in few and (away := away_from_median(few[rank], band)) is not None
        }
        odd = sorted(apart, key=lambda rank: -abs(apart[rank]))[:ODD_SHOWN]
        return replace(
            frame,
            series={
                rank: at_new_steps(points_of(few[rank]))
                for rank in sorted({*odd, *asked} & few.keys())
            },
            middle=at_new_steps(points_of(band)) if band.t else None,
            apart={rank: apart[rank] for rank in odd},
            number=self._ranks,
        )


def points_of(series: Series) -> Points:
    """Convert a stored series for the chart; each point is at the middle of its bucket."""
    half = series.bucket_s / 2
    return Points(
        t=[t + half for t in series.t],
        low=series.min,
        mean=series.mean,
        high=series.max,
        not_finite=[t + half for t in series.nonfinite_t],
        step=series.step,
        attempt=series.attempt,
        bucket_s=series.bucket_s,
    )


def at_new_steps(points: Points) -> Points:
    """Keep only samples in which a step finished; those between steps repeat the last value.

    A series without steps is cut after its last change of value; before that, repeated values
    cannot be distinguished from new ones.
    """
    if all(step is None for step in points.step):
        end = len(points.t)
        while end > 1 and points.mean[end - 1] == points.mean[end - 2]:
            end -= 1
        return points if end <= 1 or end == len(points.t) else _at_places(points, range(end))
    new = [
        place for place in range(len(points.t)) if not place or not _same(points, place, place - 1)
    ]
    return points if len(new) == len(points.t) else _at_places(points, new)


def _same(points: Points, place: int, other: int) -> bool:
    """Whether two samples have the same step, attempt, and value."""
    if not points.step or points.step[place] is None:
        return False
    return (points.step[place], points.mean[place], points.attempt[place]) == (
        points.step[other],
        points.mean[other],
        points.attempt[other],
    )


def _at_places(points: Points, places: Sequence[int]) -> Points:
    names = ("t", "low", "mean", "high", *[n for n in ("step", "attempt") if getattr(points, n)])
    return replace(points, **{name: [getattr(points, name)[i] for i in places] for name in names})
