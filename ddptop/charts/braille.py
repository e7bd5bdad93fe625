"""Draws with braille dots, two by four per cell: a canvas in layers, and sparklines. Pure.

A cell of the canvas has one foreground color, so where layers overlap, the highest one owns the
cell and only its dots are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddptop.job.series import Points

DOTS_X = 2
DOTS_Y = 4
_BASE = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_CHARACTERS = [" ", *[chr(_BASE + bits) for bits in range(1, 256)]]


class Canvas:
    """Layers of dots over `columns` by `rows` cells; (0, 0) is the bottom left dot."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = max(0, columns)
        self.rows = max(0, rows)
        self.dots_x = self.columns * DOTS_X
        """Dots from left to right."""
        self.dots_y = self.rows * DOTS_Y
        """Dots from bottom to top."""
        self._owners = [-1] * (self.columns * self.rows)
        self._bits = [0] * (self.columns * self.rows)

    def dot(self, x: int, y: int, layer: int) -> None:
        """Set one dot; dots outside the canvas are ignored."""
        if not (0 <= x < self.dots_x and 0 <= y < self.dots_y):
            return
        from_top = self.dots_y - 1 - y
        place = (from_top >> 2) * self.columns + (x >> 1)
        bit = _BITS[x & 1][from_top & 3]
        owner = self._owners[place]
        if owner == layer:
            self._bits[place] |= bit
        elif owner < layer:
            self._owners[place], self._bits[place] = layer, bit

    def column(self, x: int, low: int, high: int, layer: int) -> None:
        """Fill the dots of one column from `low` to `high`, inclusive."""
        if not 0 <= x < self.dots_x:
            return
        owners, bits, columns, side = self._owners, self._bits, self.columns, _BITS[x & 1]
        cell = x >> 1
        top = self.dots_y - 1 - min(high, self.dots_y - 1)
        for from_top in range(top, self.dots_y - max(0, low)):
            place = (from_top >> 2) * columns + cell
            owner = owners[place]
            if owner == layer:
                bits[place] |= side[from_top & 3]
            elif owner < layer:
                owners[place], bits[place] = layer, side[from_top & 3]

    def segment(
        self, x0: int, y0: int, x1: int, y1: int, layer: int, pattern: tuple[int, int] = (1, 0)
    ) -> None:
        """Draw a straight line between two dots, without gaps between columns.

        `pattern` is how many dot columns to draw, then how many to skip.
        """
        steps = max(abs(x1 - x0), abs(y1 - y0))
        if steps == 0:
            self.dot(x0, y0, layer)
            return
        if steps == 1 and not pattern[1]:
            self.dot(x0, y0, layer)
            self.dot(x1, y1, layer)
            return
        across, up = (x1 - x0) / steps, (y1 - y0) / steps
        on, off = pattern
        for step in range(steps + 1):
            x = x0 + round(across * step)
            if not off or x % (on + off) < on:
                self.dot(x, y0 + round(up * step), layer)

    def owner(self, x: int, y: int) -> int:
        """The layer of a cell, counted from the top left; -1 if it is empty."""
        return self._owners[y * self.columns + x]

    def row(self, y: int) -> list[tuple[str, int]]:
        """The character and layer (-1 if empty) of each cell in a row, counted from the top."""
        start = y * self.columns
        cut = slice(start, start + self.columns)
        characters = [_CHARACTERS[bits] for bits in self._bits[cut]]
        return list(zip(characters, self._owners[cut], strict=True))


def bridged(values: Sequence[float | None], max_gap: int) -> list[float | None]:
    """Fill holes of up to `max_gap` cells from the left; infrequent samples are not a gap."""
    found: list[float | None] = list(values)
    last: int | None = None
    for x, value in enumerate(values):
        if value is not None:
            if last is not None and x - last <= max_gap + 1:
                found[last + 1 : x] = [values[last]] * (x - last - 1)
            last = x
    return found


def spark(values: Sequence[float | None], low: float, high: float) -> str:
    """A thin curve on a scale from `low` to `high`, two values per cell; unknown values are blank.

    Neighboring values that are apart are connected, so that it reads as one line.
    """
    canvas, span = Canvas(-(-len(values) // DOTS_X), 1), high - low
    last: int | None = None
    for x, value in enumerate(values):
        if value is None:
            last = None
            continue
        row = min(3, max(0, round((value - low) / span * 3))) if span else 1
        start = row if last is None else last + (last < row) - (last > row)
        canvas.column(x, min(start, row), max(start, row), 0)
        last = row
    return "".join(character for character, _ in canvas.row(0))


def limits(series: Mapping[int, Points]) -> tuple[float, float]:
    """One scale for all ranks, so that their curves can be compared by eye."""
    values = [v for points in series.values() for v in points.mean if v is not None]
    return (min(values), max(values)) if values else (0.0, 1.0)
