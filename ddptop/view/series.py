"""Time series of several ranks, reduced to the columns of a chart. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ddptop_runner.base.median import median


class Points(msgspec.Struct, frozen=True):
    """One rank's samples, oldest first; `t` in unix seconds.

    `low` and `high` are the extremes within the time that each sample stands for.
    """

    t: Sequence[float]
    low: Sequence[float | None]
    mean: Sequence[float | None]
    high: Sequence[float | None]
    not_finite: Sequence[float] = ()
    """Moments at which a value was NaN or infinite."""
    step: Sequence[int | None] = ()
    """The last step within each sample's time, counted from the start of its attempt."""
    attempt: Sequence[int | None] = ()
    """The attempt that each sample belongs to."""
    bucket_s: float = 0.0
    """The time span of each sample."""


class AttemptSteps(msgspec.Struct, frozen=True):
    """Where an attempt begins on the axis of steps."""

    attempt: int
    at: float
    """Unix seconds at which it started."""
    before: int
    """Steps that all attempts before it took."""
    first: int = 0
    """The step that it counts its own from."""


class Columns(msgspec.Struct, frozen=True):
    """One rank's samples, one entry for each dot column; None where there are none."""

    low: list[float | None]
    mean: list[float | None]
    high: list[float | None]
    not_finite: frozenset[int] = frozenset()
    """Columns in which a value was NaN or infinite."""
    reach: int = 2
    """Columns that may lie between two samples without being a gap."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The time axis of a chart, whatever is drawn over it."""

    since: float = 0.0
    """Left edge, unix seconds."""
    until: float = 0.0
    """Right edge, unix seconds."""
    window_s: float | None = None
    """How much was asked for, back from what is newest; None: everything."""
    marks: tuple[tuple[float, str], ...] = ()
    """Moments with a vertical line, like group restarts: unix seconds and a label."""
    ended: bool = False
    watched: bool = False
    """Whether it begins where watching began, and not with the job."""
    whole: tuple[float, float] | None = None
    """Where everything there is begins and ends; None: what is given."""
    by_step: bool = False
    """Whether every `t`, the edges and the marks count steps, and not seconds."""
    attempts: tuple[AttemptSteps, ...] = ()
    """Where each attempt begins, as far as that is known."""

    @property
    def extent(self) -> tuple[float, float]:
        """Where everything there is begins and ends."""
        return (self.since, self.until) if self.whole is None else self.whole


class ChartData(Frame, frozen=True):
    """What a chart shows: samples of each rank between two moments."""

    series: Mapping[int, Points] = msgspec.field(default_factory=dict)
    name: str = "loss"
    """What the samples are: `loss`, `throughput` in steps per second, or the name of a scalar."""
    scalars: Mapping[str, Points] = msgspec.field(default_factory=dict)
    """Beside losses: what the job reports by name, such as a learning rate."""
    empty: str = "no loss yet"
    """What to say in place of a curve where there is no sample."""
    middle: Points | None = None
    """All ranks as one, where that is known already: least, median and greatest rank. `series`
    then holds only those that are drawn beside it."""
    odd: tuple[int, ...] = ()
    """Ranks whose loss has moved away from the others, according to the alerts."""
    apart: Mapping[int, float] = msgspec.field(default_factory=dict)
    """With `middle`: by which ratio those are away from the median."""
    number: int | None = None
    """With `middle`: how many ranks it is made of."""
    last_step: int | None = None
    """Steps that all attempts took together; None where that is not known."""


def bin_points(
    points: Points, since: float, until: float, columns: int, cuts: Sequence[float] = ()
) -> Columns:
    """Samples between `since` and `until`, by column: least, mean and greatest of each.

    Samples on two sides of one of `cuts` share no column: those before it go into the one before.
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
            # many samples in a column: its end is found without looking at each of them
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
    return Columns(low, means, high, frozenset(not_finite), _reach(times, start, end, factor))


def _end_of(
    times: Sequence[float],
    place: int,
    end: int,
    since: float,
    factor: float,
    x: int,
    columns: int,
) -> int:
    """The first sample from `place` on that is not in column `x` any more."""
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
    """Least, mean and greatest of some samples; None where no value is finite."""
    means = points.mean[start:stop]
    try:
        total = sum(means)  # type: ignore[arg-type]
        least, greatest = min(points.low[start:stop]), max(points.high[start:stop])  # type: ignore[type-var]
        if total - total + least - least + greatest - greatest == 0:  # type: ignore[operator]
            return least, total / (stop - start), greatest
    except TypeError:
        pass  # something is missing: each sample has to be looked at
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
"""So many distances between samples tell the usual one."""


def _reach(times: Sequence[float], start: int, end: int, columns_per_s: float) -> int:
    """The distance between samples, in columns, that is a gap if it is any longer.

    That is three usual distances. Where samples come in bursts, the pauses between them are usual.
    """
    if end - start < 2:
        return 2
    stride = max(1, (end - start) // _GAPS)
    gaps = sorted(times[i + 1] - times[i] for i in range(start, end - 1, stride))
    usual = (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2
    pause = gaps[len(gaps) * 9 // 10]
    return max(2, math.ceil(max(3 * usual, 1.5 * pause) * columns_per_s))


def across(ranks: Sequence[Columns], columns: int) -> Columns:
    """The median of the ranks in each column, between the least and the greatest of them."""
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
    return Columns(low, middle, high, frozenset(), max((r.reach for r in ranks), default=2))


def ratios(ranks: Mapping[int, Columns], odd: Sequence[int], columns: int) -> dict[int, float]:
    """By which ratio the recent losses of some ranks are away from the median."""
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
