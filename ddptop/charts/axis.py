"""The axes of charts: the visible range and its cursor, round ticks, and dots of values. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from ddptop.charts.braille import DOTS_X
from ddptop.job.series import Columns, Frame
from ddptop.style import Line, fill, line, merged
from ddptop_runner.base.units import NOT_AVAILABLE, duration, loss

Axis = Literal["time", "step"]
AXES: tuple[Axis, ...] = ("time", "step")

TIME_SPANS: tuple[float, ...] = (
    *(10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 14400, 43200),
    *(86400, 172800, 432000, 864000, 2592000, 7776000, 31536000),
)
"""Spans in seconds at which zooming stops."""

STEP_SPANS: tuple[float, ...] = tuple(f * 10.0**e for e in range(1, 10) for f in (1, 2, 5))
"""Spans in steps at which zooming stops."""

_EDGE = 0.95
"""Zooming this far to the right keeps following the newest data."""


class View(msgspec.Struct, frozen=True):
    """A part of the axis, in seconds or in steps."""

    axis: Axis = "time"
    span: float | None = None
    """How much is visible; None for everything."""
    right: float | None = None
    """The right edge; None to follow the newest data."""
    cursor: float | None = None
    """Where values are read; None for no cursor."""


class Area(msgspec.Struct, frozen=True):
    """Where a chart was drawn: the plot's cells and the part of the axis in them."""

    left: int
    """The plot's first cell."""
    cells: int
    since: float
    until: float
    first: float
    """Start of all available data."""
    last: float
    """End of all available data."""

    @property
    def width(self) -> float:
        """How much of the axis is visible."""
        return max(1e-9, self.until - self.since)

    def cell(self, at: float) -> int | None:
        """The cell of a place on the axis, counted from the plot's first; None if outside."""
        if not self.since <= at <= self.until:
            return None
        return min(self.cells - 1, int((at - self.since) / self.width * self.cells))

    def at(self, cell: int) -> float:
        """The place on the axis at the middle of a cell."""
        inside = min(self.cells - 1, max(0, cell))
        return self.since + (inside + 0.5) / self.cells * self.width


def visible(view: View, first: float, last: float) -> tuple[float, float]:
    """The part of the axis between `first` and `last` that a view shows."""
    if view.span is None:
        return first, last
    if view.right is None:
        # when following, the chart is full from the first sample on
        return max(min(first, last - 1), last - view.span), last
    return view.right - view.span, view.right


def zoomed(view: View, area: Area, direction: int, at: float | None = None) -> View:
    """The view zoomed in (1) or out (-1).

    Args:
        view: the current view.
        area: what it shows.
        direction: 1 to zoom in, -1 to zoom out.
        at: the place that stays fixed; None for the cursor, or without one, the right edge.
    """
    spans = TIME_SPANS if view.axis == "time" else STEP_SPANS
    now = area.width
    if direction > 0:
        smaller = [span for span in spans if span < now * 0.99]
        if not smaller:
            return view
        span = smaller[-1]
    else:
        span = next((one for one in spans if one > now * 1.01), spans[-1])
        if span >= (area.last - area.first) * 0.99:
            return replace(view, span=None, right=None)
    anchor = view.cursor if at is None else at
    if anchor is None or area.cell(anchor) is None:
        return replace(view, span=span)
    share = (anchor - area.since) / now
    if share > _EDGE and view.right is None:
        return replace(view, span=span)
    return _inside(replace(view, span=span, right=anchor + (1 - share) * span), area)


def _inside(view: View, area: Area) -> View:
    """The view moved to where there is data; at the end, it follows the newest data."""
    if view.span is None or view.right is None:
        return view
    right = max(view.right, area.first + view.span)
    return replace(view, right=None if right >= area.last - view.span * 0.005 else right)


def panned(view: View, area: Area, cells: int) -> View:
    """The view moved along the axis; a view of everything does not move."""
    if view.span is None:
        return view
    return _inside(replace(view, right=area.until + cells / area.cells * area.width), area)


def cursor_moved(view: View, area: Area, cells: int) -> View:
    """The view with its cursor moved by cells; past an edge, the view moves along.

    A new cursor appears at the right edge when moving left, or at the left edge otherwise.
    """
    here = None if view.cursor is None else area.cell(view.cursor)
    if here is None:
        return replace(view, cursor=area.at(area.cells - 1 if cells < 0 else 0))
    target = here + cells
    if 0 <= target < area.cells:
        return replace(view, cursor=area.at(target))
    beyond = target if target < 0 else target - area.cells + 1
    moved = panned(view, area, beyond)
    since, until = visible(moved, area.first, area.last)
    there = replace(area, since=since, until=until)
    return replace(moved, cursor=there.at(min(area.cells - 1, max(0, target))))


TICK_CELLS = 10
"""Cells that a tick takes, including the space next to it."""


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


def ticks(area: Area, data: Frame, view: View) -> list[tuple[float, str]]:
    """Places on the axis with their labels, most important first.

    Times count from the start of the data, or back from the newest if the view follows it.
    """
    most = max(1, area.cells // TICK_CELLS)
    if data.by_step:
        apart = max(1.0, nice_step(area.width, most))
        start = math.ceil(area.since / apart - 1e-9)
        end = math.floor(area.until / apart + 1e-9)
        return [(i * apart, step_label(i * apart, apart)) for i in range(start, end + 1)]
    apart = float(time_step_s(area.width, most))
    if view.span is not None and view.right is None:
        back = [index * apart for index in range(1, int(area.width / apart + 1e-9) + 1)]
        labels = [(area.until - offset, time_label(-offset)) for offset in back]
        return [(area.until, "end" if data.ended else "now"), *labels]
    zero, first = data.extent[0], "first seen" if data.watched else "start"
    start = math.ceil((area.since - zero) / apart - 1e-6)
    end = math.floor((area.until - zero) / apart + 1e-6)
    return [
        (zero + i * apart, exact_label(i * apart, apart) if i else first)
        for i in range(start, end + 1)
    ]


def place_label(data: Frame, at: float) -> str:
    """A place on the axis in words: the time since the start, or the step."""
    if data.by_step:
        return f"step {max(0, round(at)):,}"
    text = duration(at - data.extent[0])
    return f"{text} after first seen" if data.watched else f"{text} in"


def clock_label(data: Frame, at: float) -> str:
    """The time of day at a place on the axis; empty if places are no unix seconds."""
    if data.by_step or data.extent[0] <= 1e8:
        return ""
    moment = dt.datetime.fromtimestamp(at, dt.timezone.utc).astimezone()
    return f"{moment:%H:%M:%S}"


def axis_line(area: Area, data: Frame, view: View, right: int = 0) -> Line:
    """The labels under a plot.

    Args:
        area: the plot.
        data: the axis.
        view: its visible part, with the cursor.
        right: empty cells to the right of the plot.
    """
    cursor = None if view.cursor is None else area.cell(view.cursor)
    labels = [
        (round((at - area.since) / area.width * (area.cells - 1)), label)
        for at, label in ticks(area, data, view)
    ]
    return line(" " * area.left, *label_line(area.cells, cursor, labels), " " * right)


def label_line(cells: int, pointer: int | None, labels: Sequence[tuple[int, str]]) -> Line:
    """Labels, each below its cell; if two would touch, only the first is shown.

    The pointer is always marked, whatever it hides.
    """
    text = [" "] * cells
    if pointer is not None:
        text[pointer] = "▲"
    for x, label in labels:
        start = min(max(0, x - len(label) // 2), cells - len(label))
        around = text[max(0, start - 1) : start + len(label) + 1]
        if start >= 0 and all(character == " " for character in around):
            text[start : start + len(label)] = label
    before, mark, after = "".join(text).partition("▲")
    return merged([(before, "dim"), (mark, "strong"), (after, "dim")])


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
    if not (whole := round(seconds)):
        return "0"
    first, _, rest = duration(whole).partition(" ")
    if rest.startswith("00"):
        return first
    return first + (rest if first.endswith("d") else rest[:-1])


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
            is_bad = any(x in raw.not_finite for x in self.columns)
            missing = "NaN" if is_bad else NOT_AVAILABLE
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
        first, end = self.columns.start, self.columns.stop
        low = [v for v in columns.low[first:end] if v is not None]
        high = [v for v in columns.high[first:end] if v is not None]
        if low and high and min(low) < max(high):
            self.parts.append(line((f"{form(min(low))} to {form(max(high))}", "dim")))

    def line(self, cells: int) -> Line:
        """The reading as far as it fits: the place, the values, and last the time of day."""
        clock = line((self.clock, "dim")) if self.clock else ()
        return fill([self.place, *self.parts, clock], cells, "  ")


def reading(data: Frame, at: float, cell: int) -> Reading:
    """An empty reading at a cell of a plot."""
    columns = range(cell * DOTS_X, (cell + 1) * DOTS_X)
    return Reading(columns, line((place_label(data, at), "strong")), clock_label(data, at))
