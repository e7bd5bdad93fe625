"""Charts several named figures over time: one plot per unit, stacked on one axis. Pure.

Each curve differs from its neighbors in its pattern and in the name at its right end, not only in
its color.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ddptop.charts.axis import Reading, Scale, value_label
from ddptop.charts.braille import DOTS_Y, Canvas
from ddptop.charts.frame import (
    Chart,
    Overlay,
    Painted,
    Plane,
    Plot,
    Sheet,
    break_columns,
    cells_of_names,
    draw,
    name_ends,
    tick_rows,
    value_range,
)
from ddptop.charts.smooth import smoothed_columns
from ddptop.charts.window import View
from ddptop.job.keys import key
from ddptop.job.series import Columns, DeviceHistory, Frame, Points, bin_points
from ddptop.style import Line, join, line
from ddptop_runner.base.units import celsius, loss, percent, size, step_time, watts
from ddptop_runner.model.snapshot import GpuSample

CURVE_STYLES = ("median", "chosen", "ok", "strong", "title", "dim")
"""Styles of one plot's curves, in order."""

PATTERNS = ((1, 0), (8, 2), (4, 2), (12, 4), (6, 4), (16, 2))
"""Dot columns drawn and skipped, for one plot's curves in order. Dashes are longer than gaps, so
that an uneven curve does not become scattered dots."""

LEAST_ROWS = 3
"""Minimum rows for a plot to be readable."""


class Curve(msgspec.Struct, frozen=True):
    """A figure over time."""

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
    band: bool = False
    """Whether the minimum and maximum within each sample are shown as a band."""
    cuts: Sequence[float] | None = None
    """Places on the axis where it is interrupted, such as its own restarts; None for all marks."""


class FiguresData(Frame, frozen=True):
    """Curves between two times."""

    curves: tuple[Curve, ...] = ()
    empty: str = "no data yet"
    """Text shown instead of curves."""


class FigureOptions(msgspec.Struct, frozen=True):
    """How the user wants to see the figures."""

    logarithmic: bool = False
    smoothing: float = 0.0
    first: int = 0
    """Index of the unit shown first; the others follow if there is room."""
    view: View = msgspec.field(default_factory=View)
    """The visible part of the axis, and the cursor."""


_FORMS: dict[str, Callable[[float], str]] = {
    "%": percent,
    "bytes": size,
    "W": watts,
    "°C": celsius,
    "s": step_time,
    "loss": loss,
}


def form_of(unit: str) -> Callable[[float], str]:
    """The formatter for values of a unit."""
    return _FORMS.get(unit, lambda value: f"{value:.4g} {unit}".rstrip())


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


def units_of(data: FiguresData) -> tuple[str, ...]:
    """The curves' distinct units, in order."""
    return tuple(dict.fromkeys(curve.unit for curve in data.curves))


class _Drawn(msgspec.Struct, frozen=True):
    """A curve in dot columns, with the style and pattern that distinguish it from its neighbors."""

    curve: Curve
    raw: Columns
    columns: Columns
    style: str
    pattern: tuple[int, int]
    breaks: frozenset[int] = frozenset()
    """Dot columns where it is interrupted."""


def _in_columns(
    curves: Sequence[Curve],
    first: int,
    sheet: Sheet,
    weight: float,
    marks: Sequence[tuple[float, str]],
) -> list[_Drawn]:
    found = []
    part = sheet.since, sheet.until, sheet.dots
    for place, curve in enumerate(curves):
        cuts = [at for at, _ in marks] if curve.cuts is None else curve.cuts
        breaks = break_columns([(at, "") for at in cuts], *part)
        raw = bin_points(curve.points, *part, cuts)
        drawn = smoothed_columns(raw, weight, breaks)
        style = curve.style or CURVE_STYLES[(first + place) % len(CURVE_STYLES)]
        found.append(_Drawn(curve, raw, drawn, style, PATTERNS[place % len(PATTERNS)], breaks))
    return found


def _plots(units: Sequence[str], first: int, rows: int) -> list[tuple[str, int]]:
    """The units that fit, with their rows, in the order of the data."""
    number = min(len(units), max(1, rows // (LEAST_ROWS + 1)))
    turned = [*units[first % len(units) :], *units[: first % len(units)]]
    chosen = [unit for unit in units if unit in turned[:number]]
    free = rows - (number - 1)
    each, more = divmod(free, number)
    return [(unit, each + (place < more)) for place, unit in enumerate(chosen)]


def _axis(drawn: Sequence[_Drawn], rows: int, logarithmic: bool) -> Scale:
    """The value axis of one plot."""
    values = [
        value
        for one in drawn
        for part in ((one.raw.low, one.raw.high) if one.curve.band else (one.raw.mean,))
        for value in part
        if value is not None
    ]
    logarithmic = logarithmic and any(value > 0 for value in values)
    low, high = value_range(values, logarithmic)
    if not logarithmic:
        least = [one.curve.least for one in drawn if one.curve.least is not None]
        most = [one.curve.most for one in drawn if one.curve.most is not None]
        low = min([low, *least]) if values else min(least, default=low)
        high = max([high, *most]) if values else max(most, default=high)
        if least and values and min(values) >= min(least):
            low = min(least)
        if most and values and max(values) <= max(most):
            high = max(most)
    return Scale(low, max(high, low + 1e-12), rows * DOTS_Y, logarithmic)


def draw_figures(data: FiguresData, options: FigureOptions, width: int, height: int) -> Chart:
    """Draw the figures in exactly `height` lines of `width` cells."""
    known = any(curve.points.t for curve in data.curves)
    return draw(
        data,
        options.view,
        width,
        height,
        lambda sheet: _paint(sheet, data, options),
        empty=None if known else data.empty,
        names=cells_of_names(width, [curve.name for curve in data.curves]),
    )


def _paint(sheet: Sheet, data: FiguresData, options: FigureOptions) -> Painted:
    units = units_of(data)
    drawn: dict[str, list[_Drawn]] = {}
    plots: list[Plot] = []
    for unit, rows in _plots(units, options.first, sheet.rows):
        curves = [curve for curve in data.curves if curve.unit == unit]
        first = data.curves.index(curves[0])
        drawn[unit] = _in_columns(curves, first, sheet, options.smoothing, data.marks)
        axis = _axis(drawn[unit], rows, options.logarithmic)
        binary = 1024.0 ** int(math.log(max(axis.high, 1.0), 1024))
        labels = tick_rows(axis, rows, _tick_form(unit), binary if unit == "bytes" else 1.0)
        plots.append(_plot(Plane(Canvas(sheet.cells, rows), axis), drawn[unit], labels, sheet))
    return Painted(plots, _notes(drawn, units), lambda found: _read(found, drawn))


def _plot(plane: Plane, drawn: Sequence[_Drawn], labels: dict[int, str], sheet: Sheet) -> Plot:
    """Paint the curves of one unit, with their names at the right."""
    overlay = Overlay()
    styles: list[str] = []
    for place, one in enumerate(drawn):
        styles += ["band", one.style]
        mine = replace(plane, breaks=one.breaks)
        if one.curve.band:
            mine.band(one.columns, 2 * place)
        mine.curve(one.columns, 2 * place + 1, one.pattern)
        overlay.cross(plane.canvas, one.raw)
    named = [(one.curve.name, one.columns, one.style) for one in drawn]
    ends = name_ends(plane, named) if sheet.names else {}
    return Plot(plane.canvas, labels, styles, overlay, ends)


def _notes(drawn: dict[str, list[_Drawn]], units: Sequence[str]) -> list[Line]:
    """Legends: each curve's current value and what did not fit, then ever shorter versions."""
    parts: list[Line] = []
    for unit, curves in drawn.items():
        for one in curves:
            known = [value for value in one.raw.mean if value is not None]
            mark = "━" if one.pattern == PATTERNS[0] else "╍"
            value = form_of(unit)(known[-1]) if known else "n/a"
            parts.append(line((f"{mark} ", one.style), (f"{one.curve.name} ", "dim"), value))
    hidden = len(units) - len(drawn)
    more = line((f"{hidden} more: press {key('chart.mode')}", "dim")) if hidden else ()
    return [join([*parts[:number], more], "  ") for number in range(len(parts), -1, -1)]


def _read(found: Reading, drawn: dict[str, list[_Drawn]]) -> None:
    """Add the values under the cursor."""
    for unit, curves in drawn.items():
        for one in curves:
            found.value(one.curve.name, one.raw, one.columns, one.style, form_of(unit))


LEAST_SPAN_S = 900.0
"""A history of devices is drawn over at least this time."""

NOTHING = Points([], [], [], [])


def figures_of(gpu: GpuSample, history: DeviceHistory) -> FiguresData:
    """Utilization, memory, power against its limit, and temperature.

    Figures that the driver does not report have no curve.
    """
    known = history.figures
    curves = (
        Curve("util", known.get("util", NOTHING), "%", 0.0, 100.0),
        Curve("memory", known.get("memory", NOTHING), "bytes", 0.0, gpu.mem_total_bytes),
        Curve("power", known.get("power", NOTHING), "W", 0.0, gpu.power_limit_w),
        Curve("temperature", known.get("temperature", NOTHING), "°C"),
    )
    recorded = tuple(curve for curve in curves if curve.points.t)
    return FiguresData(
        recorded,
        since=min(history.since, history.until - LEAST_SPAN_S),
        until=history.until,
        marks=history.marks,
        watched=True,
        empty="no history yet: recording starts now",
    )


def device_curves(device: GpuSample, figures: Mapping[str, Points]) -> Sequence[Curve]:
    """A device's load, memory, and power, each with its limit at the top."""
    most = {
        "util": ("GPU", "%", 100.0),
        "memory": ("GPU mem", "bytes", device.mem_total_bytes),
        "power": ("power", "W", device.power_limit_w),
    }
    return [
        Curve(title, figures[name], unit, least=0.0, most=None if top is None else float(top))
        for name, (title, unit, top) in most.items()
        if name in figures
    ]


def unit_of(what: str) -> str:
    """The unit of a scalar: only losses are formatted as such, so that an epoch is `6`."""
    return "loss" if "loss" in what.lower() else ""
