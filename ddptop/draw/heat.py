"""Draws many ranks as a map: one cell per rank, in five levels by glyph and color. Pure."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ddptop.job.figures.ranks import FIGURES, NOTHING, Map, severity
from ddptop.job.keys import key as key_of
from ddptop.job.ranks import CALM
from ddptop.job.status import rank_state
from ddptop.style import Line, Span, fill, line, merged
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import RankSample

FEWEST = 65
"""Minimum number of ranks to show the map by default."""

GLYPHS = "▁▂▄▆█"
"""Glyphs of the five levels, from lowest to highest."""

UNKNOWN: Span = ("·", "faint")
"""For a rank whose figure is unknown, which differs from level 0."""

_BEHIND_BY = ("band", "median", "busy", "warn", "bad")

Deviations = Mapping[int, RankDeviation]


_BEHIND = Map(
    "steps behind the leader", lambda rank, apart: None, (1, 2, 10, 100),
    ("none", "1", "2-9", "10-99", "≥100"), _BEHIND_BY,
    lambda steps: steps, lambda steps: f"{steps:.0f} behind", (0, 1),
)  # fmt: skip

STATE = "state"
_BY_KEY = {
    one.key: _BEHIND if one.map is None else one.map
    for one in FIGURES
    if one.map is not None or one.key == "step"
}
ORDER = (STATE, *_BY_KEY)


def name_of(key: str) -> str:
    """What the cells show, in a few words."""
    return "state" if key == STATE else _BY_KEY[key].name


def values_of(key: str, ranks: Sequence[RankSample], apart: Deviations) -> list[float | None]:
    """Each rank's figure, in order; None if unknown."""
    if key == "step":
        first = max((rank.step for rank in ranks if rank.step is not None), default=0)
        return [None if rank.step is None else float(first - rank.step) for rank in ranks]
    read = _BY_KEY[key].read
    return [read(rank, apart.get(rank.rank, NOTHING)) for rank in ranks]


def known_figures(ranks: Sequence[RankSample], apart: Deviations) -> list[str]:
    """The figures known for any rank, in the order in which a key cycles through them."""
    return [
        key
        for key in ORDER
        if key == STATE or any(value is not None for value in values_of(key, ranks, apart))
    ]


def map_cells(key: str, ranks: Sequence[RankSample], apart: Deviations) -> list[Span]:
    """A glyph and a style for each rank."""
    if key == STATE:
        return [_state_cell(rank) for rank in ranks]
    figure = _BY_KEY[key]
    levels = list(zip(GLYPHS, figure.styles, strict=True))
    edges = figure.edges
    cells = [
        UNKNOWN if value is None else levels[bisect.bisect_right(edges, value)]
        for value in values_of(key, ranks, apart)
    ]
    for place, rank in enumerate(ranks):
        if figure.is_time and apart.get(rank.rank, NOTHING).is_slow:
            cells[place] = cells[place][0], "warn"
    return cells


def _state_cell(rank: RankSample) -> Span:
    if rank.state == "unknown":
        return UNKNOWN
    text, style = rank_state(rank.state)
    return text[0], style


def legend(key: str, ranks: Sequence[RankSample], cells: int) -> Line:
    """What each glyph means; for states, those present and the number of ranks in each."""
    if key == STATE:
        firsts = {rank.state: rank for rank in reversed(ranks)}
        entries = [
            (_state_cell(firsts[state]), f"{number:,} {'n/a' if state == 'unknown' else state}")
            for state, number in Counter(rank.state for rank in ranks).most_common()
        ]
    else:
        levels = (*zip(GLYPHS, _BY_KEY[key].styles, strict=True), UNKNOWN)
        entries = list(zip(levels, (*_BY_KEY[key].legend, "n/a"), strict=True))
    parts = [line((f" {glyph} ", style), (text, "dim")) for (glyph, style), text in entries]
    return fill(parts, cells, " ")


def map_hint(rows: str) -> Line:
    """The hint next to the map's title: the key, and the visible `rows` unless all are."""
    hint = line((key_of("ranks.figure"), "busy"), (" next metric", "dim"))
    return line(*hint, (f"   rows {rows}", "dim")) if rows else hint


Worst = tuple[int, Span]
"""A rank that needs attention, and why."""


def worst_ranks(key: str, ranks: Sequence[RankSample], apart: Deviations, most: int) -> list[Worst]:
    """The ranks farthest from the median in a figure, worst first; for states, unhealthy ranks."""
    if key == STATE:
        failing = [rank for rank in ranks if rank.state not in CALM]
        failing.sort(key=lambda rank: -severity(rank, NOTHING, True))
        return [
            (rank.rank, rank_state(rank.state, rank.exit_code, rank.signal))
            for rank in failing[:most]
        ]
    figure = _BY_KEY[key]
    values = zip(ranks, values_of(key, ranks, apart), strict=True)
    known = [(value, rank.rank) for rank, value in values if value is not None]
    found: list[Worst] = []
    for value, rank in heapq.nlargest(most, known, key=lambda one: figure.worst(one[0])):
        level = bisect.bisect_right(figure.edges, value)
        is_slow = figure.is_time and apart.get(rank, NOTHING).is_slow
        if level not in figure.calm:
            style = "warn" if is_slow else figure.styles[level]
            found.append((rank, (figure.text(value), style)))
    return found


# --- layout of the cells --------------------------------------------------------------------------


class HeatGrid(msgspec.Struct, frozen=True):
    """The layout of cells in rows."""

    per_row: int
    cell: int
    """Columns of one cell: 1, or 2 with a gap after its glyph."""
    label: int
    """Columns of a row's label."""

    def rows(self, number: int) -> int:
        """How many rows this many ranks take."""
        return -(-number // self.per_row)


def heat_grid(number: int, cells: int, rows: int, largest: int) -> HeatGrid:
    """The layout of `number` ranks: cells of two columns if they fit, and a power of two per row.

    If that does not fit, rows are as long as possible, and the map scrolls.

    Args:
        number: number of ranks.
        cells: columns of the terminal.
        rows: rows of the terminal.
        largest: largest rank number, for the width of labels.
    """
    label = len(str(largest)) + 3
    for cell in (2, 1):
        room = max(8, (cells - label) // cell)
        per_row = 1 << (room.bit_length() - 1)
        if -(-number // per_row) <= rows:
            return HeatGrid(per_row, cell, label)
    room = max(8, cells - label)
    return HeatGrid(room - room % 8, 1, label)


def ruler(grid: HeatGrid, place: int, cells: int) -> Line:
    """Column offsets above the map, and the cursor's column."""
    text = [" "] * (grid.per_row * grid.cell + 4)
    for offset in range(0, grid.per_row, 8 if grid.cell == 1 else 4):
        mark, start = f"+{offset}" if offset else "", offset * grid.cell
        if not any(one != " " for one in text[start : start + len(mark) + 1]):
            text[start : start + len(mark)] = mark
    at = place % grid.per_row * grid.cell
    if place >= 0:
        text[at] = "▾"
    shown = "".join(text)[: max(0, cells - grid.label)]
    return line(" " * grid.label, (shown[:at], "faint"), (shown[at : at + 1], "strong"),
                (shown[at + 1 :], "faint"))  # fmt: skip


def map_row(
    row: int, grid: HeatGrid, ranks: Sequence[RankSample], cells: Sequence[Span], place: int
) -> Line:
    """One row of the map: its first rank and its cells, with the cursor's cell reversed."""
    start = row * grid.per_row
    has_cursor = start <= place < start + grid.per_row
    label = f"{'▸' if has_cursor else ' '}{ranks[start].rank:>{grid.label - 2}} "
    spans: list[Span] = []
    gap = " " * (grid.cell - 1)
    for at, (glyph, style) in enumerate(cells[start : start + grid.per_row], start):
        spans += [(glyph, "picked"), (gap, "")] if at == place else [(glyph + gap, style)]
    return (label, "strong" if has_cursor else "dim"), *merged(spans)
