"""Reads one job; the queries and answers of the screens of a job, its logs, and a rank."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from ddptop.charts.curves import Curve, Curves
from ddptop.charts.plots import device_curves
from ddptop.job.attempts import in_order
from ddptop.job.ranks import device_of
from ddptop.job.record import Job
from ddptop.job.series import SPARK_S, ChartData, DeviceHistory, Frame, Points, Recent
from ddptop.sources.devices import DeviceHistorySource
from ddptop.sources.history import (
    ChartQuery,
    ChartSource,
    Histories,
    JobHistory,
    Paced,
    at_new_steps,
    points_of,
    redraw_pause_s,
)
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.judge.balance.imbalance import RankDeviation, deviations
from ddptop_runner.model.snapshot import Event, RankSample
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import device_number

CAUSE_LINES = 12
EVENTS_SHOWN = 300

SPARK_POINTS = 60
SPARK_EVERY_S = SPARK_S / SPARK_POINTS

MOST_SPARKS = 16
"""With more ranks, the screen shows no cards, and their figures are not read."""


class JobDetail(msgspec.Struct, frozen=True):
    """Everything the panels of a job show except its log."""

    view: Job
    chart: ChartData = msgspec.field(default_factory=ChartData)
    events: tuple[Event, ...] = ()
    """Latest first."""
    deviations: Mapping[int, RankDeviation] = msgspec.field(default_factory=dict)
    """Each rank's deviation from the median of its job."""
    cause_tail: tuple[str, ...] = ()
    """Last log lines of the first rank that failed."""
    recent: Recent = msgspec.field(default_factory=Recent)
    """Trend and sparklines of the last minutes."""
    trouble: str | None = None
    """Why something could not be read."""
    only: frozenset[int] | None = None
    """Ranks that match the filter; None: all."""

    @property
    def ranks(self) -> list[RankSample]:
        """The ranks that match the filter."""
        ranks = self.view.snapshot.ranks
        return ranks if self.only is None else [rank for rank in ranks if rank.rank in self.only]


class JobQuery(Query, frozen=True, kw_only=True):
    """A job with its losses and latest events."""

    job: str
    chart: ChartQuery

    def answer(self, look: Look, sources: Sources) -> JobAnswer:
        """Read the job, unless it is gone."""
        view = look.job(self.job)
        detail = None if view is None else _detail(view, self.chart, look.now_s, sources)
        return JobAnswer(query=self, look=look, view=view, detail=detail)


class JobAnswer(Answer, frozen=True, kw_only=True):
    """What the job screen shows."""

    detail: JobDetail | None = None
    """None if the job is gone."""

    @property
    def now(self) -> dt.datetime:
        """The time that the screen shows."""
        return self.look.taken_at


class LogsQuery(Query, frozen=True, kw_only=True):
    """A job without its log: that has its own reader; a foreign job's output is `followed`."""

    job: str

    def answer(self, look: Look, sources: Sources) -> Answer:
        """Read the job, unless it is gone."""
        return Answer(query=self, look=look, view=look.job(self.job))


def chart_of(
    view: Job, query: ChartQuery, now_s: float, sources: Sources
) -> tuple[ChartData, str | None]:
    """The losses of any job, and why they cannot be read, if so."""
    if view.is_foreign:
        return sources.foreign.chart(view, query, now_s), None
    try:
        history = sources[Histories].of(view)
        return sources[ChartSource].read(view, history, query, now_s), None
    except DdptopError as error:
        return ChartData(), str(error)


def deviations_of(view: Job) -> Mapping[int, RankDeviation]:
    """Each rank's deviation from the median of its job."""
    snapshot = view.snapshot
    alerts = snapshot.alerts if view.is_live else ()
    return deviations(snapshot.ranks, snapshot.gpus, alerts)


def _detail(view: Job, query: ChartQuery, now_s: float, sources: Sources) -> JobDetail:
    chart, trouble = chart_of(view, query, now_s, sources)
    cause_tail: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    recent = Recent()
    if view.is_foreign:
        events = sources.foreign.events(view)
        recent = sources.foreign.recent(view, now_s)
    else:
        cause_tail = sources[CauseSource].read(view)
        try:
            history = sources[Histories].of(view)
            events = tuple(reversed(in_order(history.events(EVENTS_SHOWN))))
            recent = sources[RecentSource].read(view, history, now_s)
        except DdptopError as error:
            trouble = str(error)
    return JobDetail(
        view=view,
        chart=chart,
        events=events,
        deviations=deviations_of(view),
        cause_tail=cause_tail,
        recent=recent,
        trouble=trouble,
    )


class CauseSource:
    """The last log lines of the first failure, read once per failure."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lines: tuple[str, ...] = ()

    def read(self, view: Job) -> tuple[str, ...]:
        """The last lines of the rank that failed first, or of a command."""
        snapshot = view.snapshot
        if snapshot.cause is None:
            return ()
        rank, attempt = snapshot.cause.rank, snapshot.attempt or 0
        if rank is None and not view.spec.is_command:
            return ()
        path = view.folder.log_file(attempt, LAUNCHER if rank is None else rank)
        if self._path != path:
            from ddptop_runner.store.logs import last_words

            _, lines = last_words(view.folder, attempt, rank, CAUSE_LINES)
            self._path, self._lines = path, tuple(lines)
        return self._lines


class RecentSource:
    """Each rank's step times and losses over the last minutes."""

    def __init__(self) -> None:
        self._recent = Paced[Recent]()

    def read(self, view: Job, history: JobHistory, now_s: float) -> Recent:
        """The last minutes and the trend of the loss.

        Raises:
            DdptopError: the history cannot be read.
        """
        key, trend = (view.spec.job_id, view.is_live), history.trend(view, now_s)
        recent = self._recent.get(key, now_s, lambda: _read_recent(view, history))
        return msgspec.structs.replace(recent, trend=trend)


def _read_recent(view: Job, history: JobHistory) -> tuple[Recent, float]:
    run, pause_s = history.reader.span(), SPARK_EVERY_S if view.is_live else math.inf
    ranks = len(view.snapshot.ranks)
    if run is None or not 0 < ranks <= MOST_SPARKS:
        return Recent(), pause_s
    until = float(run[1] + 1)
    losses = history.reader.rank_series("loss", until - SPARK_S, until, SPARK_POINTS)
    points = {rank: at_new_steps(points_of(one)) for rank, one in losses.items()}
    return Recent(losses=points), pause_s


class RankQuery(Query, frozen=True, kw_only=True):
    """One rank of a job over time."""

    job: str
    rank: int
    chart: ChartQuery
    device: str | None = None
    """UUID of a foreign rank's device, whose history is the one this viewer recorded."""

    def answer(self, look: Look, sources: Sources) -> RankAnswer:
        """Read the rank, unless its job is gone."""
        view, history, seen = look.job(self.job), None, None
        if view is None:
            return RankAnswer(query=self, look=look)
        chart, trouble = chart_of(view, self.chart, look.now_s, sources)
        if not view.is_foreign:
            with contextlib.suppress(DdptopError):  # `trouble` has the reason
                source, of_job = sources[RankSource], sources[Histories].of(view)
                history = source.read(view, of_job, self.rank, self.chart, look.now_s)
        elif self.device is not None:
            seen = sources[DeviceHistorySource].read(look, self.device)
        return RankAnswer(
            query=self,
            look=look,
            view=view,
            chart=chart,
            deviations=deviations_of(view),
            trouble=trouble,
            history=history,
            device_history=seen,
        )


class RankAnswer(Answer, frozen=True, kw_only=True):
    """What the rank screen shows."""

    chart: ChartData = msgspec.field(default_factory=ChartData)
    deviations: Mapping[int, RankDeviation] = msgspec.field(default_factory=dict)
    """Each rank's deviation from the median of its job."""
    trouble: str | None = None
    """Why something could not be read."""
    history: RankHistory | None = None
    """None for a foreign job."""
    device_history: DeviceHistory | None = None
    """For a foreign job: the history of the rank's device as this viewer recorded it."""


class RankHistory(msgspec.Struct, frozen=True):
    """One rank over time."""

    job: str = ""
    rank: int = 0
    steps: Curves = msgspec.field(default_factory=Curves)
    """Step time, split into its parts."""
    load: Curves = msgspec.field(default_factory=Curves)
    """CPU and memory, and the device's utilization, memory, and power."""


class RankSource:
    """Reads a rank's history, again only if it may look different. Used only by the collector."""

    def __init__(self) -> None:
        self._history = Paced[RankHistory]()

    def read(
        self, view: Job, history: JobHistory, rank: int, query: ChartQuery, now_s: float
    ) -> RankHistory:
        """The rank in the part that the screen shows.

        Raises:
            DdptopError: the history cannot be read.
        """
        key = (view.spec.job_id, rank, query, view.state)
        return self._history.get(key, now_s, lambda: _read_rank(view, history, rank, query, now_s))


def _read_rank(
    view: Job, history: JobHistory, rank: int, query: ChartQuery, now_s: float
) -> tuple[RankHistory, float]:
    since, until, whole = history.part(view, query, now_s)
    if not until:
        return RankHistory(view.name, rank), 1.0
    frame = Frame(
        since=since,
        until=until,
        marks=history.marks(),
        ended=not view.is_live,
        whole=whole,
    )
    series_of = _RankSeries(history.reader, rank, since, until, query.columns)
    found = RankHistory(
        view.name, rank, _steps(series_of, frame), _load(series_of, view, frame, query.columns)
    )
    return found, redraw_pause_s(frame, query, live=view.is_live)


class _RankSeries:
    """Metrics of one rank over one span."""

    def __init__(
        self, reader: HistoryReader, rank: int, since: float, until: float, columns: int
    ) -> None:
        self.reader, self.rank = reader, rank
        self._span = since, until, columns

    def points(self, metric: str) -> Points | None:
        series = self.reader.rank_series(metric, *self._span, [self.rank]).get(self.rank)
        return None if series is None or not series.t else points_of(series)


_STEP_PARTS = (
    ("step", "step_time_s"),
    ("compute", "compute_s"),
    ("data wait", "data_wait_s"),
    ("sync", "sync_s"),
)


def _steps(series_of: _RankSeries, frame: Frame) -> Curves:
    """The step time and its parts."""
    curves = [
        Curve(name, points, "s", least=0.0)
        for name, metric in _STEP_PARTS
        if (points := series_of.points(metric)) is not None
    ]
    return Curves(curves=tuple(curves), empty="no steps timed yet", **asdict(frame))


def _load(series_of: _RankSeries, view: Job, frame: Frame, columns: int) -> Curves:
    """The device's curves, if there is one, then CPU and memory of the rank's processes."""
    curves: list[Curve] = []
    if (device := device_of(view.snapshot, series_of.rank)) is not None:
        number = device_number(view.spec.hosts, device.host, device.index)
        curves += device_curves(device, _of_device(series_of.reader, frame, number, columns))
    for metric, name, unit in (("cpu_percent", "CPU", "%"), ("rss_bytes", "RSS", "bytes")):
        if (points := series_of.points(metric)) is not None:
            curves.append(Curve(name, points, unit, least=0.0))
    return Curves(
        curves=tuple(curves),
        **asdict(frame),
    )


def _of_device(
    reader: HistoryReader, frame: Frame, number: int, columns: int
) -> Mapping[str, Points]:
    found = {}
    for name, metric in (
        ("util", "util_percent"),
        ("memory", "mem_used_bytes"),
        ("power", "power_w"),
    ):
        found_of = reader.gpu_series(metric, frame.since, frame.until, columns, [number])
        series = found_of.get(number)
        if series is not None and series.t:
            found[name] = points_of(series)
    return found
