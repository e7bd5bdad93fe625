"""The loss chart as lines of text: axes, braille curves, restarts, and non-finite values.

The default view is the ranks' median on a dim band from the least to the greatest rank, and above
it each rank that lies apart, in the alert style. Eight lines in eight colours would share cells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from ddptop.charts import scale
from ddptop.charts.axis import AxisWords, axis_line, axis_words
from ddptop.charts.braille import DOTS_X, Canvas
from ddptop.charts.plot import (
    Behind,
    Overlay,
    Plane,
    break_columns,
    mark_cells,
    plot_row,
    tick_rows,
    value_range,
)
from ddptop.charts.reading import Reading, reading
from ddptop.charts.smooth import smoothed
from ddptop.charts.view import Area, View, visible
from ddptop.view.series import ChartData, Columns, across, bin_points, ratios
from ddptop.view.text import Line, line, wrap
from ddptop.view.text import width as cells_in
from ddptop_runner.base.units import deviation, loss, name_ranks

__all__ = ["GUTTER", "MODES", "Chart", "ChartMode", "ChartOptions", "draw_chart", "value_range"]

ChartMode = Literal["median", "ranks", "rank"]
MODES: tuple[ChartMode, ...] = ("median", "ranks", "rank")

GUTTER = 8
HIDES = 0.25
"""Of the median: a line that is nearer would hide it."""
_BAND, _RAW, _OTHER, _MEDIAN, _OUTLIER, _CHOSEN = range(6)
_STYLES = ("band", "band", "dim", "median", "bad", "chosen")
"""Of each layer."""


class ChartOptions(msgspec.Struct, frozen=True):
    """How the person wants the chart."""

    mode: ChartMode = "median"
    rank: int = 0
    """The chosen rank."""
    logarithmic: bool = False
    smoothing: float = 0.0
    """Weight of the moving average; 0 is not smoothed."""
    view: View = msgspec.field(default_factory=View)
    """What part of the axis is shown, and where the cursor is."""


class Plot(msgspec.Struct, frozen=True):
    """Everything needed to draw, in dot columns."""

    ranks: dict[int, Columns]
    apart: dict[int, float]
    middle: Columns
    """Median and band of the ranks that do not lie apart."""
    number: int
    """How many ranks there are."""
    breaks: frozenset[int]
    """Columns in which a new attempt starts: curves do not cross them."""


def make_plot(data: ChartData, since: float, until: float, dots: int) -> Plot:
    """Reduce the samples between two places of the axis to columns."""
    cuts = [at for at, _ in data.marks]
    ranks = {
        rank: bin_points(points, since, until, dots, cuts)
        for rank, points in sorted(data.series.items())
    }
    breaks = break_columns(data.marks, since, until, dots)
    if data.middle is not None:
        middle = bin_points(data.middle, since, until, dots, cuts)
        number = data.number if data.number is not None else len(ranks)
        return Plot(ranks, dict(data.apart), middle, number, breaks)
    apart = ratios(ranks, data.odd, dots)
    healthy = [columns for rank, columns in ranks.items() if rank not in apart]
    return Plot(ranks, apart, across(healthy, dots), len(ranks), breaks)


Plotter = Callable[[ChartData, float, float, int], Plot]
"""What `make_plot` does."""


class LastPlot:
    """Makes a plot, and gives it again while the same is asked, as for another height or cursor."""

    def __init__(self) -> None:
        self._known: tuple[ChartData, tuple[float, float, int], Plot] | None = None

    def __call__(self, data: ChartData, since: float, until: float, dots: int) -> Plot:
        """See `make_plot`."""
        part = since, until, dots
        if self._known is None or self._known[0] is not data or self._known[1] != part:
            self._known = data, part, make_plot(data, *part)
        return self._known[2]


def _smooth(columns: Columns, plot: Plot, options: ChartOptions) -> Columns:
    if options.smoothing <= 0:
        return columns
    return replace(columns, mean=smoothed(columns.mean, options.smoothing, plot.breaks))


def _shown(plot: Plot, options: ChartOptions) -> list[float]:
    """Every value that will be drawn."""
    drawn: list[Columns] = [plot.middle]
    if options.mode == "rank" and options.rank in plot.ranks:
        drawn.append(plot.ranks[options.rank])
    values = [v for columns in drawn for part in (columns.low, columns.high) for v in part]
    lines = plot.ranks if options.mode == "ranks" else plot.apart
    values += [value for rank in lines if rank in plot.ranks for value in plot.ranks[rank].mean]
    return [value for value in values if value is not None]


def _apart_only(columns: Columns, middle: Columns) -> Columns:
    """Only where a rank is away from the median, so that it does not hide it elsewhere."""
    mean = [
        value
        if value is not None and (usual is None or abs(value - usual) > HIDES * abs(usual))
        else None
        for value, usual in zip(columns.mean, middle.mean, strict=True)
    ]
    return replace(columns, mean=mean)


def _draw(plane: Plane, plot: Plot, options: ChartOptions) -> list[tuple[str, Columns, str]]:
    """Draw the curves; those that a name belongs to at their end, with it and its style."""
    chosen = plot.ranks.get(options.rank)
    named: list[tuple[str, Columns, str]] = []
    if options.mode == "rank" and chosen is not None:
        plane.band(chosen, _BAND)
        if plot.number > 1:
            plane.curve(_smooth(plot.middle, plot, options), _OTHER, (3, 3))
        plane.curve(_smooth(chosen, plot, options), _CHOSEN)
        return named
    if options.mode == "ranks":
        for rank, columns in plot.ranks.items():
            layer = _CHOSEN if rank == options.rank else _OTHER
            layer = _OUTLIER if rank in plot.apart else layer
            drawn = _smooth(columns, plot, options)
            if drawn is not columns and layer != _OTHER:
                plane.curve(columns, _RAW)
            plane.curve(drawn, layer)
            if layer != _OTHER:
                named.append((f"rank {rank}", drawn, _STYLES[layer]))
        return named
    plane.band(plot.middle, _BAND)
    middle = _smooth(plot.middle, plot, options)
    plane.curve(middle, _MEDIAN)
    for rank in plot.apart:
        if rank in plot.ranks:
            columns = plot.ranks[rank]
            drawn = _apart_only(_smooth(columns, plot, options), middle)
            if options.smoothing > 0:
                plane.curve(_apart_only(columns, plot.middle), _RAW)
            plane.curve(drawn, _OUTLIER)
            named.append((f"rank {rank}", drawn, "bad"))
    return named


def _name_ends(
    overlay: Overlay, plane: Plane, named: list[tuple[str, Columns, str]], keep: set[int]
) -> None:
    """Write each curve's name at its end, where there is room above or below it."""
    canvas = plane.canvas
    for name, columns, style in named:
        ends = [(x, value) for x, value in enumerate(columns.mean) if value is not None]
        if not ends:
            continue
        x, value = ends[-1]
        row = canvas.rows - 1 - plane.axis.dot(value) // 4
        start = min(x // DOTS_X + 1, canvas.columns) - len(name)
        for y in (row + away for away in (-1, 1, -2, 2, -3, 3)):
            if y not in keep and overlay.is_free(start, y, len(name), canvas, _RAW):
                overlay.write(start, y, name, style)
                break


class Chart(msgspec.Struct, frozen=True):
    """A drawn chart."""

    lines: list[Line]
    note: Line
    """What the curves are, for the right end of the chart's title."""
    area: Area | None = None
    """Where the plot is; None while nothing is drawn."""
    reading: Reading | None = None
    """What the cursor reads."""
    logarithmic: bool = False
    """Whether the values are: without one above zero they cannot be."""
    shorter: tuple[Line, ...] = ()
    """The note with less and less in it, for titles with little room."""

    def fitting(self, room: int) -> Line:
        """As much of the note as has room; the last that there is may have to be cut."""
        notes = (self.note, *self.shorter)
        return next((note for note in notes if cells_in(note) <= room), notes[-1])


def draw_chart(
    data: ChartData,
    options: ChartOptions,
    width: int,
    height: int,
    gutter: int = GUTTER,
    plotted: Plotter = make_plot,
) -> Chart:
    """The chart in exactly `height` lines of `width` cells.

    `gutter` is the least width of the value axis; longer labels widen it. `plotted` makes the plot,
    or knows it already.
    """
    cells, rows = width - gutter, height - 1
    if cells < 8 or rows < 2:
        return Chart([line(("too small for a chart", "dim")), *[()] * (height - 1)], ())
    if data.middle is None and not any(points.t for points in data.series.values()):
        return Chart(said(data.empty, width, height), ())
    view = options.view
    since, until = (data.since, data.until)
    if view.span is not None:
        since, until = visible(view, *data.extent)
    canvas = Canvas(cells, rows)
    plot = plotted(data, since, until, canvas.dots_x)
    values = _shown(plot, options)
    logarithmic = options.logarithmic and any(value > 0 for value in values)
    low, high = value_range(values, logarithmic)
    plane = Plane(canvas, scale.Scale(low, high, canvas.dots_y, logarithmic), plot.breaks)
    labels = tick_rows(plane.axis, rows)
    if (needed := max(map(len, labels.values()), default=0) + 2) > gutter:
        return draw_chart(data, options, width, height, needed, plotted)
    named = _draw(plane, plot, options)
    area = Area(gutter, cells, since, until, *data.extent)
    words = axis_words(data, view)
    overlay = Overlay()
    _name_ends(overlay, plane, named, {rows - 1})
    for columns in (plot.middle, *plot.ranks.values()):
        for x in columns.not_finite:
            overlay.write(x // DOTS_X, rows - 1, "✕", "bad")
    cursor = None if view.cursor is None else area.cell(view.cursor)
    behind = Behind(mark_cells(data.marks, since, until, cells), cursor)
    behind.name_marks(overlay, canvas)
    lines = [
        plot_row(canvas, y, labels.get(y), gutter, _STYLES, behind, overlay) for y in range(rows)
    ]
    peak = max(values) if values and max(values) > high else None
    return Chart(
        [*lines, axis_line(area, words, view.cursor)],
        _note(plot, options, peak),
        area,
        _read(plot, options, area, words, cursor),
        logarithmic,
        (_note(plot, options, peak, legend=False),),
    )


def said(text: str, width: int, height: int) -> list[Line]:
    """A sentence in the middle of a chart without curves."""
    blank: list[Line] = [()] * height
    words = wrap(text, min(width - 4, 72), height - 1)
    for place, words_of in enumerate(words, max(0, (height - 1 - len(words)) // 2)):
        blank[place] = line((f"{words_of:^{width}}", "dim"))
    return blank


def _read(
    plot: Plot, options: ChartOptions, area: Area, words: AxisWords, cell: int | None
) -> Reading | None:
    """The values under the cursor."""
    at = options.view.cursor
    if cell is None or at is None:
        return None
    found = reading(words, at, cell)
    one = plot.ranks.get(options.rank)
    if options.mode == "rank" and one is not None:
        found.value(f"rank {options.rank}", one, _smooth(one, plot, options), "chosen")
    if plot.number > 1 or options.mode != "rank":
        name = "median" if plot.number > 1 else "loss"
        found.value(name, plot.middle, _smooth(plot.middle, plot, options), "median")
        found.spread(plot.middle)
    for rank, _ in sorted(plot.apart.items(), key=lambda item: -abs(item[1]))[:3]:
        if rank in plot.ranks and not (options.mode == "rank" and rank == options.rank):
            columns = plot.ranks[rank]
            found.value(f"rank {rank}", columns, _smooth(columns, plot, options), "bad")
    if options.mode == "ranks" and one is not None and options.rank not in plot.apart:
        found.value(f"rank {options.rank}", one, _smooth(one, plot, options), "chosen")
    bad = [r for r, columns in plot.ranks.items() if found.bad(columns)]
    if bad:
        found.say(f"{name_ranks(bad, compact=True)} ✕ NaN", "bad")
    return found


def _note(plot: Plot, options: ChartOptions, peak: float | None, *, legend: bool = True) -> Line:
    """What is wrong with ranks, and which curve is which."""
    spans: list[tuple[str, str]] = []
    bad = [rank for rank, found in plot.ranks.items() if found.not_finite]
    if bad:
        spans += [(f"{name_ranks(bad, compact=True)} ✕ NaN", "bad"), ("  ", "")]
    for rank, ratio in sorted(plot.apart.items(), key=lambda item: -abs(item[1]))[:3]:
        if rank not in bad:
            spans += [(f"rank {rank} {deviation(ratio)}", "bad"), ("  ", "")]
    if peak is not None:
        spans += [(f"peak {loss(peak)} clipped", "warn"), ("  ", "")]
    if not legend:
        return (*spans[:-1],)
    if options.mode == "rank":
        spans += [("━ ", "chosen"), (f"rank {options.rank}", "dim")]
        if plot.number > 1:
            spans += [("  ╍ median", "dim")]
    elif options.mode == "ranks":
        spans += [("━ ", "chosen"), (f"rank {options.rank}", "dim"), ("  ━ others", "dim")]
    elif plot.number > 1:
        spans += [("━ ", "median"), ("median", "dim"), ("  ░ ", "band"), ("min to max", "dim")]
    return tuple(spans)
