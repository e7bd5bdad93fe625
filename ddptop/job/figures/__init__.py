"""Defines every figure that is shown: how it is read, formatted, compared, and explained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from ddptop.style import Line, Span, fit, pad, width
from ddptop_runner.base.units import NOT_AVAILABLE

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


def unknown(value: object) -> str:
    """The style of a value: unknown ones are dim."""
    return "dim" if value is None or value == NOT_AVAILABLE else ""


def plain_cell(cell: Cell) -> str:
    """The text of a cell, without styles."""
    if cell and isinstance(cell[0], str):
        return cell[0]
    return "".join(span[0] for span in cell if isinstance(span, tuple))
