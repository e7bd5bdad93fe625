"""One rank over time: what its screen asks and gets, and how it is read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import asdict

from ddptop.charts.devices import device_curves
from ddptop.charts.figures import Curve, FiguresData
from ddptop.charts.split import SplitData
from ddptop.sources.chart import ChartQuery, points_of, redraw_pause_s
from ddptop.sources.device_history import DeviceHistorySource
from ddptop.sources.job import chart_of, deviations_of
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop.view.rank_words import device_of
from ddptop.view.series import ChartData, Frame, Points
from ddptop.view.shown import DeviceHistory
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.registry import JobView
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.store.history_reader import HistoryReader, width_of
from ddptop_runner.store.history_schema import device_number


class RankQuery(Query, frozen=True, kw_only=True):
    """One rank of a job over time."""

    job: str
    rank: int
    chart: ChartQuery
    device: str | None = None
    """UUID of a foreign rank's device, which is shown as this viewer saw it."""
    device_span_s: float = 0.0
    """How far back."""

    def answer(self, look: Look, sources: Sources) -> RankAnswer:
        """The rank, unless its job is gone."""
        view, history, seen = look.job(self.job), None, None
        if view is None:
            return RankAnswer(query=self, look=look)
        chart, trouble = chart_of(view, self.chart, look.now_s, sources)
        if isinstance(view, JobView):
            with contextlib.suppress(DdptopError):  # `trouble` says the same
                history = sources[RankSource].read(view, self.rank, self.chart, look.now_s)
        elif self.device is not None:
            history_of = sources[DeviceHistorySource]
            seen = history_of.read(look, self.device_span_s, self.device)
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
    """What the screen of a rank shows."""

    chart: ChartData = msgspec.field(default_factory=ChartData)
    deviations: Mapping[int, RankDeviation] = msgspec.field(default_factory=dict)
    """By rank: how far it is from the median of its job."""
    trouble: str | None = None
    """What could not be read, in words."""
    history: RankHistory | None = None
    """None of a foreign job's."""
    device_history: DeviceHistory | None = None
    """Of a foreign job's rank: what this viewer saw of its device."""


@dataclass(frozen=True)
class RankHistory:
    """One rank over time."""

    job: str = ""
    rank: int = 0
    split: SplitData = field(default_factory=SplitData)
    """Its step time, by part."""
    load: FiguresData = field(default_factory=FiguresData)
    """Its CPU and memory, and its device's load, memory and power."""


class RankSource:
    """Reads it, again only when it can look different. Used by the collector's thread alone."""

    def __init__(self) -> None:
        self._key: object = None
        self._until = 0.0
        self._history: RankHistory | None = None

    def read(self, view: JobView, rank: int, query: ChartQuery, now_s: float) -> RankHistory | None:
        """The rank over the span of the screen's charts.

        Raises:
            DdptopError: when the history cannot be read.
        """
        key = (view.spec.job_id, rank, query, view.state)
        if key == self._key and (not view.is_live or now_s < self._until):
            return self._history
        self._key = None  # what cannot be read now is read at the next look
        reader = HistoryReader(view.folder.history_db)
        span = reader.span()
        if span is None:
            self._history, self._until = RankHistory(view.job, rank), now_s + 1.0
            self._key = key
            return self._history
        since, until, whole = query.part(span, now_s, live=view.is_live)
        frame = Frame(
            since=since,
            until=until,
            window_s=query.window_s,
            marks=tuple((at, f"attempt {n}") for n, at in reader.attempt_starts() if n),
            ended=not view.is_live,
            whole=whole,
        )
        self._until = now_s + redraw_pause_s(frame, query)
        few = _Few(reader, rank, since, until, query.columns)
        self._history = RankHistory(
            view.job,
            rank,
            _split(few, frame),
            _load(few, view, frame, query.columns),
        )
        self._key = key
        return self._history


class _Few:
    """Metrics of one rank over one span."""

    def __init__(
        self, reader: HistoryReader, rank: int, since: float, until: float, columns: int
    ) -> None:
        self.reader, self.rank = reader, rank
        self._span = since, until
        self._width_s = width_of(int(since), int(until), columns)

    def points(self, metric: str) -> Points | None:
        found = self.reader.few_ranks(metric, [self.rank], *self._span, self._width_s)
        series = found.get(self.rank)
        return None if series is None or not series.t else points_of(series)


def _split(few: _Few, frame: Frame) -> SplitData:
    """The parts of its step time at the moments at which that is known."""
    steps = few.points("step_time_s")
    if steps is None:
        return SplitData(**asdict(frame))
    parts = {name: _by_moment(few.points(name)) for name in ("data_wait_s", "compute_s", "sync_s")}
    return SplitData(
        t=list(steps.t),
        step_time_s=list(steps.mean),
        data_wait_s=[parts["data_wait_s"].get(t) for t in steps.t],
        compute_s=[parts["compute_s"].get(t) for t in steps.t],
        sync_s=[parts["sync_s"].get(t) for t in steps.t],
        **asdict(frame),
    )


def _by_moment(points: Points | None) -> Mapping[float, float | None]:
    return {} if points is None else dict(zip(points.t, points.mean, strict=False))


def _load(few: _Few, view: JobView, frame: Frame, columns: int) -> FiguresData:
    """Its device first, where it has one; then its processes' CPU and memory."""
    curves: list[Curve] = []
    if (device := device_of(view.snapshot, few.rank)) is not None:
        number = device_number(view.spec.hosts, device.host, device.index)
        curves += device_curves(device, _of_device(few.reader, frame, number, columns))
    for metric, name, unit in (("cpu_percent", "CPU", "%"), ("rss_bytes", "RSS", "bytes")):
        if (points := few.points(metric)) is not None:
            curves.append(Curve(name, points, unit, least=0.0))
    return FiguresData(
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
