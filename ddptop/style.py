"""Builds lines of styled spans, measured in terminal cells.

A style is a name in `STYLES`, not a color; the theme maps it to one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Span: TypeAlias = tuple[str, str]
"""Text and the name of its style ("" is plain)."""

Line: TypeAlias = tuple[Span, ...]
"""One row of the screen."""

STYLES = (
    "strong",  # draws attention first
    "dim",  # labels and units
    "faint",  # rules, tracks, axes
    "title",  # names of panels
    "ok",
    "busy",
    "warn",
    "bad",
    "median",
    "band",
    "chosen",
    "match",  # search matches
    "picked",  # the one cell under a cursor, reversed
)
"""All style names."""

ELLIPSIS = "…"


def line(*spans: Span | str) -> Line:
    """A line of spans; a bare string is plain."""
    return tuple((span, "") if isinstance(span, str) else span for span in spans)


def plain(of: Line) -> str:
    """The text without styles."""
    return "".join(text for text, _ in of)


def cells_of(text: str) -> int:
    """Width of the text in terminal cells; for ASCII, the usual case, that is its length."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # commands that only print use this module without Rich

    return cell_len(text)


def width(of: Line) -> int:
    """Width in terminal cells."""
    return sum(cells_of(text) for text, _ in of)


def clip(text: str, cells: int) -> str:
    """`text` cut to at most `cells`, with an ellipsis if anything is cut."""
    if cells_of(text) <= cells:
        return text
    if cells <= 0:
        return ""
    from rich.cells import chop_cells

    pieces = chop_cells(text, cells - 1) if cells > 1 else [""]
    return (pieces[0] if pieces else "") + ELLIPSIS


def pad(text: str, cells: int, align: str = "<") -> str:
    """`text` cut or padded to exactly `cells`; `align` is "<" or ">"."""
    text = clip(text, cells)
    space = " " * (cells - cells_of(text))
    return space + text if align == ">" else text + space


def fit(of: Line, cells: int) -> Line:
    """The line cut or padded to exactly `cells`."""
    spans: list[Span] = []
    left = cells
    for text, style in of:
        size = cells_of(text)
        if size > left:
            if (cut := clip(text, left)) or left:
                spans.append((pad(cut, left), style))
            return tuple(spans)
        spans.append((text, style))
        left -= size
    if left > 0:
        spans.append((" " * left, ""))
    return tuple(spans)


def spread(left: Line, right: Line, cells: int) -> Line:
    """`left` and `right` at opposite ends of `cells`; `right` is cut if both do not fit."""
    space = cells - width(left) - width(right)
    if space < 2:
        return fit(left, cells)
    return (*left, (" " * space, ""), *right)


def join(parts: Iterable[Line], separator: str = "   ") -> Line:
    """Non-empty lines joined into one."""
    spans: list[Span] = []
    for part in parts:
        if not part:
            continue
        if spans:
            spans.append((separator, ""))
        spans.extend(part)
    return tuple(spans)


def fill(parts: Iterable[Line], cells: int, separator: str = "   ") -> Line:
    """As many of `parts`, in order, as fit in `cells`."""
    chosen: list[Line] = []
    used = 0
    for part in parts:
        if not part:
            continue
        size = width(part) + (len(separator) if chosen else 0)
        if used + size > cells:
            break
        chosen.append(part)
        used += size
    return join(chosen, separator)


def field(label: str, value: str, style: str = "strong") -> Line:
    """A dim label and its value."""
    return ((f"{label} ", "dim"), (value, style))


def rule(title: str, cells: int, note: Line = (), style: str = "title") -> Line:
    """A horizontal rule with a panel's title at the left and a note at the right."""
    head = line(("── ", "faint"), (title, style), (" ", ""))
    tail: Line = (("  ", ""), *note, (" ──", "faint")) if note else ()
    space = cells - width(head) - width(tail)
    if space < 1 and note:
        room = cells - width(head) - 6
        if room >= 6:
            tail = (("  ", ""), *fit(note, room), (" ──", "faint"))
            space = cells - width(head) - width(tail)
        else:
            return rule(title, cells, style=style)
    return fit((*head, ("─" * max(0, space), "faint"), *tail), cells)


def wrap(text: str, cells: int, rows: int) -> list[str]:
    """`text` in at most `rows` lines of `cells`, broken at spaces where possible.

    Lines have at least one cell, since a terminal may be narrower than a label.
    """
    from rich.cells import chop_cells

    cells = max(1, cells)
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        current = ""
        for word in paragraph.split(" "):
            candidate = f"{current} {word}" if current else word
            if cells_of(candidate) <= cells:
                current = candidate
                continue
            if current:
                lines.append(current)
            *full, current = chop_cells(word, cells) or [""]
            lines.extend(full)
        lines.append(current)
    if len(lines) > rows > 0:
        lines = [*lines[: rows - 1], clip(lines[rows - 1] + ELLIPSIS, cells)]
    return lines[:rows]


def bar(share: float | None, cells: int, style: str = "busy") -> Line:
    """A thin bar filled to `share` (0 to 1) on a thin track; a dotted track if unknown."""
    return _filled(share, cells, style, ("━", "╸", "─"))


def blocks(share: float | None, cells: int, style: str) -> Line:
    """A bar of squares on a dotted track; empty if unknown."""
    if share is None:
        return ((" " * max(0, cells), ""),)
    return _filled(share, cells, style, ("■", "▪", "·"))


def _filled(share: float | None, cells: int, style: str, glyphs: tuple[str, str, str]) -> Line:
    if cells <= 0:
        return ()
    if share is None:
        return (("·" * cells, "faint"),)
    whole, part, empty = glyphs
    full, half = divmod(round(min(1.0, max(0.0, share)) * cells * 2), 2)
    filled = whole * full + part * half
    track = empty * (cells - len(filled))
    return tuple(span for span in ((filled, style), (track, "faint")) if span[0])
