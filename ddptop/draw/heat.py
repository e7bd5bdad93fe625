"""Draws many ranks as a map: one cell per rank, in five levels by glyph and color. Pure."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ddptop.job.figures.ranks import FIGURES, NOTHING, Map, figure, shown
from ddptop.job.keys import key as key_of
from ddptop.job.outliers import severity
from ddptop.job.ranks import CALM, counts_own, memory_share
from ddptop.job.status import rank_state
from ddptop.style import Line, Span, field, line, width
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import GpuSample, RankSample

FEWEST = 65
"""Minimum number of ranks to show the map by default."""

GLYPHS = "▁▂▄▆█"
"""Glyphs of the five levels, from lowest to highest."""

UNKNOWN: Span = ("·", "faint")
"""For a rank whose figure is unknown, which differs from level 0."""

_BEHIND_BY = ("band", "median", "busy", "warn", "bad")

Apart = Mapping[int, RankDeviation]
Gpus = Mapping[int, GpuSample]


_BEHIND = Map(
    4, "steps behind the leading rank", lambda rank, apart: None, (1, 2, 10, 100),
    ("none", "1", "2-9", "10-99", "≥100"), _BEHIND_BY,
    lambda steps: steps, lambda steps: f"{steps:.0f} behind", (0, 1),
)  # fmt: skip

STATE = "state"
_BY_KEY = {one.key: one.map for one in FIGURES if one.map is not None} | {"step": _BEHIND}
ORDER = (STATE, *sorted(_BY_KEY, key=lambda key: _BY_KEY[key].place))


def name_of(key: str) -> str:
    """What the cells show, in a few words."""
    return "state" if key == STATE else _BY_KEY[key].name


def values_of(key: str, ranks: Sequence[RankSample], apart: Apart) -> list[float | None]:
    """Each rank's figure, in order; None if unknown."""
    if key == "step":
        first = max((rank.step for rank in ranks if rank.step is not None), default=0)
        return [None if rank.step is None else float(first - rank.step) for rank in ranks]
    read = _BY_KEY[key].read
    return [read(rank, apart.get(rank.rank, NOTHING)) for rank in ranks]


def known_figures(ranks: Sequence[RankSample], apart: Apart) -> list[str]:
    """The figures known for any rank, in the order in which a key cycles through them."""
    return [
        key
        for key in ORDER
        if key == STATE or any(value is not None for value in values_of(key, ranks, apart))
    ]


def cells_of(key: str, ranks: Sequence[RankSample], apart: Apart) -> list[Span]:
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
    """What each glyph means; for states, those present and the number of ranks in each.

    Entries are closer together if there are few `cells`.
    """
    entries: list[tuple[Span, str]]
    gaps: tuple[str, ...]
    if key == STATE:
        gaps = ("   ", "  ", " ")
        firsts = {rank.state: rank for rank in reversed(ranks)}
        entries = [
            (_state_cell(firsts[state]), f"{number:,} {'n/a' if state == 'unknown' else state}")
            for state, number in Counter(rank.state for rank in ranks).most_common()
        ]
    else:
        figure, gaps = _BY_KEY[key], ("  ", " ")
        levels = (*zip(GLYPHS, figure.styles, strict=True), UNKNOWN)
        entries = list(zip(levels, (*figure.legend, "n/a"), strict=True))
    lines = [_apart(entries, gap) for gap in gaps]
    return next((one for one in lines if width(one) <= cells), lines[-1])


def _apart(entries: Sequence[tuple[Span, str]], gap: str) -> Line:
    """Glyphs and their meanings, with a gap between them."""
    spans: list[Span] = [(" ", "")]
    for place, ((glyph, style), text) in enumerate(entries, 1):
        after = gap if place < len(entries) else ""
        spans += [(f"{glyph} ", style), (text + after, "dim")]
    return tuple(spans)


def map_hint(title: str, rows: str, cells: int) -> Line:
    """The hint next to the map's title: the visible `rows`, unless all are, and the key."""
    named = (key_of("ranks.figure"), "busy")
    whole, brief = line(named, (" next metric", "dim")), line(named, (" next", "dim"))
    hints = [whole]
    if rows:
        hints = [line((f"rows {rows}   ", "dim"), *whole), line((f"{rows}  ", "dim"), *brief)]
    hints.append(brief)
    return next((one for one in hints if len(title) + width(one) + 10 <= cells), hints[-1])


class Worst(msgspec.Struct, frozen=True):
    """A rank that needs attention, and why."""

    rank: int
    text: str
    style: str


def worst_ranks(key: str, ranks: Sequence[RankSample], apart: Apart, most: int) -> list[Worst]:
    """The ranks farthest from the median in a figure, worst first; for states, unhealthy ranks."""
    if key == STATE:
        failing = [rank for rank in ranks if rank.state not in CALM]
        failing.sort(key=lambda rank: -severity(rank, NOTHING, True))
        return [
            Worst(rank.rank, *rank_state(rank.state, rank.exit_code, rank.signal))
            for rank in failing[:most]
        ]
    figure = _BY_KEY[key]
    known = [
        (rank.rank, value)
        for rank, value in zip(ranks, values_of(key, ranks, apart), strict=True)
        if value is not None
    ]
    found = heapq.nlargest(most, known, key=lambda one: figure.worst(one[1]))
    levels = [(rank, value, bisect.bisect_right(figure.edges, value)) for rank, value in found]
    return [
        Worst(
            rank,
            figure.text(value),
            "warn" if figure.is_time and apart.get(rank, NOTHING).is_slow else figure.styles[level],
        )
        for rank, value, level in levels
        if level not in figure.calm
    ]


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
    spans: list[Span] = [(label, "strong" if has_cursor else "dim")]
    gap = " " * (grid.cell - 1)
    run, style = "", ""
    for at, (glyph, name) in enumerate(cells[start : start + grid.per_row], start):
        if at == place:
            spans += [(run, style), (glyph, "picked"), (gap, "")]
            run = ""
        elif name == style:
            run += glyph + gap
        else:
            spans.append((run, style))
            run, style = glyph + gap, name
    spans.append((run, style))
    return tuple(span for span in spans if span[0])


def figures_of(rank: RankSample, apart: RankDeviation, gpus: Gpus, state: Span) -> list[Line]:
    """All known figures of one rank with their distances from the median, for below the map."""

    def part(key: str) -> Line:
        one, seen = figure(key), shown(key, rank)
        label = one.title if key == "wait" else seen.label
        if key == "step" and counts_own(rank):
            label = "step*"
        share = memory_share(rank, gpus.get(rank.rank)) if key == "mem" else None
        text = seen.text(rank) + ("" if share is None else f" ({100 * share:.0f}%)")
        far = line()
        if one.apart is not None and (ratio := apart.of(one.apart.of)) is not None:
            style = "warn" if apart.warns(one.apart.of) else "dim"
            far = line((f" {units.deviation(ratio)}", style))
        return line((f"{label} ", "dim"), text, *far)

    keys = ["loss", "time", "step", "util", "mem", "wait"]
    if rank.gpu_power_w is not None:
        keys.append("power")
    head = line((f" rank {rank.rank} ", "strong"), state)
    return [head, *map(part, keys), field("host", rank.host, "")]
