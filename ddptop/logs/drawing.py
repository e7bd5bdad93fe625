"""Lines of logs in terminal cells: sanitized, cut, wrapped, labeled, and with matches marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from rich.cells import get_character_cell_size

from ddptop.logs.messages import Level, LogRow
from ddptop.style import ELLIPSIS, Line, Span, cells_of, pad

if TYPE_CHECKING:
    from ddptop.logs.search import LogPattern

TAB_CELLS = 8
MAX_MARKS_PER_CHAR = 3
"""Maximum number of combining marks per character; more would run into the lines above."""

_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
# Characters without a width, or that change the width of others or the direction of text.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def safe(text: str) -> str:
    """Replace tabs with spaces and remove everything that a terminal would interpret.

    Each remaining character takes one cell, two, or, as a combining mark, none.
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
    """Width in cells of the first `index` characters of a safe text."""
    if text.isascii():
        return min(index, len(text))
    return sum(get_character_cell_size(char) for char in text[:index])


def wrapped(text: str, cells: int) -> list[tuple[int, int]]:
    """Split a safe text into (start, end) parts of at most `cells`; at least one part."""
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
    """The part of a safe text that starts at cell `first` and is at most `cells` wide.

    Returns:
        (padding before, start index, end index, padding after); padding replaces half of a wide
        character.
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
    """`text[start:end]` in `style`, with matches in the style `mark`."""
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
    """The safe text of a line and its division into screen rows."""

    text: str
    parts: tuple[tuple[int, int], ...]


def shape_of(row: LogRow, cells: int, *, wrap: bool) -> Shape:
    """The layout of a line with `cells` for its text."""
    text = safe(row.text)
    return Shape(text, tuple(wrapped(text, cells)) if wrap else ((0, len(text)),))


def text_cells(width: int, label_cells: int) -> int:
    """Cells that remain for the text next to mark and label."""
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
        part: index of its part.
        width: width of the row, in cells.
        label_cells: width of the label; 0 for none.
        shift: the first cell to show; None if lines are wrapped.
        pattern: what to highlight.
        is_open: whether the line is unfinished.
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
    """Width of the whole text, in cells."""
    return cells_until(shape.text, len(shape.text))


def label_width(rows: list[LogRow]) -> int:
    """Width of the labels of these lines, in cells."""
    return min(MOST_LABEL_CELLS, max((cells_of(row.label) for row in rows), default=0))


def thumb(height: int, share_before: float, share_shown: float) -> tuple[int, int]:
    """(start, end) of a scroll bar's thumb, in cells."""
    size = max(1, min(height, round(height * share_shown)))
    start = round((height - size) * max(0.0, min(1.0, share_before / max(1e-9, 1 - share_shown))))
    return start, start + size
