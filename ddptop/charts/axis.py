"""Computes the axes of charts: round ticks, their labels, and dots of values. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence

import msgspec

from ddptop.charts.braille import DOTS_X
from ddptop.charts.window import Area, View
from ddptop.job.series import Columns, Frame
from ddptop.style import Line, fill, line
from ddptop_runner.base.units import NOT_AVAILABLE, duration, loss

TICK_CELLS = 10
"""Cells that a tick takes, including the space next to it."""


class AxisWords(msgspec.Struct, frozen=True):
    """How places on the axis are labeled."""

    first: str = "start"
    last: str = "now"
    backwards: bool = False
    """Whether times count back from the right edge, which is the newest."""
    zero: float = 0.0
    """The time or step that the others count from."""
    by_step: bool = False
    clock: bool = True
    """Whether places are unix seconds and thus have a time of day."""


def axis_words(data: Frame, view: View) -> AxisWords:
    """How the axis of `data` is labeled in this view."""
    first, _ = data.extent
    if data.by_step:
        return AxisWords(by_step=True)
    return AxisWords(
        first="first seen" if data.watched else "start",
        last="end" if data.ended else "now",
        backwards=view.span is not None and view.right is None,
        zero=first,
        clock=first > 1e8,
    )


def step_label(step: float, apart: float) -> str:
    """`0`, `500`, `1,500`, `20k`, `1.5M`: a step on the axis, with ticks `apart` steps apart."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        digits = max(0, -math.floor(math.log10(apart / size) + 1e-9))
        if digits <= 1 and (step >= 10 * size or (step >= size and (size > 1e3 or not digits))):
            return f"{step / size:,.{digits}f}{unit}"
    return f"{step:,.0f}"


def exact_label(seconds: float, apart: float) -> str:
    """A time since the start, precise enough to differ from one `apart` seconds away."""
    whole = round(seconds)
    if whole >= 86400 and apart < 3600:
        return f"{whole // 86400}d{whole % 86400 // 3600:02}:{whole % 3600 // 60:02}"
    if whole >= 3600 and apart < 60:
        return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
    return time_label(whole)


def ticks(area: Area, words: AxisWords) -> list[tuple[float, str]]:
    """Places on the axis with their labels, most important first."""
    most = max(1, area.cells // TICK_CELLS)
    if words.by_step:
        apart = max(1.0, nice_step(area.width, most))
        start = math.ceil(area.since / apart - 1e-9)
        end = math.floor(area.until / apart + 1e-9)
        return [(i * apart, step_label(i * apart, apart)) for i in range(start, end + 1)]
    apart = float(time_step_s(area.width, most))
    if words.backwards:
        back = [index * apart for index in range(1, int(area.width / apart + 1e-9) + 1)]
        labels = [(area.until - offset, time_label(-offset)) for offset in back]
        return [(area.until, words.last), *labels]
    start = math.ceil((area.since - words.zero) / apart - 1e-6)
    end = math.floor((area.until - words.zero) / apart + 1e-6)
    return [
        (words.zero + i * apart, exact_label(i * apart, apart) if i else words.first)
        for i in range(start, end + 1)
    ]


def place_label(words: AxisWords, at: float) -> str:
    """A place on the axis in words: the time since the start, or the step."""
    if words.by_step:
        return f"step {max(0, round(at)):,}"
    text = duration(at - words.zero)
    return f"{text} in" if words.first == "start" else f"{text} after {words.first}"


def clock_label(words: AxisWords, at: float) -> str:
    """The time of day at a place on the axis; empty if the axis has none."""
    if words.by_step or not words.clock:
        return ""
    moment = dt.datetime.fromtimestamp(at, dt.timezone.utc).astimezone()
    return f"{moment:%H:%M:%S}"


def axis_line(area: Area, words: AxisWords, cursor: float | None = None, right: int = 0) -> Line:
    """The labels under a plot, each below its place; if two would touch, only the first is shown.

    Args:
        area: the plot.
        words: how places are labeled.
        cursor: a place that is always labeled, whatever it hides.
        right: empty cells to the right of the plot.
    """
    text = [" "] * area.cells
    if cursor is not None and (cell := area.cell(cursor)) is not None:
        text[cell] = "▲"
    for at, label in ticks(area, words):
        x = round((at - area.since) / area.width * (area.cells - 1))
        start = min(max(0, x - len(label) // 2), area.cells - len(label))
        around = text[max(0, start - 1) : start + len(label) + 1]
        if start < 0 or any(character != " " for character in around):
            continue
        text[start : start + len(label)] = label
    before, mark, after = "".join(text).partition("▲")
    spans = [(before, "dim"), (mark, "strong"), (after, "dim")]
    return line(" " * area.left, *[one for one in spans if one[0]], " " * right)


_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 432000, 864000, 1728000, 4320000, 8640000, 31536000),
)

DIGITS = 12
"""Decimal places of ticks."""
SMALLEST = 10.0**-DIGITS
"""Values that are closer than this have the same tick."""


def nice_step(span: float, parts: int) -> float:
    """The smallest step of 1, 2, or 5 times a power of ten that divides `span` into ≤ `parts`."""
    rough = span / max(1, parts)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    for factor in (1, 2, 5, 10):
        if factor * magnitude >= rough * (1 - 1e-9):
            return factor * magnitude
    return 10 * magnitude


def value_ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most `most` if the steps allow."""
    if not (math.isfinite(low) and math.isfinite(high)) or high - low < SMALLEST:
        return [low] if math.isfinite(low) else []
    step = nice_step(high - low, max(1, most - 1))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, DIGITS) for index in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten, with 2 and 5 between them if there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(ticks) <= most:
            if len(ticks) >= 2:
                return ticks
            even = value_ticks(low, high, most)
            return even if len(even) >= 2 else [low, high]
    stride = -(-len(ticks) // most)
    return ticks[::stride]


def value_label(value: float, step: float) -> str:
    """A tick's label with only as many digits as distinguish it from its neighbors."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1e5 or magnitude < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 2
    return f"{value:.{min(digits, 6)}f}"


def time_step_s(span_s: float, most: int) -> int:
    """The step that divides a time axis into at most `most` intervals."""
    for step in _TIME_STEPS_S:
        if span_s / step <= max(1, most):
            return step
    return math.ceil(span_s / max(1, most))


def time_label(seconds: float) -> str:
    """A tick's label: `0`, `30s`, `12m`, `1h30`, `3d`; negative is before the right edge."""
    if seconds < 0:
        return "-" + time_label(-seconds)
    whole = round(seconds)
    if whole == 0:
        return "0"
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}d" + (f"{hours:02}h" if hours else "")
    if hours:
        return f"{hours}h" + (f"{minutes:02}" if minutes else "")
    if minutes:
        return f"{minutes}m" + (f"{rest:02}" if rest else "")
    return f"{rest}s"


def window_label(window_s: float | None) -> str:
    """The visible time span, in words."""
    return "whole run" if window_s is None else f"last {duration(window_s).removesuffix(' 00s')}"


class Scale(msgspec.Struct, frozen=True):
    """Maps values to dots: 0 is the first dot, `dots` - 1 the last."""

    low: float
    high: float
    dots: int

    def dot(self, value: float) -> int:
        """The dot nearest to a value, at most at an edge."""
        if self.high <= self.low:
            return (self.dots - 1) // 2
        share = (value - self.low) / (self.high - self.low)
        return round(min(1.0, max(0.0, share)) * (self.dots - 1))

    def dots_of(self, values: Sequence[float | None]) -> list[int | None]:
        """The dots nearest to these values; None stays None."""
        return [None if value is None else self.dot(value) for value in values]


class Reading(msgspec.Struct):
    """Parts of a line, most important first; a narrow chart drops the last ones."""

    columns: range
    """The dot columns under the cursor."""
    place: Line
    clock: str
    parts: list[Line] = msgspec.field(default_factory=list)

    def at(self, values: list[float | None], max_gap: int = 0) -> float | None:
        """The mean of the values under the cursor, or else the nearest within `max_gap` columns."""
        known = [v for x in self.columns if x < len(values) and (v := values[x]) is not None]
        if known:
            return sum(known) / len(known)
        for away in range(1, max_gap + 1):
            for x in (self.columns.start - away, self.columns.stop - 1 + away):
                if 0 <= x < len(values) and (value := values[x]) is not None:
                    return value
        return None

    def bad(self, columns: Columns) -> bool:
        """Whether a value under the cursor is not finite."""
        return any(x in columns.not_finite for x in self.columns)

    def value(
        self,
        name: str,
        raw: Columns,
        drawn: Columns,
        style: str,
        form: Callable[[float], str] = loss,
    ) -> None:
        """Add a curve's value; for a smoothed curve, also the raw value."""
        here, smooth = self.at(raw.mean, raw.max_gap // 2), self.at(drawn.mean, raw.max_gap // 2)
        if here is None or smooth is None:
            missing = "NaN" if self.bad(raw) else NOT_AVAILABLE
            self.parts.append(
                line((f"{name} ", "dim"), (missing, "bad" if missing == "NaN" else "dim"))
            )
            return
        spans = [(f"{name} ", "dim"), (form(smooth), style)]
        if drawn is not raw:
            spans.append((f" (raw {form(here)})", "dim"))
        self.parts.append(line(*spans))

    def spread(self, columns: Columns, form: Callable[[float], str] = loss) -> None:
        """Add the range from minimum to maximum."""
        low = [v for x in self.columns if x < len(columns.low) and (v := columns.low[x])]
        high = [v for x in self.columns if x < len(columns.high) and (v := columns.high[x])]
        if low and high and min(low) < max(high):
            self.parts.append(line((f"{form(min(low))} to {form(max(high))}", "dim")))

    def line(self, cells: int) -> Line:
        """The reading as far as it fits: the place, the values, and last the time of day."""
        clock = line((self.clock, "dim")) if self.clock else ()
        return fill([self.place, *self.parts, clock], cells, "  ")


def reading(words: AxisWords, at: float, cell: int) -> Reading:
    """An empty reading at a cell of a plot."""
    columns = range(cell * DOTS_X, (cell + 1) * DOTS_X)
    return Reading(columns, line((place_label(words, at), "strong")), clock_label(words, at))
