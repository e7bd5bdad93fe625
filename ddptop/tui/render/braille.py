"""A canvas of braille dots, two by four to a cell, in layers.

A cell has one foreground colour, so where layers meet the highest one owns the cell and only its
dots are drawn.
"""

from __future__ import annotations

DOTS_X = 2
DOTS_Y = 4
_BASE = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Canvas:
    """Dots of several layers over `columns` by `rows` cells; (0, 0) is the bottom left dot."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = max(0, columns)
        self.rows = max(0, rows)
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def dots_x(self) -> int:
        """Dots from left to right."""
        return self.columns * DOTS_X

    @property
    def dots_y(self) -> int:
        """Dots from bottom to top."""
        return self.rows * DOTS_Y

    def dot(self, x: int, y: int, layer: int) -> None:
        """Set one dot; outside of the canvas nothing happens."""
        if not (0 <= x < self.dots_x and 0 <= y < self.dots_y):
            return
        from_top = self.dots_y - 1 - y
        key = (x // DOTS_X, from_top // DOTS_Y)
        bit = _BITS[x % DOTS_X][from_top % DOTS_Y]
        owner, bits = self._cells.get(key, (layer, 0))
        if owner < layer:
            owner, bits = layer, 0
        if owner == layer:
            self._cells[key] = (layer, bits | bit)

    def column(self, x: int, low: int, high: int, layer: int) -> None:
        """Fill the dots of one column from `low` to `high`, both included."""
        for y in range(low, high + 1):
            self.dot(x, y, layer)

    def segment(self, x0: int, y0: int, x1: int, y1: int, layer: int) -> None:
        """A straight line between two dots, with no gap from one column to the next."""
        steps = max(abs(x1 - x0), abs(y1 - y0))
        if steps == 0:
            self.dot(x0, y0, layer)
            return
        for step in range(steps + 1):
            self.dot(
                x0 + round((x1 - x0) * step / steps), y0 + round((y1 - y0) * step / steps), layer
            )

    def row(self, y: int) -> list[tuple[str, int]]:
        """Cells of one row from the top: character and layer (-1 where empty)."""
        cells = self._cells
        found = []
        for x in range(self.columns):
            layer, bits = cells.get((x, y), (-1, 0))
            found.append((chr(_BASE + bits) if bits else " ", layer))
        return found
