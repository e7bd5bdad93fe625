"""Builds lines of styled spans, and columns of them, measured in terminal cells.

A style is a name in `STYLES`, not a color; the theme maps it to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

import msgspec

from ddptop_runner.base.units import NOT_AVAILABLE

PartT = TypeVar("PartT")

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


def part_at(parts: Iterable[tuple[PartT, Line]], x: int) -> PartT | None:
    """Which of these consecutive parts of a row is at cell `x`, if any."""
    for what, spans in parts:
        x -= width(spans)
        if x < 0:
            return what
    return None


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


def listed(parts: Iterable[Line]) -> str:
    """The text of non-empty lines, in one sentence."""
    return ", ".join(plain(part) for part in parts if part)


def merged(spans: Iterable[Span]) -> Line:
    """The spans, neighbors of the same style joined, without empty ones."""
    runs = groupby((span for span in spans if span[0]), key=itemgetter(1))
    return tuple(("".join(text for text, _ in run), style) for style, run in runs)


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


# --- columns --------------------------------------------------------------------------------------

GAP = 1
"""Cells between two columns."""

Cell: TypeAlias = Span | Line
"""The content of a cell: one styled text, or several spans."""

Row: TypeAlias = Mapping[str, Cell]
"""Cells by column."""


class Column(msgspec.Struct, frozen=True):
    """A column. If width is short, columns with the highest `drop` are left out first."""

    key: str
    title: str
    width: int
    align: str = "<"
    drop: int = 0
    flex: bool = False
    """Whether it also takes the width that other columns leave."""
    most: int = 0
    """Maximum width of such a column; 0 for no limit."""


class Plain(msgspec.Struct, frozen=True):
    """A column of a plain-text table."""

    place: int
    """Position from left to right."""
    header: str
    text: Callable[[Any], str] | None = None
    """Formats its cell; None for the figure's own text."""
    align: str = ">"
    drop: int = 0
    """On a terminal that is too narrow, the column with the highest number goes first."""


def fit_columns(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit into `width`, with their widths."""
    chosen = list(columns)

    def needed() -> int:
        return sum(column.width + GAP for column in chosen)

    while needed() > width and any(column.drop for column in chosen):
        chosen.remove(max(chosen, key=lambda column: column.drop))
    rest = max(0, width - needed())
    more = dict.fromkeys(chosen, 0)
    flexible = [column for column in chosen if column.flex]
    for place, column in enumerate(sorted(flexible, key=lambda c: c.most or 1_000_000)):
        share = rest // (len(flexible) - place)
        more[column] = min(share, max(0, column.most - column.width)) if column.most else share
        rest -= more[column]
    return [(column, column.width + more[column]) for column in chosen]


def row_line(row: Row, layout: Sequence[tuple[Column, int]], width: int) -> Line:
    """A row in exactly `width` cells; columns that it lacks stay empty."""
    spans: list[Span] = [(" ", "")]
    for column, cells in layout:
        spans += [*cell_line(row.get(column.key, ("", "")), cells, column.align), (" " * GAP, "")]
    return fit(tuple(spans), width)


def cell_line(cell: Cell, cells: int, align: str = "<") -> Line:
    """A cell's content cut or padded to exactly `cells`."""
    if not cell:
        return ((" " * cells, ""),)
    first = cell[0]
    if isinstance(first, str):  # a single span
        return ((pad(first, cells, align), str(cell[1])),)
    spans: Line = tuple(span for span in cell if isinstance(span, tuple))
    space = cells - width(spans)
    if align == ">" and space > 0:
        return ((" " * space, ""), *spans)
    return fit(spans, cells)


def plain_table(
    columns: Iterable[tuple[Plain, Callable[[Any], str]]],
    items: Sequence[object],
    cells: int | None = None,
) -> tuple[list[str], list[list[str]], list[int]]:
    """Headers, rows, and right-aligned columns of a plain-text table.

    In a terminal of `cells`, columns that may be dropped make room for the others, except the last.
    """
    parts = sorted(columns, key=lambda part: part[0].place)
    rows = [[text(one) for _, text in parts] for one in items]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while cells is not None and sum(widths[:-1]) + 2 * len(widths) > cells:
        at = max(range(len(parts)), key=lambda place: parts[place][0].drop)
        if not parts[at][0].drop:
            break
        del parts[at], widths[at]
        for row in rows:
            del row[at]
    right = [at for at, (part, _) in enumerate(parts) if part.align == ">"]
    return [part.header for part, _ in parts], rows, right


def unknown(value: object) -> str:
    """The style of a value: unknown ones are dim."""
    return "dim" if value is None or value == NOT_AVAILABLE else ""


def plain_cell(cell: Cell) -> str:
    """The text of a cell, without styles."""
    if cell and isinstance(cell[0], str):
        return cell[0]
    return "".join(span[0] for span in cell if isinstance(span, tuple))
