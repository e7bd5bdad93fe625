"""Reads the histories of ddptop's own jobs: charts, trends, events, and attempts.

Used only by the collector's thread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from ddptop.charts.axis import Axis
from ddptop.job.attempts import offsets_of
from ddptop.job.record import Job
from ddptop.job.series import (
    TREND_POINTS,
    ChartData,
    Frame,
    LossTrend,
    Points,
    Tail,
    stretch_s,
    trend,
)
from ddptop_runner.base.files import stamp
from ddptop_runner.base.median import median
from ddptop_runner.judge.balance.imbalance import slow_ranks
from ddptop_runner.model import events as ev
from ddptop_runner.model.run_step import is_printed
from ddptop_runner.model.snapshot import Alert, Event
from ddptop_runner.store.history_reader import AttemptTaken, HistoryReader, Series, attempts_taken
from ddptop_runner.store.history_schema import RANK

MANY_RANKS = 64
"""With more ranks, only outliers and the chosen one are read individually."""

ODD_SHOWN = 6
"""Maximum number of outlier ranks drawn next to the band."""

RECENT_POINTS = 12
"""Number of latest points over which an outlier is compared with the median."""

MAX_REDRAW_S = 15.0
"""Longest interval between reads of a live job's chart."""

GLANCE_S = 5.0
"""Shortest interval between reads of a chart in the job list."""

TREND_EVERY_S = (10.0, 60.0)
"""Shortest and longest interval between trend updates."""

REMEMBERED = 64
"""Number of jobs whose histories are cached."""

MOST_POINTS = 1000
"""Maximum number of points read of a whole run."""

TAIL_LINES = 40
"""How many last log lines to read of the first rank that failed."""

ReadT = TypeVar("ReadT")
Span = tuple[float, float]
_Row = tuple[Any, ...]
"""Minimum, mean, maximum, step, and attempt."""


class ChartQuery(msgspec.Struct, frozen=True):
    """The part of a run that a chart shows."""

    columns: int = 200
    """Dots across; more points cannot be distinguished."""
    axis: Axis = "time"
    span: float | None = None
    """Seconds or steps; None: the whole run."""
    right: float | None = None
    """Right edge, unix seconds or a step; None: the latest data."""
    rank: int | None = None
    """A rank to show individually even if the job is drawn as a band."""
    glance: bool = False
    """Whether the chart is part of the job list, where it may be older."""

    def part(self, run: Span, now_s: float, *, live: bool) -> tuple[float, float, Span]:
        """Start and end of the seconds that are shown, and those of the whole `run`."""
        first, end = run[0], run[1] + 1.0
        end = until = max(end, now_s) if live else end
        if self.span is None or self.axis == "step":
            return first, until, (first, end)
        if self.right is not None:
            until = min(until, self.right)
        return max(until - self.span, 0.0), until, (first, end)


def redraw_pause_s(chart: Frame, query: ChartQuery, *, live: bool) -> float:
    """How long a chart stays valid: until it would change by a column."""
    step_s = (chart.until - chart.since) / max(1, query.columns)
    pause_s = min(MAX_REDRAW_S, max(GLANCE_S if query.glance else 0.9, step_s))
    return pause_s if live else math.inf


class Paced(Generic[ReadT]):
    """A value that is read again if its key changes, or after a pause."""

    def __init__(self) -> None:
        self._key: object = None
        self._until = 0.0
        self._value: ReadT

    def get(self, key: object, now_s: float, read: Callable[[], tuple[ReadT, float]]) -> ReadT:
        """The value; `read` returns a new one, and the seconds for which it stays valid."""
        if key != self._key or now_s >= self._until:
            self._key = None  # after an error, retry on the next poll
            self._value, pause_s = read()
            self._key, self._until = key, now_s + pause_s
        return self._value


def history_stamps(path: Path) -> tuple[int | None, int | None]:
    """When a history database and its write-ahead log last changed."""
    return stamp(path), stamp(path.with_name(path.name + "-wal"))


class JobHistory:
    """One job's history. All methods raise DdptopError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.reader = HistoryReader(path)
        self._span: Span | None = None
        self._attempts: list[AttemptTaken] = []
        self._events: list[Event] = []
        self._events_stamps: object = None
        self._most_events = 0
        self._paced: dict[str, Paced[Any]] = {}

    def cached(
        self, what: str, key: object, now_s: float, read: Callable[[], tuple[ReadT, float]]
    ) -> ReadT:
        """What `read` returned last with this key, while it is valid; see `Paced`."""
        paced: Paced[ReadT] = self._paced.setdefault(what, Paced())
        return paced.get(key, now_s, read)

    def attempts(self) -> list[AttemptTaken]:
        """Each attempt's steps; reread with each sample because the last one is still running."""
        if (span := self.reader.span()) != self._span:
            self._attempts = attempts_taken(self.reader, known=self._attempts)
            self._span = span
        return self._attempts

    def marks(self) -> tuple[tuple[float, str], ...]:
        """When each later attempt started, with its name."""
        attempts = self.attempts()
        return tuple((one.started, f"attempt {one.attempt}") for one in attempts if one.attempt)

    def offsets(self, view: Job) -> dict[int, int]:
        """By attempt, how many steps of the run precede it."""
        return offsets_of(
            [(one.attempt, one.taken or 0) for one in self.attempts()],
            view.snapshot.attempts_began,
            printed=is_printed(view.snapshot),
        )

    def events(self, most: int) -> list[Event]:
        """The latest `most` events, in the order of their numbers; reads only new ones."""
        if most > self._most_events:
            self._events, self._events_stamps, self._most_events = [], None, most
        stamps = history_stamps(self.reader.path)
        if stamps != self._events_stamps:
            after = self._events[-1].seq if self._events else 0
            new = self.reader.events(after, self._most_events)
            self._events = [*self._events, *new][-self._most_events :]
            self._events_stamps = stamps
        return self._events[-most:]

    def losses(self, view: Job, since: float, until: float, most: int) -> Points:
        """The losses of all ranks together."""
        found = self.reader.losses(since, until, most) or Series(bucket_s=1)
        return at_new_steps(points_of(found, self.offsets(view)))

    def scalars(self, view: Job, since: float, until: float, most: int) -> dict[str, Points]:
        """What else the job reports, by name."""
        offsets = self.offsets(view)
        return {
            name: at_new_steps(points_of(one, offsets))
            for name, one in self.reader.scalar_series(since, until, most).items()
        }

    def part(self, view: Job, query: ChartQuery, now_s: float) -> tuple[float, float, Span]:
        """The seconds that are shown, and those of the whole run; (0, 0) without samples."""
        run = self.reader.span()
        if run is None:
            return 0.0, 0.0, (0.0, 0.0)
        since, until, whole = query.part(run, now_s, live=view.is_live)
        if query.axis == "step" and query.span is not None:
            points = self.losses(view, *whole, MOST_POINTS)
            last = max((step for step in points.step if step is not None), default=0)
            right = float(last) if query.right is None else query.right
            since, until = times_of(points, right - query.span, right) or (since, until)
        return since, until, whole

    def trend(self, view: Job, now_s: float) -> LossTrend | None:
        """The trend of the loss over the last tenth of the run; the same between updates."""
        return self.cached("trend", view.is_live, now_s, lambda: self._read_trend(view))

    def _read_trend(self, view: Job) -> tuple[LossTrend | None, float]:
        run = self.reader.span()
        if run is None or not view.has_snapshot:
            return None, TREND_EVERY_S[0]
        until = float(run[1] + 1)
        span_s = min(stretch_s(until - run[0]), until - run[0])
        since = until - span_s  # but not before a restart, where the loss may jump
        if view.snapshot.attempt_started_at is not None:
            since = max(since, view.snapshot.attempt_started_at.timestamp())
        points = self.losses(view, since, until, TREND_POINTS)
        least, most = TREND_EVERY_S
        pause_s = min(most, max(least, span_s / TREND_POINTS))
        return trend(points), pause_s if view.is_live else math.inf

    def chart(self, view: Job, query: ChartQuery, now_s: float) -> ChartData:
        """The losses in the requested part; the same object while nothing changes."""
        ranks = len(view.snapshot.ranks) if view.has_snapshot else view.spec.nproc
        wanted = query if ranks > MANY_RANKS else replace(query, rank=None)

        def read() -> tuple[ChartData, float]:
            chart = _read_chart(view, self, wanted, now_s, ranks)
            return chart, redraw_pause_s(chart, query, live=view.is_live)

        return self.cached("chart", (wanted, view.state), now_s, read)

    def last_output(self, view: Job, attempt: int, rank: int | None) -> Tail | None:
        """The last lines of the rank that failed in an attempt, or of a command; read once."""
        if rank is None and not view.spec.is_command:
            return None

        def read() -> tuple[Tail, float]:
            from ddptop_runner.store.logs import last_words  # loaded with the first failure

            owner, lines = last_words(view.folder, attempt, rank, TAIL_LINES)
            return Tail(attempt, owner, tuple(lines)), math.inf

        return self.cached("tail", (attempt, rank), 0.0, read)


class Histories:
    """The histories of the jobs shown last."""

    def __init__(self) -> None:
        @functools.lru_cache(REMEMBERED)
        def history(job_id: str, path: Path) -> JobHistory:
            return JobHistory(path)

        self._history = history

    def of(self, view: Job) -> JobHistory:
        """One job's history."""
        return self._history(view.spec.job_id, view.folder.history_db)


def _read_chart(
    view: Job, history: JobHistory, query: ChartQuery, now_s: float, ranks: int
) -> ChartData:
    since, until, whole = history.part(view, query, now_s)
    if not until:
        return ChartData(ended=not view.is_live)
    attempts, offsets, reader = history.attempts(), history.offsets(view), history.reader
    middle = history.losses(view, since, until, query.columns)
    odd = _odd_ranks(view, reader)
    some = sorted({*odd, *([] if query.rank is None or query.rank < 0 else [query.rank])})
    series: dict[int, Series] = {}
    if ranks <= MANY_RANKS or some:
        only = some if ranks > MANY_RANKS else ()
        series = reader.series(RANK, "loss", since, until, query.columns, only)
    points = {rank: at_new_steps(points_of(one, offsets)) for rank, one in series.items()}
    apart = {
        rank: away
        for rank in odd
        if rank in points and (away := away_from_median(points[rank], middle)) is not None
    }
    shown = sorted(apart, key=lambda rank: -abs(apart[rank]))[:ODD_SHOWN]
    last = attempts[-1] if attempts else None
    return ChartData(
        since=since,
        until=until,
        marks=history.marks(),
        ended=not view.is_live,
        whole=whole,
        middle=middle if middle.t else None,
        number=ranks,
        series=points,
        apart={rank: apart[rank] for rank in shown},
        scalars=history.scalars(view, since, until, query.columns),
        last_step=None if last is None else offsets.get(last.attempt, 0) + (last.taken or 0),
    )


def _odd_ranks(view: Job, reader: HistoryReader) -> list[int]:
    """Ranks that alerts mark: active ones of a live job, all of an ended job."""
    alerts: Sequence[Alert] = view.snapshot.alerts
    if not view.is_live:
        raised = map(ev.of_row, reader.events())
        alerts = [event.alert for event in raised if isinstance(event, ev.AlertRaised)]
    return sorted(slow_ranks(alerts))


def away_from_median(one: Points, middle: Points) -> float | None:
    """The recent relative deviation of a rank's loss from the median; None if unknown."""
    usual = dict(zip(middle.t[-RECENT_POINTS:], middle.mean[-RECENT_POINTS:], strict=True))
    away = [
        (value - level) / abs(level)
        for t, value in zip(one.t, one.mean, strict=True)
        if value is not None and (level := usual.get(t))
    ]
    return median(away) if away else None


def times_of(points: Points, since: float, until: float) -> Span | None:
    """When these steps were taken; None if there are none of them."""
    inside = [
        t
        for t, step in zip(points.t, points.step, strict=True)
        if step is not None and since <= step <= until
    ]
    if not inside:
        return None
    # one sample more on each side: a coarse sample may cover more than the part
    apart = (points.t[-1] - points.t[0]) / max(1, len(points.t) - 1)
    return max(0.0, min(inside) - apart), max(inside) + apart


def points_of(series: Series, offsets: Mapping[int, int] | None = None) -> Points:
    """Convert a stored series for the chart; each point is at the middle of its bucket.

    With `offsets`, by attempt the number of steps before it, steps are those of the run; those of
    other attempts are unknown.
    """
    bad = [None] * len(series.nonfinite_t)
    places = (series.nonfinite_step or bad, series.nonfinite_attempt or bad)
    rows: dict[int, _Row] = {
        t: (None, None, None, *place) for t, *place in zip(series.nonfinite_t, *places, strict=True)
    }
    unknown = [None] * len(series.t)
    where = (series.step or unknown, series.attempt or unknown)
    values = (series.min, series.mean, series.max, *where)
    rows |= {t: tuple(row) for t, *row in zip(series.t, *values, strict=True)}
    times, half = sorted(rows), series.bucket_s / 2
    low, mean, high, steps, attempts = ([rows[t][i] for t in times] for i in range(5))
    if offsets is not None:
        before = [None if attempt is None else offsets.get(attempt) for attempt in attempts]
        steps = [
            None if step is None or first is None else first + step
            for step, first in zip(steps, before, strict=True)
        ]
    return Points(
        t=[t + half for t in times],
        low=low,
        mean=mean,
        high=high,
        not_finite=[t + half for t in series.nonfinite_t],
        step=steps,
        attempt=attempts,
    )


def at_new_steps(points: Points) -> Points:
    """Keep only samples in which a step finished; those between steps repeat the last value.

    A series without steps is cut after its last change of value; before that, repeated values
    cannot be distinguished from new ones.
    """
    number, means = len(points.t), points.mean
    if all(step is None for step in points.step):
        end = number
        while end > 1 and means[end - 1] == means[end - 2]:
            end -= 1
        kept = list(range(end if end > 1 else number))
    else:
        rows = list(zip(points.step, means, points.attempt, strict=True))
        kept = [i for i in range(number) if not i or rows[i][0] is None or rows[i] != rows[i - 1]]
    return points.only(kept)
