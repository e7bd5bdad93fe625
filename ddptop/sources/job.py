"""Reads one job; the queries and answers of the screens of a job, its logs, and a rank."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Mapping

import msgspec
from msgspec.structs import asdict

from ddptop.charts.curves import Curve, Curves
from ddptop.charts.plots import device_curves
from ddptop.job.attempts import in_order
from ddptop.job.figures.devices import HISTORY
from ddptop.job.ranks import device_of
from ddptop.job.record import Job
from ddptop.job.series import SPARK_S, ChartData, DeviceHistory, Frame, Recent, Tail
from ddptop.sources.devices import DeviceHistorySource
from ddptop.sources.history import (
    ChartQuery,
    Histories,
    JobHistory,
    at_new_steps,
    points_of,
    redraw_pause_s,
)
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.judge.balance.imbalance import RankDeviation, deviations
from ddptop_runner.model.snapshot import Event, RankSample
from ddptop_runner.store.history_schema import GPU, RANK, device_number

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


def chart_of(
    view: Job, query: ChartQuery, now_s: float, sources: Sources
) -> tuple[ChartData, str | None]:
    """The losses of any job, and why they cannot be read, if so."""
    if view.is_foreign:
        return sources.foreign.chart(view, query, now_s), None
    try:
        return sources[Histories].of(view).chart(view, query, now_s), None
    except DdptopError as error:
        return ChartData(), str(error)


def deviations_of(view: Job) -> Mapping[int, RankDeviation]:
    """Each rank's deviation from the median of its job."""
    snapshot = view.snapshot
    alerts = snapshot.alerts if view.is_live else ()
    return deviations(snapshot.ranks, snapshot.gpus, alerts)


def _detail(view: Job, query: ChartQuery, now_s: float, sources: Sources) -> JobDetail:
    chart, trouble = chart_of(view, query, now_s, sources)
    tail: Tail | None = None
    events: tuple[Event, ...] = ()
    recent = Recent()
    if view.is_foreign:
        events = sources.foreign.events(view)
        recent = sources.foreign.recent(view, now_s)
    else:
        history, snapshot = sources[Histories].of(view), view.snapshot
        if snapshot.cause is not None:
            tail = history.last_output(view, snapshot.attempt or 0, snapshot.cause.rank)
        try:
            events = tuple(reversed(in_order(history.events(EVENTS_SHOWN))))
            recent = _recent(view, history, now_s)
        except DdptopError as error:
            trouble = str(error)
    return JobDetail(
        view=view,
        chart=chart,
        events=events,
        deviations=deviations_of(view),
        cause_tail=() if tail is None else tail.lines[-CAUSE_LINES:],
        recent=recent,
        trouble=trouble,
    )


def _recent(view: Job, history: JobHistory, now_s: float) -> Recent:
    """Each rank's losses over the last minutes, and the trend of the loss.

    Raises:
        DdptopError: the history cannot be read.
    """
    recent = history.cached("recent", view.is_live, now_s, lambda: _read_recent(view, history))
    return msgspec.structs.replace(recent, trend=history.trend(view, now_s))


def _read_recent(view: Job, history: JobHistory) -> tuple[Recent, float]:
    run, pause_s = history.reader.span(), SPARK_EVERY_S if view.is_live else math.inf
    ranks = len(view.snapshot.ranks)
    if run is None or not 0 < ranks <= MOST_SPARKS:
        return Recent(), pause_s
    until = float(run[1] + 1)
    losses = history.reader.series(RANK, "loss", until - SPARK_S, until, SPARK_POINTS)
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
                history = rank_history(
                    view, sources[Histories].of(view), self.rank, self.chart, look.now_s
                )
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

    rank: int = 0
    steps: Curves = msgspec.field(default_factory=Curves)
    """Step time, split into its parts."""
    load: Curves = msgspec.field(default_factory=Curves)
    """CPU and memory, and the device's utilization, memory, and power."""


def rank_history(
    view: Job, history: JobHistory, rank: int, query: ChartQuery, now_s: float
) -> RankHistory:
    """The rank in the part that the screen shows, read again only if it may look different.

    Raises:
        DdptopError: the history cannot be read.
    """
    return history.cached(
        "rank",
        (rank, query, view.state),
        now_s,
        lambda: _read_rank(view, history, rank, query, now_s),
    )


_STEP_PARTS = (
    ("step", "step_time_s"),
    ("compute", "compute_s"),
    ("data wait", "data_wait_s"),
    ("sync", "sync_s"),
)


def _read_rank(
    view: Job, history: JobHistory, rank: int, query: ChartQuery, now_s: float
) -> tuple[RankHistory, float]:
    since, until, whole = history.part(view, query, now_s)
    if not until:
        return RankHistory(rank), 1.0
    frame = Frame(
        since=since, until=until, marks=history.marks(), ended=not view.is_live, whole=whole
    )
    reader, span = history.reader, (since, until, query.columns)

    def curve_of(name: str, metric: str, unit: str) -> list[Curve]:
        series = reader.series(RANK, metric, *span, [rank]).get(rank)
        if series is None or not series.t:
            return []
        return [Curve(name, points_of(series), unit, least=0.0)]

    load: list[Curve] = []
    if (device := device_of(view.snapshot, rank)) is not None:
        number = device_number(view.spec.hosts, device.host, device.index)
        known = {
            name: reader.series(GPU, HISTORY[name], *span, [number]).get(number)
            for name in ("util", "memory", "power")
        }
        found = {name: points_of(one) for name, one in known.items() if one is not None and one.t}
        load += device_curves(device, found)
    load += [*curve_of("CPU", "cpu_percent", "%"), *curve_of("RSS", "rss_bytes", "bytes")]
    steps = [curve for name, metric in _STEP_PARTS for curve in curve_of(name, metric, "s")]
    axes = asdict(frame)
    return RankHistory(
        rank,
        Curves(curves=tuple(steps), empty="no steps timed yet", **axes),
        Curves(curves=tuple(load), **axes),
    ), redraw_pause_s(frame, query, live=view.is_live)
