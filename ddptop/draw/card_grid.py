"""The layout of cards in rows and columns. Pure."""

from __future__ import annotations

import msgspec

MOST = 8
"""The most ranks that are shown as cards by default."""

LEAST_WIDTH = 19
LEAST_HEIGHT = 4
"""Unless fewer show everything."""

LEAST_BOX = 21
"""Narrower cards have an edge at the left only."""

BEST_WIDTH = 40
"""Where cards can be of several widths, the one next to this."""

GAP = 1
"""Cells between two cards."""


class Grid(msgspec.Struct, frozen=True):
    """How cards lie."""

    columns: int
    rows: int
    width: int
    """Of the narrowest card; those before it take the cells that are left over."""
    height: int


def grid(number: int, cells: int, most_rows: int, wanted: int) -> Grid | None:
    """How `number` cards lie best in `cells` by `most_rows`; None where they do not fit.

    What a card can tell comes first, then a grid without holes, then a width that reads well.

    Args:
        number: of cards.
        cells: of the terminal.
        most_rows: that all cards together may take.
        wanted: rows of a card that tells everything, with an edge all around.
    """
    best: tuple[tuple[bool, int, int, int], Grid] | None = None
    for columns in range(1, min(number, cells // LEAST_WIDTH + 1) + 1):
        card = (cells + GAP) // columns - GAP
        rows = -(-number // columns)
        all_of_it = wanted if card >= LEAST_BOX else wanted - 1
        height = min(all_of_it, most_rows // rows)
        least = min(LEAST_HEIGHT, all_of_it)
        if card < LEAST_WIDTH or height < least or (rows - 1) * columns >= number:
            continue
        holes = rows * columns - number
        key = (height - all_of_it != 0, -height, holes, abs(card - BEST_WIDTH))
        if best is None or key < best[0]:
            best = key, Grid(columns, rows, card, height)
    return None if best is None else best[1]
