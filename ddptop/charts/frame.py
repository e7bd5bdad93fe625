"""Draws plots: curves, bands, and markers, the value axis, and the names of curves. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from ddptop.charts.axis import Area, Reading, Scale, log_ticks, value_label, value_ticks
from ddptop.charts.braille import DOTS_X, DOTS_Y, Canvas
from ddptop.job.series import Columns
from ddptop.style import Line, Span, cells_of, line, merged, wrap
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
_NAME_ROWS = 4
"""Rows from the top in which a mark's name can be placed."""


class Plot(msgspec.Struct, frozen=True):
    """A canvas, the value axis that places dots on it, and what is written over or beside it."""

    canvas: Canvas
    axis: Scale
    labels: Mapping[int, str]
    """Labels on the value axis, by row from the top."""
    styles: Sequence[str]
    """Style of each layer."""
    written: dict[tuple[int, int], Span] = msgspec.field(default_factory=dict)
    """Characters and styles that cover curves, by cell from the top left."""
    ends: dict[int, Span] = msgspec.field(default_factory=dict)
    """Names and their styles at the right of the plot, by row."""

    def curve(
        self,
        columns: Columns,
        layer: int,
        breaks: Collection[int],
        pattern: tuple[int, int] = (1, 0),
    ) -> None:
        """Connect the means; gaps and new attempts interrupt the line; isolated values stand out.

        Args:
            columns: what to draw.
            layer: the canvas layer.
            breaks: columns that the curve does not cross.
            pattern: how many dot columns to draw, then how many to skip.
        """
        canvas, max_gap = self.canvas, columns.max_gap
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

    def mark(self, columns: Columns, style: str) -> None:
        """Mark each mean with a circle."""
        for x, y in enumerate(self.axis.dots_of(columns.mean)):
            if y is not None:
                self.written[x // DOTS_X, self.canvas.rows - 1 - y // DOTS_Y] = (MARKER, style)

    def cross(self, columns: Columns) -> None:
        """Mark non-finite values at the bottom edge."""
        for x in columns.not_finite:
            self.written[x // DOTS_X, self.canvas.rows - 1] = ("✕", "bad")

    def band(self, columns: Columns, layer: int, breaks: Collection[int]) -> None:
        """Fill from minimum to maximum, including between samples without a gap."""
        canvas = self.canvas
        bottoms, tops = self.axis.dots_of(columns.low), self.axis.dots_of(columns.high)
        last: tuple[int, int, int] | None = None
        for x, (bottom, top) in enumerate(zip(bottoms, tops, strict=False)):
            if x in breaks:
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

    def name_ends(self, named: Sequence[tuple[str, Columns, str]]) -> None:
        """Write names of curves in their styles, each as near to its curve's end as possible."""
        rows = self.canvas.rows
        wanted: list[tuple[int, Span]] = []
        for name, columns, style in named:
            known = [value for value in columns.mean if value is not None]
            if known:
                row = rows - 1 - self.axis.dot(known[-1]) // DOTS_Y
                wanted.append((row, (f" {name}", style)))
        for row, span in sorted(wanted, key=lambda item: item[0]):
            free = [y for y in range(rows) if y not in self.ends]
            if free:
                self.ends[min(free, key=lambda y: (abs(y - row), y < row))] = span

    def name_marks(self, marks: Mapping[int, str]) -> None:
        """Write each mark's name next to its cell, in one of the upper rows without a curve."""
        canvas = self.canvas
        for x, text in sorted(marks.items()):
            name = f" {text} "
            start = x + 1 if x + len(name) < canvas.columns else x - len(name)
            for y in range(min(_NAME_ROWS, canvas.rows)):
                if text and self._is_free(start, y, len(name)):
                    cells = enumerate(name, start)
                    self.written.update({(place, y): (one, "dim") for place, one in cells})
                    break

    def _is_free(self, x: int, y: int, cells: int) -> bool:
        """Whether these cells have no curve and no text; a band does not count."""
        return (
            x >= 0
            and x + cells <= self.canvas.columns
            and all(
                self.canvas.owner(place, y) <= 0 and (place, y) not in self.written
                for place in range(x, x + cells)
            )
        )

    def row(self, y: int, gutter: int, behind: Mapping[int, Span]) -> Line:
        """One row: the axis label, the curves, what is behind them in empty cells, and a name.

        Args:
            y: the row, from the top.
            gutter: cells to the left of the plot.
            behind: marks and the cursor, by cell.
        """
        label, written = self.labels.get(y), self.written
        spans: list[Span] = [(f"{label or '':>{gutter - 2}} ", "dim")]
        spans.append(("┤" if label else "│", "faint"))
        empty = ("┈" if label else " ", "faint")
        cells: list[Span] = []
        for x, (character, layer) in enumerate(self.canvas.row(y)):
            if written and (x, y) in written:
                cells.append(written[x, y])
            elif layer >= 0:
                cells.append((character, self.styles[layer]))
            else:
                cells.append(behind.get(x, empty))
        spans += merged(cells)
        if y in self.ends:
            spans.append(self.ends[y])
        return tuple(spans)


def break_columns(starts: Sequence[float], area: Area) -> frozenset[int]:
    """Dot columns where a new attempt starts; no curve enters them from the left."""
    factor = area.cells * DOTS_X / area.width
    shown = (at for at in starts if area.since <= at <= area.until)
    return frozenset(int((at - area.since) * factor) for at in shown)


GUTTER = 8
"""Minimum width of the value axis; longer labels widen it."""
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


def centered(text: str, width: int, height: int) -> list[Line]:
    """A sentence centered in a chart without curves."""
    blank: list[Line] = [()] * height
    words = wrap(text, min(width - 4, 72), height - 1)
    for place, words_of in enumerate(words, max(0, (height - 1 - len(words)) // 2)):
        blank[place] = line((f"{words_of:^{width}}", "dim"))
    return blank
