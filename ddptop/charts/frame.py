"""Draws the frame of charts: value axes, time axis, marks, cursor, and names of curves. Pure.

A painter gets a `Sheet`, which gives the visible part of the axis and the size in cells, and
returns `Painted`: its plots from top to bottom, the legend, and what the cursor reads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from ddptop.charts.axis import (
    Area,
    Reading,
    Scale,
    View,
    axis_line,
    axis_words,
    log_ticks,
    reading,
    value_label,
    value_ticks,
    visible,
)
from ddptop.charts.braille import DOTS_X, DOTS_Y, Canvas
from ddptop.job.series import Columns, Frame
from ddptop.style import Line, Span, cells_of, line, wrap
from ddptop.style import width as cells_in

_CLIP_FACTOR = 4.0
"""Values this many spreads above the 98th percentile are drawn at the top edge."""
_FLATTENS = 2.0
"""The highest tenth flattens the rest if the axis is this many times as high with it."""
_LEAST_FITTED = 20
"""Minimum number of values to decide that."""


def without_top(values: Sequence[float]) -> Sequence[float]:
    """The values without the highest tenth, if that would flatten the rest."""
    if len(values) < _LEAST_FITTED:
        return values
    ordered = sorted(values)
    low, fit, high = ordered[0], ordered[int(0.9 * (len(ordered) - 1))], ordered[-1]
    if fit > low and high - low > _FLATTENS * (fit - low):
        return [value for value in values if value <= fit]
    return values


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """The range of the value axis: everything except rare spikes, and never empty."""
    if not values:
        return 0.0, 1.0
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    usual_low = ordered[int(0.02 * (len(ordered) - 1))]
    usual_high = ordered[int(0.98 * (len(ordered) - 1))]
    if usual_high > usual_low:
        spread = usual_high - usual_low
        high = min(high, usual_high + _CLIP_FACTOR * spread)
        low = max(low, usual_low - _CLIP_FACTOR * spread)
    if high <= low:
        margin = abs(low) * 0.05 or 0.5
        return low - margin, high + margin
    margin = (high - low) * 0.03
    return low - margin, high + margin


MOST_OF_IT = 0.75
"""Fraction of the value axis that ticks should cover; fewer only if no others are evenly spaced."""
FAR_APART = 3
"""At this distance in rows, ticks look even despite a difference of one row."""


def tick_rows(
    axis: Scale,
    rows: int,
    label: Callable[[float, float], str] = value_label,
    unit: float = 1.0,
    *,
    logarithmic: bool = False,
) -> dict[int, str]:
    """Labels of the value axis by row from the top.

    Args:
        axis: the value axis.
        rows: rows of the plot.
        label: formats a value, given the step between ticks.
        unit: ticks are round multiples of it, such as a GiB.
        logarithmic: whether the axis has the logarithms of values.
    """
    most = max(3, min(7, rows // 2))

    def row_of(value: float) -> int:
        return rows - 1 - axis.dot(value) // DOTS_Y

    if logarithmic:
        values = log_ticks(math.exp(max(-700.0, axis.low)), math.exp(min(700.0, axis.high)), most)
        return {row_of(math.log(value)): f"{value:.3g}" for value in values}
    values, step = _even_ticks(axis, most, unit, row_of)
    return {row_of(value): label(value, step) for value in values}


def _even_ticks(
    axis: Scale, most: int, unit: float, row_of: Callable[[float], int]
) -> tuple[list[float], float]:
    """Round values evenly spaced in rows that cover as much of the axis as possible.

    All are multiples of the step that is returned with them.
    """
    low, high = axis.low / unit, axis.high / unit
    fine = [value_ticks(low, high, number) for number in (*range(most, 1, -1), 2 * most)]
    best, chosen = (False, 0), (list[float](), axis.high - axis.low)
    for values in fine:
        step = (values[1] - values[0]) * unit if len(values) > 1 else chosen[1]
        for stride in range(1, max(2, len(values))):
            ticks = [value * unit for value in values[::stride]]
            covered = (ticks[-1] - ticks[0]) / (axis.high - axis.low) if ticks else 0.0
            rank = covered >= MOST_OF_IT, len(ticks)
            if best < rank and len(ticks) <= most and _are_even([row_of(one) for one in ticks]):
                best, chosen = rank, (ticks, step)
    return chosen


def _are_even(rows: Sequence[int]) -> bool:
    """Whether ticks look evenly spaced; over many rows, a difference of one does not show."""
    apart = [one - other for one, other in itertools.pairwise(rows)]
    if not apart:
        return True
    return min(apart) > 0 and max(apart) - min(apart) <= (min(apart) >= FAR_APART)


MARKER = "●"


class Plane(msgspec.Struct, frozen=True):
    """A canvas, the value axis that places dots on it, and columns that no curve crosses."""

    canvas: Canvas
    axis: Scale
    breaks: Collection[int] = ()

    def curve(self, columns: Columns, layer: int, pattern: tuple[int, int] = (1, 0)) -> None:
        """Connect the means; gaps and new attempts interrupt the line; isolated values stand out.

        Args:
            columns: what to draw.
            layer: the canvas layer.
            pattern: how many dot columns to draw, then how many to skip.
        """
        canvas, breaks, max_gap = self.canvas, self.breaks, columns.max_gap
        last: tuple[int, int] | None = None
        isolated = False
        for x, y in enumerate(self.axis.dots_of(columns.mean)):
            if x in breaks:
                self._end(last, layer, isolated=isolated)
                last = None
            if y is None:
                continue
            if last is not None and x - last[0] <= max_gap:
                isolated = False
                canvas.segment(*last, x, y, layer, pattern)
            else:
                self._end(last, layer, isolated=isolated)
                canvas.dot(x, y, layer)
                isolated = True
            last = (x, y)
        self._end(last, layer, isolated=isolated)

    def _end(self, last: tuple[int, int] | None, layer: int, *, isolated: bool) -> None:
        """Draw an isolated value as a square of dots, because a single dot is easily overlooked."""
        if last is None or not isolated:
            return
        x, y = last
        for column in (x, x ^ 1):
            self.canvas.dot(column, y, layer)
            self.canvas.dot(column, y ^ 1, layer)

    def mark(self, columns: Columns, overlay: Overlay, style: str) -> None:
        """Mark each mean with a circle."""
        for x, y in enumerate(self.axis.dots_of(columns.mean)):
            if y is not None:
                overlay.write(x // DOTS_X, self.canvas.rows - 1 - y // DOTS_Y, MARKER, style)

    def band(self, columns: Columns, layer: int) -> None:
        """Fill from minimum to maximum, including between samples without a gap."""
        canvas = self.canvas
        bottoms, tops = self.axis.dots_of(columns.low), self.axis.dots_of(columns.high)
        last: tuple[int, int, int] | None = None
        for x, (bottom, top) in enumerate(zip(bottoms, tops, strict=False)):
            if x in self.breaks:
                last = None
            if bottom is None or top is None:
                continue
            canvas.column(x, bottom, top, layer)
            if last is not None and 1 < x - last[0] <= columns.max_gap:
                for between in range(last[0] + 1, x):
                    share = (between - last[0]) / (x - last[0])
                    canvas.column(
                        between,
                        round(last[1] + (bottom - last[1]) * share),
                        round(last[2] + (top - last[2]) * share),
                        layer,
                    )
            last = (x, bottom, top)


def name_ends(plane: Plane, named: Sequence[tuple[str, Columns, str]]) -> dict[int, Span]:
    """Names of curves and their styles by row, each as near to its curve's end as possible."""
    rows = plane.canvas.rows
    wanted: list[tuple[int, Span]] = []
    for name, columns, style in named:
        known = [value for value in columns.mean if value is not None]
        if known:
            row = rows - 1 - plane.axis.dot(known[-1]) // DOTS_Y
            wanted.append((row, (f" {name}", style)))
    found: dict[int, Span] = {}
    for row, span in sorted(wanted, key=lambda item: item[0]):
        free = [y for y in range(rows) if y not in found]
        if free:
            found[min(free, key=lambda y: (abs(y - row), y < row))] = span
    return found


class Overlay(msgspec.Struct):
    """Characters and styles written over a plot, by cell from the top left."""

    cells: dict[tuple[int, int], Span] = msgspec.field(default_factory=dict)

    def write(self, x: int, y: int, text: str, style: str) -> None:
        """Write text into a row."""
        for offset, character in enumerate(text):
            self.cells[x + offset, y] = (character, style)

    def cross(self, canvas: Canvas, *curves: Columns) -> None:
        """Mark non-finite values at the bottom edge."""
        for columns in curves:
            for x in columns.not_finite:
                self.write(x // DOTS_X, canvas.rows - 1, "✕", "bad")

    def is_free(self, x: int, y: int, cells: int, canvas: Canvas) -> bool:
        """Whether these cells have no curve and no text; a band does not count."""
        return (
            x >= 0
            and x + cells <= canvas.columns
            and 0 <= y < canvas.rows
            and all(
                canvas.owner(place, y) <= 0 and (place, y) not in self.cells
                for place in range(x, x + cells)
            )
        )


_NAME_ROWS = 4
"""Rows from the top in which a mark's name can be placed."""


class Behind(msgspec.Struct, frozen=True):
    """What is drawn behind the curves: marks with their labels, and the cursor's line."""

    marks: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Labels of marks, by cell."""
    cursor: int | None = None
    """The cursor's cell."""

    def row(self) -> dict[int, Span]:
        """Characters and styles, by cell."""
        found: dict[int, Span] = dict.fromkeys(self.marks, ("┊", "dim"))
        if self.cursor is not None:
            found[self.cursor] = ("│", "strong")
        return found

    def name_marks(self, overlay: Overlay, canvas: Canvas) -> None:
        """Write each mark's name next to it, in one of the upper rows without a curve."""
        for x, text in sorted(self.marks.items()):
            name = f" {text} "
            start = x + 1 if x + len(name) < canvas.columns else x - len(name)
            for y in range(min(_NAME_ROWS, canvas.rows)):
                if text and overlay.is_free(start, y, len(name), canvas):
                    overlay.write(start, y, name, "dim")
                    break


def plot_row(
    canvas: Canvas,
    y: int,
    label: str | None,
    gutter: int,
    styles: Sequence[str],
    behind: Behind,
    overlay: Overlay,
) -> Line:
    """One row: the axis label, the curves, and in empty cells the grid, marks, and cursor.

    Args:
        canvas: the curves.
        y: the row, from the top.
        label: the row's label on the value axis, if any.
        gutter: cells to the left of the plot.
        styles: style of each layer.
        behind: what curves cover.
        overlay: what covers curves.
    """
    spans: list[Span] = [(f"{label or '':>{gutter - 2}} ", "dim")]
    spans.append(("┤" if label else "│", "faint"))
    background, empty = behind.row(), ("┈" if label else " ", "faint")
    written = overlay.cells
    text, style = "", ""
    for x, (character, layer) in enumerate(canvas.row(y)):
        if written and (x, y) in written:
            character, now = written[x, y]
        elif layer >= 0:
            now = styles[layer]
        else:
            character, now = background.get(x, empty)
        if now == style:
            text += character
            continue
        if text:
            spans.append((text, style))
        text, style = character, now
    if text:
        spans.append((text, style))
    return tuple(spans)


def mark_cells(
    marks: Sequence[tuple[float, str]], since: float, until: float, cells: int
) -> dict[int, str]:
    """Marks by cell; if two share a cell, the later one."""
    span = max(1e-9, until - since)
    return {
        min(cells - 1, int((at - since) / span * cells)): label
        for at, label in marks
        if since <= at <= until
    }


def break_columns(starts: Sequence[float], since: float, until: float, dots: int) -> frozenset[int]:
    """Dot columns where a new attempt starts; no curve enters them from the left."""
    factor = dots / max(1e-9, until - since)
    return frozenset(int((at - since) * factor) for at in starts if since <= at <= until)


GUTTER = 8
"""Minimum width of the value axis; longer labels widen it."""
LEAST_CELLS = 8
LEAST_ROWS = 2
_NAMES = 16
"""Most cells for the curves' names at the right."""
_LEAST_PLOT = 40
"""Minimum width of a plot for names next to it."""


class Chart(msgspec.Struct, frozen=True):
    """A drawn chart."""

    lines: list[Line]
    notes: Sequence[Line] = ((),)
    """The legend, for the right end of the chart's title, then ever shorter versions of it."""
    area: Area | None = None
    """Where the plot is; None if nothing is drawn."""
    reading: Reading | None = None
    """What the cursor reads."""
    scaling: str = ""
    """In words, how it differs from measured values on a linear axis that shows everything."""

    def fitting(self, room: int) -> Line:
        """The longest legend that fits, or else the shortest, even if too long."""
        return next((note for note in self.notes if cells_in(note) <= room), self.notes[-1])


def cells_of_names(width: int, names: Iterable[str]) -> int:
    """Cells for the names of curves at the right of a chart of this width; 0 without room."""
    cells = min(_NAMES, max((cells_of(name) + 1 for name in names), default=0))
    return cells if width - GUTTER - cells >= _LEAST_PLOT else 0


class Sheet(msgspec.Struct, frozen=True):
    """What a painter draws on."""

    cells: int
    """Width of the plots, without the axis and names."""
    rows: int
    """Rows for all plots together."""
    since: float
    until: float
    """The visible part of the axis is from `since` to this."""
    names: int
    """Cells at the right for the names of curves."""

    @property
    def dots(self) -> int:
        """Number of dot columns."""
        return self.cells * DOTS_X


class Plot(msgspec.Struct, frozen=True):
    """One painted plot."""

    canvas: Canvas
    labels: Mapping[int, str]
    """Labels on the value axis, by row from the top."""
    styles: Sequence[str]
    """Style of each layer."""
    overlay: Overlay = msgspec.field(default_factory=Overlay)
    ends: Mapping[int, Span] = msgspec.field(default_factory=dict)
    """Names and their styles at the right of the plot, by row."""


class Painted(msgspec.Struct, frozen=True):
    """What a painter painted on a sheet."""

    plots: Sequence[Plot]
    """From top to bottom, with a row between them."""
    notes: Sequence[Line]
    """The legend, then ever shorter versions."""
    read: Callable[[Reading], None]
    """Adds the values under the cursor to a reading."""
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
    """Draw a chart in exactly `height` lines of `width` cells.

    Args:
        data: the time axis.
        view: the visible part of the axis, and the cursor.
        width: in cells.
        height: in lines.
        paint: paints the plots.
        empty: text shown instead of curves; None if there are curves.
        gutter: minimum width of the value axis.
        names: cells for the names of curves at the right.
    """
    cells, rows = width - gutter - names, height - 1
    if cells < LEAST_CELLS or rows < LEAST_ROWS:
        return Chart([line(("too small for a chart", "dim")), *[()] * (height - 1)])
    if empty is not None:
        return Chart(centered(empty, width, height))
    since, until = (data.since, data.until) if view.span is None else visible(view, *data.extent)
    area = Area(gutter, cells, since, until, *data.extent)
    cursor = None if view.cursor is None else area.cell(view.cursor)
    painted = paint(Sheet(cells, rows, since, until, names))
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
    return Chart(lines, painted.notes, area, found, painted.scaling)


def centered(text: str, width: int, height: int) -> list[Line]:
    """A sentence centered in a chart without curves."""
    blank: list[Line] = [()] * height
    words = wrap(text, min(width - 4, 72), height - 1)
    for place, words_of in enumerate(words, max(0, (height - 1 - len(words)) // 2)):
        blank[place] = line((f"{words_of:^{width}}", "dim"))
    return blank
