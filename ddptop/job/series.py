"""Time series of ranks and devices, and their reduction to the columns of a chart. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.median import median


class Points(msgspec.Struct, frozen=True):
    """One rank's samples, oldest first; `t` in unix seconds.

    `low` and `high` are the extremes within the time span of each sample.
    """

    t: Sequence[float]
    low: Sequence[float | None]
    mean: Sequence[float | None]
    high: Sequence[float | None]
    not_finite: Sequence[float] = ()
    """Times at which a value was NaN or infinite."""
    step: Sequence[int | None] = ()
    """The last step in each sample's time span, counted from the start of its attempt."""
    attempt: Sequence[int | None] = ()
    """The attempt that each sample belongs to."""
    bucket_s: float = 0.0
    """The time span of each sample."""


class AttemptSteps(msgspec.Struct, frozen=True):
    """Where an attempt begins on the step axis."""

    attempt: int
    at: float
    """When it started, in unix seconds."""
    before: int
    """Steps taken by all previous attempts."""
    first: int = 0
    """The number of its first step."""


class Columns(msgspec.Struct, frozen=True):
    """One rank's samples, one entry per dot column; None in columns without samples."""

    low: list[float | None]
    mean: list[float | None]
    high: list[float | None]
    not_finite: frozenset[int] = frozenset()
    """Columns in which a value was NaN or infinite."""
    max_gap: int = 2
    """Most columns between two samples that are not a gap."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The time axis of a chart."""

    since: float = 0.0
    """Left edge, unix seconds."""
    until: float = 0.0
    """Right edge, unix seconds."""
    window_s: float | None = None
    """Requested time span, ending at the newest sample; None for everything."""
    marks: tuple[tuple[float, str], ...] = ()
    """Times marked with a vertical line, such as group restarts: unix seconds and a label."""
    ended: bool = False
    watched: bool = False
    """Whether the data begins when monitoring started rather than when the job did."""
    whole: tuple[float, float] | None = None
    """Start and end of all available data; None if that is `since` and `until`."""
    by_step: bool = False
    """Whether every `t`, the edges, and the marks are steps rather than seconds."""
    attempts: tuple[AttemptSteps, ...] = ()
    """Where each attempt begins, if known."""

    @property
    def extent(self) -> tuple[float, float]:
        """Start and end of all available data."""
        return (self.since, self.until) if self.whole is None else self.whole


class ChartData(Frame, frozen=True):
    """What a chart shows: samples of each rank between two times."""

    series: Mapping[int, Points] = msgspec.field(default_factory=dict)
    name: str = "loss"
    """What the samples measure: `loss`, `throughput` in steps per second, or a scalar's name."""
    scalars: Mapping[str, Points] = msgspec.field(default_factory=dict)
    """Other values that the job reports by name, such as a learning rate."""
    empty: str = "no loss yet"
    """Text shown when there are no samples."""
    middle: Points | None = None
    """The minimum, median, and maximum across all ranks, if already computed. `series` then holds
    only the ranks drawn in addition."""
    odd: tuple[int, ...] = ()
    """Ranks that hold up the others, according to the alerts."""
    apart: Mapping[int, float] = msgspec.field(default_factory=dict)
    """With `middle`: relative distance of those ranks from the median."""
    number: int | None = None
    """With `middle`: how many ranks it covers."""
    last_step: int | None = None
    """Steps taken by all attempts together; None if unknown."""
    stepped: ChartData | None = None
    """The chart by step, if the steps of more samples than their times are known."""


def known_until(points: Points, until: float) -> Points:
    """The samples whose time span ended by then."""
    end = bisect.bisect_right(points.t, until - points.bucket_s / 2)
    return Points(
        t=points.t[:end],
        low=points.low[:end],
        mean=points.mean[:end],
        high=points.high[:end],
        not_finite=[t for t in points.not_finite if t <= until - points.bucket_s / 2],
        step=points.step[:end],
        attempt=points.attempt[:end],
        bucket_s=points.bucket_s,
    )


def chart_until(data: ChartData, until: float, odd: Sequence[int]) -> ChartData:
    """The chart with only what was known then, on the time axis of the whole run.

    Args:
        data: the chart.
        until: unix seconds.
        odd: ranks that held up the others by then.
    """
    return replace(
        data,
        series={rank: known_until(points, until) for rank, points in data.series.items()},
        scalars={
            name: known
            for name, points in data.scalars.items()
            if (known := known_until(points, until)).t
        },
        middle=None if data.middle is None else known_until(data.middle, until),
        marks=tuple((at, label) for at, label in data.marks if at <= until),
        attempts=tuple(one for one in data.attempts if one.at <= until),
        odd=tuple(rank for rank in data.odd if rank in odd),
        apart={rank: away for rank, away in data.apart.items() if rank in odd},
        last_step=None if data.last_step is None else 0,
    )


def bin_points(
    points: Points, since: float, until: float, columns: int, cuts: Sequence[float] = ()
) -> Columns:
    """Samples between `since` and `until` by column: minimum, mean, and maximum.

    Samples on different sides of a cut never share a column: those before it go into the previous
    column.
    """
    low: list[float | None] = [None] * columns
    means: list[float | None] = [None] * columns
    high: list[float | None] = [None] * columns
    factor = columns / max(1e-9, until - since)
    times = points.t
    start, end = bisect.bisect_left(times, since), bisect.bisect_right(times, until)
    place = start
    while place < end:
        x = min(columns - 1, int((times[place] - since) * factor))
        stop = place + 1
        if end - start > 3 * columns:
            # with many samples per column, a binary search finds the column's end
            stop = _end_of(times, stop, end, since, factor, x, columns)
        else:
            while stop < end and int((times[stop] - since) * factor) == x:
                stop += 1
            if x == columns - 1:
                stop = end
        start_of = place
        for cut in cuts:
            if times[place] < cut and int((cut - since) * factor) == x:
                start_of = bisect.bisect_left(times, cut, place, stop)
        if start_of > place and x > 0:
            least, mean, most = _together(points, place, start_of)
            low[x - 1] = _wider(low[x - 1], least, min)
            high[x - 1] = _wider(high[x - 1], most, max)
            means[x - 1] = mean if means[x - 1] is None else means[x - 1]
        if start_of == stop:
            place = stop
            continue
        place = start_of
        mean = points.mean[place]
        if stop == place + 1 and points.low[place] == mean == points.high[place]:
            if mean is not None and mean - mean == 0:
                low[x] = means[x] = high[x] = mean
        else:
            low[x], means[x], high[x] = _together(points, place, stop)
        place = stop
    not_finite = {
        min(columns - 1, int((t - since) * factor))
        for t in points.not_finite
        if since <= t <= until
    }
    return Columns(low, means, high, frozenset(not_finite), _max_gap(times, start, end, factor))


def _end_of(
    times: Sequence[float],
    place: int,
    end: int,
    since: float,
    factor: float,
    x: int,
    columns: int,
) -> int:
    """The first sample from `place` on that lies beyond column `x`."""
    if x >= columns - 1:
        return end
    stop = bisect.bisect_left(times, since + (x + 1) / factor, place, end)
    while stop > place and int((times[stop - 1] - since) * factor) > x:
        stop -= 1
    while stop < end and int((times[stop] - since) * factor) == x:
        stop += 1
    return stop


def _wider(
    known: float | None, value: float | None, choose: Callable[[float, float], float]
) -> float | None:
    if known is None or value is None:
        return value if known is None else known
    return choose(known, value)


def _together(
    points: Points, start: int, stop: int
) -> tuple[float | None, float | None, float | None]:
    """Minimum, mean, and maximum of some samples; None if no value is finite."""
    means = points.mean[start:stop]
    try:
        total = sum(means)  # type: ignore[arg-type]
        least, greatest = min(points.low[start:stop]), max(points.high[start:stop])  # type: ignore[type-var]
        if total - total + least - least + greatest - greatest == 0:  # type: ignore[operator]
            return least, total / (stop - start), greatest
    except TypeError:
        pass  # a value is missing: check each sample
    lows: list[float] = []
    known: list[float] = []
    highs: list[float] = []
    for place in range(start, stop):
        mean, low, high = points.mean[place], points.low[place], points.high[place]
        if mean is None or not math.isfinite(mean):
            continue
        known.append(mean)
        lows.append(low if low is not None and math.isfinite(low) else mean)
        highs.append(high if high is not None and math.isfinite(high) else mean)
    if not known:
        return None, None, None
    return min(lows), sum(known) / len(known), max(highs)


_GAPS = 64
"""Number of distances between samples from which to derive the usual one."""


def _max_gap(times: Sequence[float], start: int, end: int, columns_per_s: float) -> int:
    """The longest distance between samples, in columns, that is not a gap.

    It is three times the usual distance; if samples come in bursts, the pauses between bursts are
    usual.
    """
    if end - start < 2:
        return 2
    stride = max(1, (end - start) // _GAPS)
    gaps = sorted(times[i + 1] - times[i] for i in range(start, end - 1, stride))
    usual = (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2
    pause = gaps[len(gaps) * 9 // 10]
    return max(2, math.ceil(max(3 * usual, 1.5 * pause) * columns_per_s))


def across(ranks: Sequence[Columns], columns: int) -> Columns:
    """Per column, the minimum, median, and maximum across ranks."""
    low: list[float | None] = [None] * columns
    middle: list[float | None] = [None] * columns
    high: list[float | None] = [None] * columns
    for x in range(columns):
        values = [value for rank in ranks if (value := rank.mean[x]) is not None]
        if values:
            middle[x] = median(values)
            low[x], high[x] = min(values), max(values)
    if len(ranks) == 1:
        low, high = ranks[0].low, ranks[0].high
    return Columns(low, middle, high, frozenset(), max((r.max_gap for r in ranks), default=2))


def ratios(ranks: Mapping[int, Columns], odd: Sequence[int], columns: int) -> dict[int, float]:
    """Relative distance of some ranks' recent losses from the median."""
    found: dict[int, float] = {}
    middle = across(list(ranks.values()), columns).mean if odd else []
    recent = [x for x, value in enumerate(middle) if value][-max(3, columns // 8) :]
    for rank in odd:
        away = [
            (mine - usual) / abs(usual)
            for x in recent
            if rank in ranks and (mine := ranks[rank].mean[x]) is not None and (usual := middle[x])
        ]
        if away:
            found[rank] = median(away)
    return found


class Machine(msgspec.Struct, frozen=True):
    """This host's own figures."""

    host: str
    cpu_percent: float | None = None
    """Utilization of the machine's cores; 100 means all of them."""
    cores: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


class DeviceHistory(msgspec.Struct, frozen=True):
    """History of the devices up to a time."""

    since: float = 0.0
    until: float = 0.0
    """Of `figures`, in unix seconds."""
    recent: Mapping[str, tuple[float | None, ...]] = msgspec.field(default_factory=dict)
    """Utilization in percent by UUID: one value for each five seconds of the last ten minutes."""
    idle_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    """How long each device has been idle, by UUID; busy devices are absent."""
    device: str | None = None
    """UUID of the device that `figures` is about."""
    figures: Mapping[str, Points] = msgspec.field(default_factory=dict)
    """By name in figures.devices.HISTORY: in percent, bytes, watts, or degrees Celsius."""
    marks: tuple[tuple[float, str], ...] = ()
    """When the device's clocks were lowered, and its errors: unix seconds and a word."""


class Tail(msgspec.Struct, frozen=True):
    """The last lines of a log."""

    attempt: int
    owner: int | None
    """The rank that wrote them, `model.LAUNCHER` for a command, or None if there are none."""
    lines: tuple[str, ...] = ()
