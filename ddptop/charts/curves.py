"""Draws charts: one plot of curves per unit, stacked on one axis. Pure.

Where curves cross, the first one is in front. Each differs from its neighbors in its pattern or
in the name at its right end, not only in its color.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from ddptop.charts.axis import (
    Area,
    Reading,
    Scale,
    View,
    axis_line,
    reading,
    value_label,
    visible,
)
from ddptop.charts.braille import DOTS_X, DOTS_Y, Canvas
from ddptop.charts.frame import (
    GUTTER,
    MARKER,
    Chart,
    Plot,
    break_columns,
    cells_of_names,
    centered,
    tick_rows,
    value_range,
    without_top,
)
from ddptop.job.keys import key
from ddptop.job.series import Columns, Frame, Points, bin_points
from ddptop.style import Line, Span, join, line
from ddptop_runner.base.units import celsius, loss, percent, rate, size, step_time, watts

CURVE_STYLES = ("median", "chosen", "ok", "strong", "title", "dim")
"""Styles of one plot's curves, in order."""

SOLID = (1, 0)
PATTERNS = (SOLID, (8, 2), (4, 2), (12, 4), (6, 4), (16, 2))
"""Dot columns drawn and skipped, for one plot's curves in order. Dashes are longer than gaps, so
that an uneven curve does not become scattered dots."""

LEAST_ROWS = 3
"""Minimum rows for a plot to be readable."""
LEAST_CELLS, LEAST_CHART_ROWS = 8, 2
"""Below this size, there is no chart."""
WEIGHTS: tuple[float, ...] = (0.0, 0.6, 0.9, 0.97)
"""Selectable weights of the average so far at each value; 0 for no smoothing."""
USUAL_WEIGHT = WEIGHTS[1]
_MARKED_EVERY = 8
"""Evaluations closer than this many dot columns are a line without markers."""

ChartMode = Literal["median", "ranks", "rank"]
MODES: tuple[ChartMode, ...] = ("median", "ranks", "rank")


class ChartOptions(msgspec.Struct, frozen=True):
    """How the user wants to see a chart."""

    mode: ChartMode = "median"
    """Which ranks the loss chart shows."""
    rank: int = 0
    """The chosen rank."""
    logarithmic: bool = False
    smoothing: float = 0.0
    """Weight of the moving average; 0 for no smoothing."""
    view: View = msgspec.field(default_factory=View)
    """The visible part of the axis, and the cursor."""
    first: int = 0
    """Index of the unit shown first; the others follow if there is room."""


class Curve(msgspec.Struct, frozen=True):
    """A metric over time or steps."""

    name: str
    points: Points
    unit: str = ""
    """`%`, `bytes`, `W`, `°C`, `s`, `loss`, or another word; curves of one unit share a plot."""
    least: float | None = None
    """The value axis extends at least down to this; None for the lowest value."""
    most: float | None = None
    """The value axis extends at least up to this, such as a device's memory or power limit."""
    style: str = ""
    """Name of a style; if empty, it is chosen by order."""
    has_pattern: bool = True
    """Whether a pattern distinguishes it, not only its style and its name."""
    band: Literal["", "samples", "ranks"] = ""
    """Whether the range within each sample or across ranks is shown as a band."""
    named: bool = True
    """Whether it is in the legend and named at its end."""
    is_exact: bool = False
    """Whether it has no noise to smooth, such as a schedule or evaluations."""
    is_rare: bool = False
    """Whether its values are connected however far apart they are, and marked if they are few."""
    cuts: Sequence[float] | None = None
    """Places on the axis where it is interrupted, such as its own restarts; None for all marks."""


class Curves(Frame, frozen=True):
    """Curves between two times or steps."""

    curves: tuple[Curve, ...] = ()
    empty: str = "no data yet"
    """Text shown instead of curves."""
    notes: tuple[Line, ...] = ()
    """Problems, for the title."""
    fitted: bool = False
    """Whether high values that would flatten the rest are cut off."""


_FORMS: dict[str, Callable[[float], str]] = {
    "%": percent,
    "bytes": size,
    "W": watts,
    "°C": celsius,
    "s": step_time,
    "loss": loss,
    "steps/s": rate,
}


def form_of(unit: str) -> Callable[[float], str]:
    """The formatter for values of a unit."""
    return _FORMS.get(unit, lambda value: f"{value:.4g} {unit}".rstrip())


def unit_of(what: str) -> str:
    """The unit of a scalar: only losses are formatted as such, so that an epoch is `6`."""
    return "loss" if "loss" in what.lower() else ""


def _tick_form(unit: str) -> Callable[[float, float], str]:
    """The formatter for ticks of a unit."""
    if unit == "bytes":
        return lambda value, _: size(round(value)).replace(".0 ", " ") if value else "0"
    if unit == "s":
        return lambda value, _: step_time(value) if value else "0"
    if unit == "%":
        return lambda value, step: f"{value_label(value, step)}%"
    if unit in ("W", "°C"):
        return lambda value, step: f"{value_label(value, step)} {unit}"
    return value_label


def units_of(data: Curves) -> tuple[str, ...]:
    """The curves' distinct units, in order."""
    return tuple(dict.fromkeys(curve.unit for curve in data.curves))


# --- smoothing ----------------------------------------------------------------------------------


def next_weight(weight: float) -> float:
    """The next weight, wrapping around."""
    return WEIGHTS[(WEIGHTS.index(weight) + 1) % len(WEIGHTS)]


def smoothed(
    values: Sequence[float | None], weight: float, breaks: Collection[int] = ()
) -> list[float | None]:
    """The moving average of the values up to each one, as TensorBoard and W&B draw it.

    Each average is divided by the sum of its weights, so that the first values are not biased
    toward zero. A missing value stays missing and does not affect the average, which restarts at
    the indices in `breaks`, such as the first of an attempt.
    """
    total, seen = 0.0, 0.0
    found: list[float | None] = []
    for place, value in enumerate(values):
        if place in breaks:
            total, seen = 0.0, 0.0
        if value is None:
            found.append(None)
            continue
        total = weight * total + (1 - weight) * value
        seen = weight * seen + (1 - weight)
        found.append(total / seen)
    return found


# --- drawing ------------------------------------------------------------------------------------


class _Drawn(msgspec.Struct, frozen=True):
    """A curve in dot columns, with the style and pattern that distinguish it from its neighbors."""

    curve: Curve
    raw: Columns
    columns: Columns
    style: str
    pattern: tuple[int, int]
    breaks: frozenset[int]
    """Dot columns where it is interrupted."""

    @property
    def has_markers(self) -> bool:
        """Whether markers leave enough of the other curves visible."""
        known = sum(value is not None for value in self.raw.mean)
        return self.curve.is_rare and _MARKED_EVERY * known <= len(self.raw.mean)


class _Unit(msgspec.Struct, frozen=True):
    """The curves of one unit, drawn in one plot."""

    name: str
    rows: int
    drawn: Sequence[_Drawn]
    axis: Scale
    is_logarithmic: bool
    form: Callable[[float], str]
    """Formats a value in dot columns, which is a logarithm on a logarithmic axis."""

    @property
    def peak(self) -> str | None:
        """The highest value, if it is beyond the axis."""
        known = [value for one in self.drawn for value in one.raw.mean if value is not None]
        return self.form(max(known)) if known and max(known) > self.axis.high else None

    def labels(self) -> dict[int, str]:
        """Labels of the value axis by row from the top."""
        binary = 1024.0 ** int(math.log(max(self.axis.high, 1.0), 1024))
        return tick_rows(
            self.axis,
            self.rows,
            _tick_form(self.name),
            binary if self.name == "bytes" else 1.0,
            logarithmic=self.is_logarithmic,
        )


def draw_curves(
    data: Curves, options: ChartOptions, width: int, height: int, gutter: int = GUTTER
) -> Chart:
    """Draw the curves in exactly `height` lines of `width` cells.

    The value axis has at least `gutter` cells.
    """
    named = [curve.name for curve in data.curves if curve.named]
    names = cells_of_names(width, named) if len(named) > 1 else 0
    cells, rows, view = width - gutter - names, height - 1, options.view
    if cells < LEAST_CELLS or rows < LEAST_CHART_ROWS:
        return Chart([line(("too small for a chart", "dim")), *[()] * (height - 1)])
    if not any(curve.points.t for curve in data.curves):
        return Chart(centered(data.empty, width, height))
    since, until = (data.since, data.until) if view.span is None else visible(view, *data.extent)
    area = Area(gutter, cells, since, until, *data.extent)
    known = units_of(data)
    units = [
        _unit(name, share, area, data, options)
        for name, share in _plots(known, options.first, rows)
    ]
    plots = [_plot(unit, area, has_names=names > 0) for unit in units]
    texts = [text for plot in plots for text in plot.labels.values()]
    if (needed := max(map(len, texts), default=0) + 2) > gutter:
        return draw_curves(data, options, width, height, needed)
    cursor = None if view.cursor is None else area.cell(view.cursor)
    marks = {x: text for at, text in data.marks if (x := area.cell(at)) is not None}
    behind: dict[int, Span] = dict.fromkeys(marks, ("┊", "dim"))
    if cursor is not None:
        behind[cursor] = ("│", "strong")
    plots[0].name_marks(marks)
    lines: list[Line] = []
    for plot in plots:
        if lines:
            lines.append(line(" " * (gutter - 1), ("├" + "─" * cells, "faint")))
        lines += [plot.row(y, gutter, behind) for y in range(plot.canvas.rows)]
    lines.append(axis_line(area, data, view, names))
    found = None
    if cursor is not None and view.cursor is not None:
        found = reading(data, view.cursor, cursor)
        _read(found, units)
    notes = _legends(data, units, len(known) - len(units))
    return Chart(lines, notes, area, found, _scaling(data, options, units))


def _scaling(data: Curves, options: ChartOptions, units: Sequence[_Unit]) -> str:
    """In words, how the chart differs from measured values on a linear axis."""
    words = []
    if options.logarithmic:
        is_drawn = any(unit.is_logarithmic for unit in units)
        words.append("log scale" if is_drawn else "log scale: n/a (no positive values)")
    if options.smoothing and not all(curve.is_exact for curve in data.curves):
        words.append(f"smoothing {options.smoothing:g}")
    return ", ".join(words)


def _plots(units: Sequence[str], first: int, rows: int) -> list[tuple[str, int]]:
    """The units that fit, with their rows, in the order of the data."""
    number = min(len(units), max(1, rows // (LEAST_ROWS + 1)))
    turned = [*units[first % len(units) :], *units[: first % len(units)]]
    chosen = [unit for unit in units if unit in turned[:number]]
    free = rows - (number - 1)
    each, more = divmod(free, number)
    return [(unit, each + (place < more)) for place, unit in enumerate(chosen)]


def _unit(name: str, rows: int, area: Area, data: Curves, options: ChartOptions) -> _Unit:
    part = area.since, area.until, (dots := area.cells * DOTS_X)
    marks = [at for at, _ in data.marks]
    first = [curve.unit for curve in data.curves].index(name)
    curves = [curve for curve in data.curves if curve.unit == name]
    cuts = [marks if curve.cuts is None else curve.cuts for curve in curves]
    binned = [
        bin_points(curve.points, *part, mine) for curve, mine in zip(curves, cuts, strict=True)
    ]
    is_logarithmic = options.logarithmic and any(
        value is not None and value > 0 for columns in binned for value in columns.mean
    )
    drawn = []
    for place, (curve, raw) in enumerate(zip(curves, binned, strict=True)):
        if is_logarithmic:
            raw = _logarithms(raw)
        if curve.is_rare:
            raw = replace(raw, max_gap=dots)
        breaks = break_columns(cuts[place], area)
        weight = 0.0 if curve.is_exact else options.smoothing
        drawn.append(
            _Drawn(
                curve,
                raw,
                _smoothed(curve, raw, weight, breaks),
                curve.style or CURVE_STYLES[(first + place) % len(CURVE_STYLES)],
                PATTERNS[place % len(PATTERNS)] if curve.has_pattern else SOLID,
                breaks,
            )
        )
    low, high = _range(drawn, fitted=data.fitted, is_logarithmic=is_logarithmic)
    axis = Scale(low, max(high, low + 1e-12), rows * DOTS_Y)
    form = form_of(name)
    return _Unit(
        name,
        rows,
        drawn,
        axis,
        is_logarithmic,
        (lambda value: form(math.exp(value))) if is_logarithmic else form,
    )


def _logarithms(columns: Columns) -> Columns:
    """The columns on a logarithmic axis, without those whose mean has none."""
    means = [math.log(v) if v is not None and v > 0 else None for v in columns.mean]

    def ends(values: Sequence[float | None]) -> list[float | None]:
        known = zip(values, means, strict=True)
        return [mean if mean is None or not v or v < 0 else math.log(v) for v, mean in known]

    return replace(columns, low=ends(columns.low), mean=means, high=ends(columns.high))


def _smoothed(curve: Curve, raw: Columns, weight: float, breaks: Collection[int]) -> Columns:
    """The moving average, and that of the band across ranks; one rank's range is as measured."""
    if weight <= 0:
        return raw
    drawn = replace(raw, mean=smoothed(raw.mean, weight, breaks))
    if curve.band != "ranks":
        return drawn
    low, high = smoothed(raw.low, weight, breaks), smoothed(raw.high, weight, breaks)
    return replace(drawn, low=low, high=high)


def _range(drawn: Sequence[_Drawn], *, fitted: bool, is_logarithmic: bool) -> tuple[float, float]:
    """The range of the value axis. A limit that all values keep is its edge."""
    values: list[float] = []
    for one in drawn:
        parts = (one.raw.low, one.raw.high) if one.curve.band else (one.raw.mean,)
        known = [value for part in parts for value in part if value is not None]
        values += without_top(known) if fitted and not is_logarithmic else known
    low, high = value_range(values)
    if is_logarithmic:
        return low, high
    least = [one.curve.least for one in drawn if one.curve.least is not None]
    most = [one.curve.most for one in drawn if one.curve.most is not None]
    if least:
        low = min(least) if not values or min(values) >= min(least) else min(low, *least)
    if most:
        high = max(most) if not values or max(values) <= max(most) else max(high, *most)
    return low, high


def _below(columns: Columns, high: float) -> Columns:
    """The columns without a start above the axis, which would be a line along the upper edge."""
    first = next((x for x, v in enumerate(columns.mean) if v is not None and v <= high), 0)
    parts = {
        name: [*([None] * first), *getattr(columns, name)[first:]]
        for name in ("low", "mean", "high")
    }
    return replace(columns, **parts)


_SHADE, _BETWEEN, _FIRST = range(3)
"""Layers: bands and measured values behind smoothed ones, lines between markers, and curves."""


def _plot(unit: _Unit, area: Area, *, has_names: bool) -> Plot:
    """Paint the curves of one unit, with their names at the right."""
    styles = ["band", "dim", *(one.style for one in reversed(unit.drawn))]
    plot = Plot(Canvas(area.cells, unit.rows), unit.axis, unit.labels(), styles)
    for place, one in enumerate(reversed(unit.drawn)):
        raw, columns = (_below(part, unit.axis.high) for part in (one.raw, one.columns))
        if one.curve.band:
            plot.band(columns, _SHADE, one.breaks)
        elif one.columns is not one.raw and one.curve.named:
            plot.curve(raw, _SHADE, one.breaks)
        if one.has_markers:
            plot.curve(columns, _BETWEEN, one.breaks)
            plot.mark(columns, one.style)
        else:
            plot.curve(columns, _FIRST + place, one.breaks, one.pattern)
        plot.cross(one.raw)
    if has_names:
        named = [one for one in unit.drawn if one.curve.named]
        plot.name_ends([(one.curve.name, one.columns, one.style) for one in named])
    return plot


def _legends(data: Curves, units: Sequence[_Unit], hidden: int) -> list[Line]:
    """Legends: problems, each curve's current value, and what did not fit, then ever shorter."""
    parts = list(data.notes)
    parts += [line((f"peak {unit.peak} clipped", "dim")) for unit in units if unit.peak]
    least = len(parts)
    for unit in units:
        for one in unit.drawn:
            if not one.curve.named:
                continue
            known = [value for value in one.raw.mean if value is not None]
            mark = MARKER if one.has_markers else "━" if one.pattern == SOLID else "╍"
            value = unit.form(known[-1]) if known else "n/a"
            parts.append(line((f"{mark} ", one.style), (f"{one.curve.name} ", "dim"), value))
    if any(curve.band == "ranks" for curve in data.curves):
        parts.append(line(("░ ", "band"), ("min to max", "dim")))
    more = line((f"{hidden} more: press {key('chart.mode')}", "dim")) if hidden else ()
    return [join([*parts[:number], more], "  ") for number in range(len(parts), least - 1, -1)]


def _read(found: Reading, units: Sequence[_Unit]) -> None:
    """Add the values under the cursor."""
    for unit in units:
        for one in unit.drawn:
            if one.curve.named:
                found.value(one.curve.name, one.raw, one.columns, one.style, unit.form)
            if one.curve.band == "ranks":
                found.spread(one.columns, unit.form)
