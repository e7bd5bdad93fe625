"""Time series of ranks and devices: the columns of a chart, and the trend of the loss. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from ddptop.style import Line, Span, line
from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import NodeSnapshot, RankSample


class Points(msgspec.Struct, frozen=True):
    """The samples of a rank, a device, or a job, oldest first; `t` in unix seconds, or steps.

    `low` and `high` are the extremes within the time span of each sample.
    """

    t: Sequence[float] = ()
    low: Sequence[float | None] = ()
    mean: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    not_finite: Sequence[float] = ()
    """Times at which a value was NaN or infinite."""
    step: Sequence[int | None] = ()
    """The run's last step in each sample's time span."""
    attempt: Sequence[int | None] = ()
    """The attempt that each sample belongs to."""

    def only(self, kept: Sequence[int]) -> Points:
        """These samples, by index, with the same values that are not finite."""
        names = ("t", "low", "mean", "high", "step", "attempt")
        columns = {name: getattr(self, name) for name in names}
        return replace(self, **{name: [of[i] for i in kept] for name, of in columns.items() if of})


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
    marks: tuple[tuple[float, str], ...] = ()
    """Times marked with a vertical line, such as group restarts: unix seconds and a label."""
    ended: bool = False
    watched: bool = False
    """Whether the data begins when monitoring started rather than when the job did."""
    whole: tuple[float, float] | None = None
    """Start and end of all available data; None if that is `since` and `until`."""
    by_step: bool = False
    """Whether every `t`, the edges, and the marks are steps rather than seconds."""

    @property
    def extent(self) -> tuple[float, float]:
        """Start and end of all available data."""
        return (self.since, self.until) if self.whole is None else self.whole


class ChartData(Frame, frozen=True):
    """The losses of a job between two times, and what else it reports."""

    middle: Points | None = None
    """The minimum, median, and maximum across all ranks."""
    number: int = 1
    """How many ranks that covers."""
    series: Mapping[int, Points] = msgspec.field(default_factory=dict)
    """Losses of single ranks; of very many ranks, only some."""
    apart: Mapping[int, float] = msgspec.field(default_factory=dict)
    """Ranks that hold up the others, with the relative distance of their losses from the median."""
    scalars: Mapping[str, Points] = msgspec.field(default_factory=dict)
    """Other values that the job reports by name, such as a learning rate."""
    empty: str = "no loss yet"
    """Text shown when there are no samples."""
    last_step: int | None = None
    """The run's last step; None if unknown."""
    stepped: ChartData | None = None
    """The chart by step, if the steps of more samples than their times are known."""


def middle_of(series: Mapping[int, Points]) -> Points | None:
    """The minimum, median, and maximum across ranks at each time that a rank has a value."""
    if len(series) <= 1:
        return next(iter(series.values()), None)
    at: dict[float, list[tuple[float, int | None, int | None]]] = {}
    for points in series.values():
        nothing = [None] * len(points.t)
        steps, attempts = points.step or nothing, points.attempt or nothing
        for t, mean, step, attempt in zip(points.t, points.mean, steps, attempts, strict=True):
            if mean is not None:
                at.setdefault(t, []).append((mean, step, attempt))
    rows = [(t, [mean for mean, *_ in at[t]], at[t][0]) for t in sorted(at)]
    return Points(
        t=[t for t, _, _ in rows],
        low=[min(means) for _, means, _ in rows],
        mean=[median(means) for _, means, _ in rows],
        high=[max(means) for _, means, _ in rows],
        not_finite=sorted({t for points in series.values() for t in points.not_finite}),
        step=[step for *_, (_, step, _) in rows],
        attempt=[attempt for *_, (*_, attempt) in rows],
    )


def by_step(points: Points) -> Points:
    """The samples with known steps, by step; steps that were repeated replace the earlier ones."""
    kept: list[int] = []
    known = points.attempt or [None] * len(points.t)
    for place, step in enumerate(points.step):
        if step is None:
            continue
        while kept and (points.step[kept[-1]] or 0) >= step:
            last = kept[-1]
            if points.step[last] == step and known[last] == known[place]:
                break
            kept.pop()
        kept.append(place)
    found = points.only(kept)
    steps = [float(step or 0) for step in found.step]
    bad = [bisect.bisect_right(found.t, t) - 1 for t in points.not_finite]
    not_finite = sorted({steps[max(0, place)] for place in bad}) if steps else []
    return replace(found, t=steps, not_finite=not_finite)


def restarts(points: Points) -> list[tuple[float, int]]:
    """Where each later attempt begins, and its number."""
    return [
        (at, attempt)
        for at, before, attempt in zip(
            points.t[1:], points.attempt, points.attempt[1:], strict=False
        )
        if attempt and attempt != before
    ]


def bin_points(
    points: Points, since: float, until: float, columns: int, cuts: Sequence[float] = ()
) -> Columns:
    """Samples between `since` and `until` by column: minimum, mean, and maximum.

    Samples on different sides of a cut never share a column: those before it go into the previous
    column.
    """
    factor = columns / max(1e-9, until - since)
    times = points.t

    def column(t: float) -> int:
        return min(columns - 1, int((t - since) * factor))

    cut_in = {column(cut): cut for cut in cuts if since <= cut <= until}
    lows: list[float | None] = [None] * columns
    means: list[float | None] = [None] * columns
    highs: list[float | None] = [None] * columns

    def put(x: int, first: int, stop: int) -> None:
        if x < 0 or first == stop or (found := _together(points, first, stop)) is None:
            return
        low, mean, high = found
        before, after = lows[x], highs[x]
        lows[x] = low if before is None else min(before, low)
        means[x] = mean if means[x] is None else means[x]
        highs[x] = high if after is None else max(after, high)

    start, end = bisect.bisect_left(times, since), bisect.bisect_right(times, until)
    place = start
    while place < end:
        x = column(times[place])
        edge = math.inf if x == columns - 1 else since + (x + 1) / factor
        stop = bisect.bisect_left(times, edge, place + 1, end)
        cut = bisect.bisect_left(times, cut_in[x], place, stop) if x in cut_in else place
        put(x - 1, place, cut)
        put(x, cut, stop)
        place = stop
    bad = frozenset(column(t) for t in points.not_finite if since <= t <= until)
    return Columns(lows, means, highs, bad, _max_gap(times, start, end, factor))


def _together(points: Points, start: int, stop: int) -> tuple[float, float, float] | None:
    """Minimum, mean, and maximum of some samples; None if no value is finite."""
    means = [v for v in points.mean[start:stop] if v is not None and math.isfinite(v)]
    if not means:
        return None
    lows = [v for v in points.low[start:stop] if v is not None and math.isfinite(v)]
    highs = [v for v in points.high[start:stop] if v is not None and math.isfinite(v)]
    return min(lows or means), sum(means) / len(means), max(highs or means)


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


SHARE = 0.1
"""Fraction of the run to examine, at its end."""

LEAST_S = 20.0
"""Minimum time to examine: a shorter one says little about a loss."""

TREND_POINTS = 40
"""Number of points in that time to compare."""

LEAST_BY_STEP = 20
"""The same for losses by step, in points."""

LEAST_POINTS = 8
"""With fewer points, there is no trend."""

CHANGE = 0.005
"""Minimum relative change; less than half a percent counts as flat."""

SURE = 2.0
"""Minimum change, as a multiple of its standard error."""

Way = Literal["falling", "flat", "rising"]

ARROWS: dict[Way, Span] = {"falling": ("↘", "ok"), "flat": ("→", "dim"), "rising": ("↗", "warn")}
"""Arrows for the trend of a loss."""


class LossTrend(msgspec.Struct, frozen=True):
    """How the ranks' median loss changed over some time."""

    way: Way
    span_s: float | None
    """Seconds between the first and last points compared; None if they were compared by step."""
    ratio: float | None = None
    """Relative change between the two halves: -0.03 is 3% less. None if the loss is about 0."""
    steps: int | None = None
    """The same distance in steps, if they were compared by step."""

    @property
    def span(self) -> str:
        """The time or the steps between those points, in words."""
        if self.span_s is None:
            return f"{self.steps:,} steps"
        return units.brief_duration(self.span_s)


def stretch_s(run_s: float) -> float:
    """How many seconds at the end of a run to examine."""
    return max(LEAST_S, SHARE * run_s)


def trend(points: Points, *, by_step: bool = False) -> LossTrend | None:
    """Compare the mean of the later half of the losses with that of the earlier half.

    None with fewer than LEAST_POINTS losses. A change counts if it is more than CHANGE of the loss
    and at least SURE times the standard error of the difference.

    Args:
        points: the losses; by step, of the whole run, of which the last tenth is compared.
        by_step: whether their times are steps.
    """
    values = [(t, loss) for t, loss in zip(points.t, points.mean, strict=True) if loss is not None]
    if by_step and values:
        since = values[-1][0] - SHARE * (values[-1][0] - values[0][0])
        values = values[-max(LEAST_BY_STEP, sum(step >= since for step, _ in values)) :]
    if len(values) < LEAST_POINTS:
        return None
    middle = len(values) // 2
    before, after = ([loss for _, loss in half] for half in (values[:middle], values[middle:]))
    change = _mean(after) - _mean(before)
    level = abs(_mean(before))
    error = (_squared_error(before) + _squared_error(after)) ** 0.5
    span = values[-1][0] - values[0][0]
    apart = (None, round(span)) if by_step else (span, None)
    ratio = change / level if level > 1e-9 else None
    if abs(change) < SURE * error or abs(change) <= CHANGE * level:
        return LossTrend("flat", apart[0], ratio, apart[1])
    return LossTrend("falling" if change < 0 else "rising", apart[0], ratio, apart[1])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _squared_error(values: Sequence[float]) -> float:
    """The squared standard error of their mean: variance divided by count."""
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def trend_words(found: LossTrend | None, snapshot: NodeSnapshot, *, of_several: bool) -> Line:
    """`↘ falling, -3.1% in 7m`, or since which step the loss is NaN; empty if unknown.

    A rising loss is a warning, unless there are several that train against each other.
    """
    if bad := bad_loss(snapshot.ranks):
        return line(bad)
    if found is None:
        return ()
    style = {"falling": "ok", "flat": "", "rising": "" if of_several else "warn"}[found.way]
    if found.way == "flat":
        return line((f"{ARROWS['flat'][0]} flat", style), (f" for {found.span}", "dim"))
    of = "" if found.ratio is None else f", {_percent(found.ratio)}"
    span = f"{of} in {found.span}"
    return line((f"{ARROWS[found.way][0]} {found.way}", style), (span, "dim"))


def bad_loss(ranks: Sequence[RankSample]) -> Span | None:
    """`✕ NaN since step 1,203 on rank 0, last finite 2.31`; None while losses are finite."""
    bad = [rank for rank in ranks if rank.loss_state in ("nan", "inf")]
    if not bad:
        return None
    name = "NaN" if any(rank.loss_state == "nan" for rank in bad) else "inf"
    known = [rank for rank in bad if rank.loss_bad_since is not None]
    first = min(known, key=lambda rank: rank.loss_bad_since or 0, default=None)
    since = "" if first is None else f" since {run_step.in_words(first, first.loss_bad_since)}"
    numbers = [rank.rank for rank in bad]
    where = "" if len(bad) == len(ranks) else f" on {units.name_ranks(numbers, compact=True)}"
    good = next((rank.loss_last_good for rank in bad if rank.loss_last_good is not None), None)
    last = "" if good is None else f", last finite {units.loss(good)}"
    return f"✕ {name}{since}{where}{last}", "bad"


def losses_of(snapshot: NodeSnapshot) -> Mapping[str, float | None]:
    """The losses of a rank that has several, by optimizer; the first is the one that is shown."""
    return next((rank.losses for rank in snapshot.ranks if len(rank.losses) > 1), {})


def whose_loss(snapshot: NodeSnapshot) -> str:
    """The optimizer whose loss is shown if there are several; else empty."""
    return next(iter(losses_of(snapshot)), "")


def _percent(ratio: float) -> str:
    return f"{100 * ratio:+.1f}%" if abs(ratio) < 0.0995 else units.deviation(ratio)


SPARK_S = 300.0
"""The time span of the sparklines on the cards."""


class Recent(msgspec.Struct, frozen=True):
    """A job's recent values."""

    trend: LossTrend | None = None
    """None if too little is known yet."""
    losses: Mapping[int, Points] = msgspec.field(default_factory=dict)
    """Losses by rank, over the last SPARK_S seconds."""
