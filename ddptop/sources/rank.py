"""One rank over time: its step time by part, and its own and its device's usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import asdict

from ddptop.charts.devices import device_curves
from ddptop.charts.figures import Curve, FiguresData
from ddptop.charts.split import SplitData
from ddptop.sources.chart import redraw_pause_s
from ddptop.sources.series_points import points_of
from ddptop.sources.snapshot import Wish
from ddptop.view.rank_words import device_of
from ddptop.view.series import Frame, Points
from ddptop_runner.job.registry import JobView
from ddptop_runner.store.history_reader import HistoryReader, width_of
from ddptop_runner.store.history_schema import device_number


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

    def read(self, view: JobView, wish: Wish, now_s: float) -> RankHistory | None:
        """The rank that is wished for, over the span of the screen's charts; None without one.

        Raises:
            DdptopError: when the history cannot be read.
        """
        rank = wish.rank
        if rank is None:
            return None
        span_of = (wish.chart_window_s, wish.chart_until, wish.chart_columns)
        key = (view.spec.job_id, rank, *span_of, view.state)
        if key == self._key and (not view.is_live or now_s < self._until):
            return self._history
        self._key = None  # what cannot be read now is read at the next look
        reader = HistoryReader(view.folder.history_db)
        span = reader.span()
        if span is None:
            self._history, self._until = RankHistory(view.job, rank), now_s + 1.0
            self._key = key
            return self._history
        until = max(span[1] + 1.0, now_s) if view.is_live else span[1] + 1.0
        whole = float(span[0]), until
        if wish.chart_until is not None:
            until = min(until, wish.chart_until)
        since = whole[0] if wish.chart_window_s is None else max(0.0, until - wish.chart_window_s)
        frame = Frame(
            since=since,
            until=until,
            window_s=wish.chart_window_s,
            marks=tuple((at, f"attempt {n}") for n, at in reader.attempt_starts() if n),
            ended=not view.is_live,
            whole=whole,
        )
        self._until = now_s + redraw_pause_s(frame, wish)
        few = _Few(reader, rank, since, until, wish.chart_columns)
        self._history = RankHistory(
            view.job,
            rank,
            _split(few, frame),
            _load(few, view, frame, wish.chart_columns),
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
