"""The lines of a log as they are drawn: a mark for the level, the rank, and the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ddptop.logs.row import Level, LogRow
from ddptop.logs.text import cells_until, marked, safe, window, wrapped
from ddptop.view.text import ELLIPSIS, Line, Span, cells_of, pad

if TYPE_CHECKING:
    from ddptop.logs.find import LogPattern

MARK_CELLS = 2
MOST_LABEL_CELLS = 16
_MARKS: dict[Level, Span] = {"": ("  ", ""), "warn": ("▲ ", "warn"), "error": ("✗ ", "bad")}
_INSIDE: dict[Level, Span] = {"": ("  ", ""), "warn": ("┆ ", "warn"), "error": ("┆ ", "bad")}
_STYLES: dict[Level, str] = {"": "", "warn": "warn", "error": "bad"}


class Shape(msgspec.Struct, frozen=True):
    """A line's text made safe, and where it is cut into rows of the screen."""

    text: str
    parts: tuple[tuple[int, int], ...]


def shape_of(row: LogRow, cells: int, *, wrap: bool) -> Shape:
    """The layout of a line with this many cells for its text."""
    text = safe(row.text)
    return Shape(text, tuple(wrapped(text, cells)) if wrap else ((0, len(text)),))


def text_cells(width: int, label_cells: int) -> int:
    """What mark and label leave for the text."""
    return max(1, width - MARK_CELLS - (label_cells + 3 if label_cells else 0))


def row_line(
    row: LogRow,
    shape: Shape,
    part: int,
    width: int,
    label_cells: int,
    *,
    shift: int | None = None,
    pattern: LogPattern | None = None,
    is_open: bool = False,
) -> Line:
    """One row of the screen.

    Args:
        row: the line.
        shape: its layout.
        part: which of its parts.
        width: of the whole row, in cells.
        label_cells: as many are for the label; 0 for none.
        shift: the first cell that is shown; None where lines are wrapped.
        pattern: what to mark.
        is_open: whether the line has not ended yet.
    """
    cells = text_cells(width, label_cells)
    start, end = shape.parts[part]
    found = pattern.places(shape.text) if pattern is not None and not row.is_note else []
    plain_style = "" if row.inside else _STYLES[row.level]
    style = "dim" if row.is_note or is_open else plain_style
    mark = (_INSIDE if row.inside or part else _MARKS)[row.level]
    spans: list[Span] = [("▸ ", "busy") if is_open and not part else mark]
    if label_cells:
        label = row.label if part == 0 else ""
        spans += [(pad(label, label_cells, ">"), "dim"), (" │ ", "faint")]
    if shift is None:
        return (*spans, *marked(shape.text, start, end, style, found, "match"))
    before, first, last, _ = window(shape.text, shift, cells)
    if last < len(shape.text):
        before, first, last, after = window(shape.text, shift, max(0, cells - 1))
        tail: Line = ((after, ""), (ELLIPSIS, "busy"))
    else:
        tail = ()
    head = ((before, style),) if before else ()
    return (*spans, *head, *marked(shape.text, first, last, style, found, "match"), *tail)


def widest(shape: Shape) -> int:
    """Cells of the whole text."""
    return cells_until(shape.text, len(shape.text))


def label_width(rows: list[LogRow]) -> int:
    """Cells that the labels of these lines need."""
    return min(MOST_LABEL_CELLS, max((cells_of(row.label) for row in rows), default=0))


def thumb(height: int, share_before: float, share_shown: float) -> tuple[int, int]:
    """The first cell of a scroll bar's handle and the one after its last."""
    size = max(1, min(height, round(height * share_shown)))
    start = round((height - size) * max(0.0, min(1.0, share_before / max(1e-9, 1 - share_shown))))
    return start, start + size
