"""The loss chart as lines of text: axes, braille curves, restarts and values that are not finite.

The default view is the ranks' median on a dim band from the least to the greatest rank, and above
it each rank that lies apart, in the alert style. Eight lines in eight colours would share cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ddptop.tui.render import scale
from ddptop.tui.render.braille import DOTS_X, DOTS_Y, Canvas
from ddptop.tui.render.series import ChartData, Columns, across, bin_points, outliers
from ddptop.tui.render.text import Line, line, wrap
from ddptop.tui.render.units import deviation, loss, ranks
from ddptop_runner.balance.imbalance import LOSS_APART

ChartMode = Literal["median", "ranks", "rank"]
MODES: tuple[ChartMode, ...] = ("median", "ranks", "rank")

GUTTER = 8
_BAND, _OTHER, _MEDIAN, _OUTLIER, _CHOSEN = range(5)
_STYLE = {_BAND: "band", _OTHER: "dim", _MEDIAN: "median", _OUTLIER: "bad", _CHOSEN: "chosen"}
_CLIP_FACTOR = 4.0
"""Values this many spreads above the 98th percentile are drawn at the top edge."""


@dataclass(frozen=True)
class ChartOptions:
    """How the person wants the chart."""

    mode: ChartMode = "median"
    rank: int = 0
    """The chosen rank."""
    logarithmic: bool = False


@dataclass(frozen=True)
class _Plot:
    """Everything needed to draw, in dot columns."""

    ranks: dict[int, Columns]
    apart: dict[int, float]
    middle: Columns
    """Median and band of the ranks that do not lie apart."""
    breaks: frozenset[int]
    """Columns in which a new attempt starts: curves do not cross them."""


def _plot(data: ChartData, dots: int) -> _Plot:
    ranks = {
        rank: bin_points(points, data.since, data.until, dots)
        for rank, points in sorted(data.series.items())
    }
    apart = outliers(ranks, dots)
    healthy = [columns for rank, columns in ranks.items() if rank not in apart]
    factor = dots / max(1e-9, data.until - data.since)
    breaks = frozenset(int((at - data.since) * factor) for at, _ in data.marks)
    return _Plot(ranks, apart, across(healthy, dots), breaks)


def _shown(plot: _Plot, options: ChartOptions) -> list[float]:
    """Every value that will be drawn."""
    drawn: list[Columns] = [plot.middle]
    if options.mode == "rank" and options.rank in plot.ranks:
        drawn.append(plot.ranks[options.rank])
    values = [v for columns in drawn for part in (columns.low, columns.high) for v in part]
    lines = plot.ranks if options.mode == "ranks" else plot.apart
    values += [value for rank in lines for value in plot.ranks[rank].mean]
    return [value for value in values if value is not None]


def value_range(values: list[float], logarithmic: bool) -> tuple[float, float]:
    """The value axis: everything but rare spikes, and never empty."""
    if logarithmic:
        values = [value for value in values if value > 0]
    if not values:
        return (0.1, 1.0) if logarithmic else (0.0, 1.0)
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    usual_low = ordered[int(0.02 * (len(ordered) - 1))]
    usual_high = ordered[int(0.98 * (len(ordered) - 1))]
    if not logarithmic and usual_high > usual_low:
        spread = usual_high - usual_low
        high = min(high, usual_high + _CLIP_FACTOR * spread)
        low = max(low, usual_low - _CLIP_FACTOR * spread)
    if high <= low:
        margin = abs(low) * 0.05 or 0.5
        return (low / 1.05, high * 1.05) if logarithmic else (low - margin, high + margin)
    if logarithmic:
        return low, high
    margin = (high - low) * 0.03
    return low - margin, high + margin


def _curve(canvas: Canvas, axis: scale.Scale, plot: _Plot, columns: Columns, layer: int) -> None:
    """Connect a rank's means; a gap or a new attempt interrupts the line."""
    last: tuple[int, int] | None = None
    for x, value in enumerate(columns.mean):
        if x in plot.breaks:
            last = None
        if value is None:
            continue
        y = axis.dot(value)
        if last is not None and x - last[0] <= columns.reach:
            canvas.segment(*last, x, y, layer)
        else:
            canvas.dot(x, y, layer)
        last = (x, y)


def _apart_only(columns: Columns, middle: Columns) -> Columns:
    """Only where a rank is away from the median, so that it does not hide it elsewhere."""
    mean = [
        value
        if value is not None and (usual is None or abs(value - usual) > LOSS_APART / 2 * abs(usual))
        else None
        for value, usual in zip(columns.mean, middle.mean, strict=True)
    ]
    return replace(columns, mean=mean)


def _band(canvas: Canvas, axis: scale.Scale, plot: _Plot, columns: Columns) -> None:
    """Fill from least to greatest, also between samples that are no gap apart."""
    last: tuple[int, int, int] | None = None
    for x, (low, high) in enumerate(zip(columns.low, columns.high, strict=False)):
        if x in plot.breaks:
            last = None
        if low is None or high is None:
            continue
        bottom, top = axis.dot(low), axis.dot(high)
        canvas.column(x, bottom, top, _BAND)
        if last is not None and x - last[0] <= columns.reach:
            for between in range(last[0] + 1, x):
                share = (between - last[0]) / (x - last[0])
                canvas.column(
                    between,
                    round(last[1] + (bottom - last[1]) * share),
                    round(last[2] + (top - last[2]) * share),
                    _BAND,
                )
        last = (x, bottom, top)


def _draw(canvas: Canvas, axis: scale.Scale, plot: _Plot, options: ChartOptions) -> None:
    chosen = plot.ranks.get(options.rank)
    if options.mode == "rank" and chosen is not None:
        _band(canvas, axis, plot, chosen)
        if len(plot.ranks) > 1:
            _curve(canvas, axis, plot, plot.middle, _OTHER)
        _curve(canvas, axis, plot, chosen, _CHOSEN)
        return
    if options.mode == "ranks":
        for rank, columns in plot.ranks.items():
            layer = _CHOSEN if rank == options.rank else _OTHER
            _curve(canvas, axis, plot, columns, _OUTLIER if rank in plot.apart else layer)
        return
    _band(canvas, axis, plot, plot.middle)
    _curve(canvas, axis, plot, plot.middle, _MEDIAN)
    for rank in plot.apart:
        _curve(canvas, axis, plot, _apart_only(plot.ranks[rank], plot.middle), _OUTLIER)


def _tick_rows(axis: scale.Scale, rows: int) -> dict[int, str]:
    """Labels of the value axis by row from the top."""
    most = max(3, min(7, rows // 2))
    if axis.logarithmic:
        ticks = scale.log_ticks(axis.low, axis.high, most)
        labels = [f"{tick:.3g}" for tick in ticks]
    else:
        ticks = scale.value_ticks(axis.low, axis.high, most)
        if len(ticks) < 2:
            ticks = scale.value_ticks(axis.low, axis.high, 2 * most)
        step = ticks[1] - ticks[0] if len(ticks) > 1 else axis.high - axis.low
        labels = [scale.value_label(tick, step) for tick in ticks]
    return {
        rows - 1 - axis.dot(tick) // DOTS_Y: label
        for tick, label in zip(ticks, labels, strict=True)
    }


def _time_axis(data: ChartData, cells: int, gutter: int) -> Line:
    """Labels under the plot: time since the start, or before the right edge."""
    span = max(1.0, data.until - data.since)
    step = scale.time_step_s(span, cells // 10)
    text = [" "] * cells
    whole = data.window_s is None
    for index in range(int(span // step) + 1):
        offset = index * step
        x = round((offset if whole else span - offset) / span * (cells - 1))
        label = scale.time_label(offset if whole else -offset)
        if not offset:
            first = "first seen" if data.watched else "start"
            label = first if whole else ("end" if data.ended else "now")
        start = min(max(0, x - len(label) // 2), cells - len(label))
        if start < 0 or any(c != " " for c in text[max(0, start - 1) : start + len(label) + 1]):
            continue
        text[start : start + len(label)] = label
    return line(" " * gutter, ("".join(text), "dim"))


def _marks(data: ChartData, cells: int) -> dict[int, str]:
    span = max(1e-9, data.until - data.since)
    return {
        min(cells - 1, int((at - data.since) / span * cells)): label
        for at, label in data.marks
        if data.since <= at <= data.until
    }


def _plot_row(
    canvas: Canvas, y: int, label: str | None, marks: dict[int, str], bad: set[int], gutter: int
) -> Line:
    """One row: axis label, curves, and in the empty cells grid, restart marks, NaN marks."""
    spans: list[tuple[str, str]] = [(f"{label or '':>{gutter - 2}} ", "dim")]
    spans.append(("┤" if label else "│", "faint"))
    background = dict.fromkeys(marks, ("┊", "dim"))
    if y == 0:
        for x, text in marks.items():
            name = f" {text} "
            start = x + 1 if x + len(name) < canvas.columns else x - len(name)
            for offset, character in enumerate(name):
                background.setdefault(start + offset, (character, "dim"))
    for x, (character, layer) in enumerate(canvas.row(y)):
        if x in bad and y == canvas.rows - 1:
            span = ("✕", "bad")
        elif layer >= 0:
            span = (character, _STYLE[layer])
        else:
            span = background.get(x, ("┈" if label else " ", "faint"))
        if spans[-1][1] == span[1] and len(spans) > 2:
            spans[-1] = (spans[-1][0] + span[0], span[1])
        else:
            spans.append(span)
    return tuple(spans)


@dataclass(frozen=True)
class Chart:
    """A drawn chart."""

    lines: list[Line]
    note: Line
    """What the curves are, for the right end of the chart's title."""


def draw_chart(
    data: ChartData, options: ChartOptions, width: int, height: int, gutter: int = GUTTER
) -> Chart:
    """The chart in exactly `height` lines of `width` cells.

    `gutter` is the least width of the value axis; longer labels widen it.
    """
    cells, rows = width - gutter, height - 1
    if cells < 8 or rows < 2:
        return Chart([line(("too small for a chart", "dim"))][:height], ())
    if not any(points.t for points in data.series.values()):
        blank: list[Line] = [()] * height
        words = wrap(data.empty, min(width - 4, 72), rows)
        for place, text in enumerate(words, max(0, (rows - len(words)) // 2)):
            blank[place] = line((f"{text:^{width}}", "dim"))
        return Chart(blank, ())
    canvas = Canvas(cells, rows)
    plot = _plot(data, canvas.dots_x)
    values = _shown(plot, options)
    logarithmic = options.logarithmic and any(value > 0 for value in values)
    low, high = value_range(values, logarithmic)
    axis = scale.Scale(low, high, canvas.dots_y, logarithmic)
    _draw(canvas, axis, plot, options)
    labels = _tick_rows(axis, rows)
    if (needed := max(map(len, labels.values()), default=0) + 2) > gutter:
        return draw_chart(data, options, width, height, needed)
    marks = _marks(data, cells)
    bad = {x // DOTS_X for columns in plot.ranks.values() for x in columns.not_finite}
    lines = [_plot_row(canvas, y, labels.get(y), marks, bad, gutter) for y in range(rows)]
    note = _note(plot, options, max(values) if values and max(values) > high else None)
    return Chart([*lines, _time_axis(data, cells, gutter)], note)


def _note(plot: _Plot, options: ChartOptions, peak: float | None) -> Line:
    spans: list[tuple[str, str]] = []
    bad = [rank for rank, found in plot.ranks.items() if found.not_finite]
    if bad:
        spans += [(f"rank {ranks(bad)} ✕ NaN", "bad"), ("  ", "")]
    for rank, ratio in sorted(plot.apart.items(), key=lambda item: -abs(item[1]))[:3]:
        if rank not in bad:
            spans += [(f"rank {rank} {deviation(ratio)}", "bad"), ("  ", "")]
    if peak is not None:
        spans += [(f"peak {loss(peak)} cut", "warn"), ("  ", "")]
    number = len(plot.ranks)
    if options.mode == "rank":
        spans += [("━ ", "chosen"), (f"rank {options.rank}", "dim")]
        if number > 1:
            spans += [("  ━ median", "dim")]
    elif options.mode == "ranks":
        spans += [("━ ", "chosen"), (f"rank {options.rank}", "dim"), ("  ━ others", "dim")]
    elif number > 1:
        spans += [("━ ", "median"), ("median", "dim"), ("  ━ ", "band"), ("min to max", "dim")]
    return tuple(spans)
