"""Lines of logs in terminal cells: sanitized, cut, wrapped, labeled, and with matches marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.cells import get_character_cell_size

from ddptop.logs.messages import Level, LogRow
from ddptop.view.text import ELLIPSIS, Line, Span, cells_of, pad

if TYPE_CHECKING:
    from ddptop.logs.search import LogPattern

TAB_CELLS = 8
MAX_MARKS_PER_CHAR = 3
"""Combining marks on one character; more of them climb into the lines above."""

_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
# What has no width of its own, or changes that of others, or the direction of the text.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def safe(text: str) -> str:
    """The text with tabs as spaces and nothing in it that a terminal obeys.

    What is left takes one, two or, as a mark above another character, no cells.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _UNSEEN.sub("", _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text))
    if text.isascii():
        return text.expandtabs(TAB_CELLS)
    out: list[str] = []
    cells = marks = 0
    for char in text:
        if char == "\t":
            space = TAB_CELLS - cells % TAB_CELLS
            out.append(" " * space)
            cells, marks = cells + space, 0
            continue
        size = get_character_cell_size(char)
        if size == 0:
            marks += 1
            if not cells or marks > MAX_MARKS_PER_CHAR:
                continue
        else:
            cells, marks = cells + size, 0
        out.append(char)
    return "".join(out)


def cells_until(text: str, index: int) -> int:
    """Cells of the first `index` characters of a safe text."""
    if text.isascii():
        return min(index, len(text))
    return sum(get_character_cell_size(char) for char in text[:index])


def wrapped(text: str, cells: int) -> list[tuple[int, int]]:
    """Where a safe text is cut so that each part has at most `cells`; one part at least."""
    if cells < 2 or (text.isascii() and len(text) <= cells):
        return [(0, len(text))]
    if text.isascii():
        return [(at, min(at + cells, len(text))) for at in range(0, len(text), cells)]
    parts: list[tuple[int, int]] = []
    start = used = 0
    for index, char in enumerate(text):
        size = get_character_cell_size(char)
        if used + size > cells:
            parts.append((start, index))
            start, used = index, 0
        used += size
    return [*parts, (start, len(text))]


def window(text: str, first: int, cells: int) -> tuple[str, int, int, str]:
    """The part of a safe text in the cells from `first` on, at most `cells` wide.

    Returns:
        Spaces before it, where a wide character is cut in two; its first character and the one
        behind its last; spaces behind it.
    """
    if text.isascii():
        return "", min(first, len(text)), min(first + cells, len(text)), ""
    at = 0
    start: int | None = None
    before = ""
    for index, char in enumerate(text):
        size = get_character_cell_size(char)
        if start is None and at >= first and (size or at == 0):
            start = index
            before = " " * min(at - first, cells)
        if at + size > first + cells:
            room = first + cells - at
            if start is None:
                return " " * min(cells, room), index, index, ""
            return before, start, index, " " * room
        at += size
    if start is None:
        return "", len(text), len(text), ""
    return before, start, len(text), ""


def marked(
    text: str, start: int, end: int, style: str, found: Sequence[tuple[int, int]], mark: str
) -> Line:
    """`text[start:end]` in `style`, and of it what was found in the style `mark`."""
    spans: list[Span] = []
    at = start
    for first, last in found:
        first, last = max(first, at), min(last, end)
        if first >= last:
            continue
        if first > at:
            spans.append((text[at:first], style))
        spans.append((text[first:last], mark))
        at = last
    if at < end:
        spans.append((text[at:end], style))
    return tuple(spans)


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
