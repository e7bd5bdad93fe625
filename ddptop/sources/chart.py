"""Reads a job's losses for its chart. Used only by the collector's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ddptop.view.series import AttemptSteps, ChartData, Frame, Points
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.median import median
from ddptop_runner.job.registry import JobView
from ddptop_runner.judge.balance.imbalance import marked
from ddptop_runner.model import events as ev
from ddptop_runner.model.run_step import is_printed
from ddptop_runner.model.snapshot import Alert
from ddptop_runner.store.history_reader import (
    AttemptTaken,
    Band,
    BandReader,
    HistoryReader,
    Series,
    attempts_taken,
    points_for,
    rows_read,
    width_of,
)

BAND_RANKS = 64
"""With more ranks, the history yields their minimum, median, and maximum; only outliers are read
individually."""

ODD_SHOWN = 6
"""Maximum number of outlier ranks drawn next to the band."""

SOON_ROWS = 100_000
"""Rows aggregated in 0.3 s; with more, the first read of a window is coarse."""

REJUDGE_S = 30.0
"""Minimum time between two changes to the set of ranks excluded from the band."""

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


def odd_ranks(view: JobView, reader: HistoryReader) -> tuple[int, ...]:
    """Ranks that alerts mark: active ones of a live job, all of an ended job."""
    alerts: Sequence[Alert] = () if view.snapshot is None else view.snapshot.alerts
    if not view.is_live:
        raised = map(ev.of_row, reader.events())
        alerts = [event.alert for event in raised if isinstance(event, ev.AlertRaised)]
    return tuple(sorted(marked(alerts)))


def away_from_median(
    recent: Mapping[int, Mapping[int, float]], odd: Sequence[int]
) -> dict[int, float]:
    """The relative deviation of some ranks from the median.

    Args:
        recent: by bucket, each rank's value.
        odd: the ranks.
    """
    found: dict[int, list[float]] = {}
    for values in recent.values():
        usual = median(values.values()) if values else 0.0
        for rank in odd if usual else ():
            if rank in values:
                found.setdefault(rank, []).append((values[rank] - usual) / abs(usual))
    return {rank: median(away) for rank, away in found.items()}


class ChartSource:
    """One job's chart, reread only if it may look different."""

    def __init__(self) -> None:
        self._key: object = None
        self._at = 0.0
        self._chart = ChartData()
        self._bands: tuple[Path, BandReader] | None = None
        self._many = False
        self._ranks = 0
        self._rough_for: object = None
        """The window last read with few points; the next read uses all of them."""
        self._without: tuple[int, ...] = ()
        """Ranks excluded from the band, as of `_without_at`."""
        self._without_at = -REJUDGE_S
        self._attempts: tuple[object, object, list[AttemptTaken]] = (None, None, [])
        """The history, the time up to which it was read, and the result."""

    def read(self, view: JobView, query: ChartQuery, now_s: float) -> ChartData:
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

    def _read(
        self, view: JobView, reader: HistoryReader, query: ChartQuery, now_s: float
    ) -> ChartData:
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
        return self._filled(frame, reader, query, span[1], now_s)

    def _most_points(self, path: Path, since: int, until: int, query: ChartQuery) -> int:
        """How many points to read of a band; few on the first read, so that it appears quickly."""
        most = query.columns
        part = (path, query.window_s, query.until, most)
        rows = rows_read(since, until, width_of(since, until, most), self._ranks)
        if part == self._rough_for or rows <= SOON_ROWS:
            return most
        self._rough_for, self._key = part, None
        return min(most, max(2, points_for(since, until, self._ranks, SOON_ROWS)))

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

    def _filled(
        self, frame: ChartData, reader: HistoryReader, query: ChartQuery, newest: int, now_s: float
    ) -> ChartData:
        """The frame with its curves: one per rank, or a band for many ranks."""
        since, until, most = frame.since, frame.until, query.columns
        if self._many:
            most = self._most_points(reader.path, int(since), int(until), query)
        if not self._many:
            series = reader.rank_series("loss", since, until, most)
            points = {rank: at_new_steps(points_of(one)) for rank, one in series.items()}
            return replace(frame, series=points)
        if self._bands is None or self._bands[0] != reader.path:
            self._bands, self._without = (reader.path, BandReader(reader)), ()
        bands = self._bands[1]
        width_s = width_of(int(since), int(until), most)
        apart = away_from_median(bands.recent("loss", min(until, newest), width_s), frame.odd)
        if not set(apart) <= set(self._without) and now_s - self._without_at >= REJUDGE_S:
            # outliers do not belong to the band, which must be read again without them
            self._without, self._without_at = tuple(sorted({*self._without, *apart})), now_s
        band = bands.read("loss", since, until, most, self._without)
        odd = sorted(apart, key=lambda rank: -abs(apart[rank]))[:ODD_SHOWN]
        shown = {*odd, *bands.not_finite_ranks(band)[:ODD_SHOWN]}
        if query.rank is not None and query.rank >= 0:
            shown.add(query.rank)
        few = reader.few_ranks("loss", sorted(shown), since, until, width_s)
        return replace(
            frame,
            series={rank: at_new_steps(points_of(one)) for rank, one in few.items()},
            middle=at_new_steps(band_points(band)) if band.t else None,
            apart={rank: apart[rank] for rank in odd},
            number=max(band.ranks, default=0) + len(self._without),
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


def band_points(band: Band) -> Points:
    """The minimum, median, and maximum over all ranks in each bucket."""
    half = band.bucket_s / 2
    return Points(
        t=[t + half for t in band.t],
        low=band.low,
        mean=band.median,
        high=band.high,
        not_finite=[t + half for t in band.nonfinite_t],
        step=band.step,
        attempt=band.attempt,
        bucket_s=band.bucket_s,
    )
