"""Reads one rank over time; the rank screen's query and answer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import asdict

from ddptop.charts.curves import Curve, Curves
from ddptop.charts.plots import device_curves
from ddptop.job.ranks import device_of
from ddptop.job.record import Job
from ddptop.job.series import ChartData, DeviceHistory, Frame, Points
from ddptop.sources.device_history import DeviceHistorySource
from ddptop.sources.history import (
    ChartQuery,
    Histories,
    JobHistory,
    Paced,
    points_of,
    redraw_pause_s,
)
from ddptop.sources.job import chart_of, deviations_of
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import device_number


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


@dataclass(frozen=True)
class RankHistory:
    """One rank over time."""

    job: str = ""
    rank: int = 0
    steps: Curves = field(default_factory=Curves)
    """Step time, split into its parts."""
    load: Curves = field(default_factory=Curves)
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
