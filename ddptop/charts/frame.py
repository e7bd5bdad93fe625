"""The frame of every chart: value axes, time axis, marks, cursor, and the names of curves. Pure.

A painter gets a `Sheet`, which says what part of the axis is drawn on how many cells, and returns
`Painted`: its plots from top to bottom, the legend, and what the cursor reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from ddptop.charts.axis import axis_line, axis_words
from ddptop.charts.braille import DOTS_X
from ddptop.charts.plot import Behind, Cells, Overlay, mark_cells, plot_row
from ddptop.charts.reading import Reading, reading
from ddptop.charts.view import Area, View, visible
from ddptop.view.series import Frame
from ddptop.view.text import Line, Span, cells_of, line, wrap
from ddptop.view.text import width as cells_in

GUTTER = 8
"""Least width of the value axis; longer labels widen it."""
LEAST_CELLS = 8
LEAST_ROWS = 2
_NAMES = 16
"""Cells at most for the curves' names at the right."""
_LEAST_BESIDE = 40
"""A narrower plot has no names beside it."""


class Chart(msgspec.Struct, frozen=True):
    """A drawn chart."""

    lines: list[Line]
    note: Line
    """What the curves are, for the right end of the chart's title."""
    area: Area | None = None
    """Where the plot is; None while nothing is drawn."""
    reading: Reading | None = None
    """What the cursor reads."""
    scaling: str = ""
    """How the value axis differs from a linear one that shows everything, in words."""
    shorter: tuple[Line, ...] = ()
    """The note with less and less in it, for titles with little room."""

    def fitting(self, room: int) -> Line:
        """As much of the note as has room; the last that there is may have to be cut."""
        notes = (self.note, *self.shorter)
        return next((note for note in notes if cells_in(note) <= room), notes[-1])


def cells_of_names(width: int, names: Iterable[str]) -> int:
    """Cells at the right of a chart of that width for the names of its curves; 0 without room."""
    cells = min(_NAMES, max((cells_of(name) + 1 for name in names), default=0))
    return cells if width - GUTTER - cells >= _LEAST_BESIDE else 0


class Sheet(msgspec.Struct, frozen=True):
    """What a painter draws on."""

    cells: int
    """Width of the plots, without axis and names."""
    rows: int
    """Of all plots together."""
    since: float
    until: float
    """The part of the axis that is shown."""
    cursor: int | None
    """The cursor's cell."""
    names: int
    """Cells at the right for the names of curves."""

    @property
    def dots(self) -> int:
        """Dot columns."""
        return self.cells * DOTS_X


class Plot(msgspec.Struct, frozen=True):
    """One painted plot."""

    canvas: Cells
    labels: Mapping[int, str]
    """Of the value axis, by row from the top."""
    styles: Sequence[str]
    """Of each layer."""
    overlay: Overlay = msgspec.field(default_factory=Overlay)
    ends: Mapping[int, Span] = msgspec.field(default_factory=dict)
    """Names at the right of the plot, by row."""


class Painted(msgspec.Struct, frozen=True):
    """What a painter made of a sheet."""

    plots: Sequence[Plot]
    """From top to bottom, with a row between them."""
    notes: Sequence[Line]
    """What the curves are, and the same with less and less in it."""
    read: Callable[[Reading], None]
    """Adds the values under the cursor."""
    scaling: str = ""
    """See `Chart.scaling`."""


def draw(
    data: Frame,
    view: View,
    width: int,
    height: int,
    paint: Callable[[Sheet], Painted],
    *,
    empty: str | None = None,
    gutter: int = GUTTER,
    names: int = 0,
) -> Chart:
    """The chart in exactly `height` lines of `width` cells.

    Args:
        data: its axis.
        view: what part of it is shown, and where the cursor is.
        width: in cells.
        height: in lines.
        paint: draws the plots.
        empty: what to say in place of curves, where there are none.
        gutter: least width of the value axis.
        names: cells for the names of curves at the right.
    """
    cells, rows = width - gutter - names, height - 1
    if cells < LEAST_CELLS or rows < LEAST_ROWS:
        return Chart([line(("too small for a chart", "dim")), *[()] * (height - 1)], ())
    if empty is not None:
        return Chart(said(empty, width, height), ())
    since, until = (data.since, data.until) if view.span is None else visible(view, *data.extent)
    area = Area(gutter, cells, since, until, *data.extent)
    cursor = None if view.cursor is None else area.cell(view.cursor)
    painted = paint(Sheet(cells, rows, since, until, cursor, names))
    texts = [text for plot in painted.plots for text in plot.labels.values()]
    if (needed := max(map(len, texts), default=0) + 2) > gutter:
        return draw(data, view, width, height, paint, gutter=needed, names=names)
    lines: list[Line] = []
    marks = mark_cells(data.marks, since, until, cells)
    for plot in painted.plots:
        if lines:
            lines.append(line(" " * (gutter - 1), ("├" + "─" * cells, "faint")))
            marks = dict.fromkeys(marks, "")
        behind = Behind(marks, cursor)
        behind.name_marks(plot.overlay, plot.canvas)
        for y in range(plot.canvas.rows):
            row = plot_row(
                plot.canvas, y, plot.labels.get(y), gutter, plot.styles, behind, plot.overlay
            )
            lines.append((*row, plot.ends[y]) if y in plot.ends else row)
    words = axis_words(data, view)
    lines.append(axis_line(area, words, view.cursor, names))
    found = None
    if cursor is not None and view.cursor is not None:
        found = reading(words, view.cursor, cursor)
        painted.read(found)
    note, *shorter = painted.notes
    return Chart(lines, note, area, found, painted.scaling, tuple(shorter))


def said(text: str, width: int, height: int) -> list[Line]:
    """A sentence in the middle of a chart without curves."""
    blank: list[Line] = [()] * height
    words = wrap(text, min(width - 4, 72), height - 1)
    for place, words_of in enumerate(words, max(0, (height - 1 - len(words)) // 2)):
        blank[place] = line((f"{words_of:^{width}}", "dim"))
    return blank
