"""Log text in terminal cells: sanitized, cut, wrapped, and with matches marked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import get_character_cell_size

from ddptop.view.text import Line, Span

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
