"""Many ranks as a map: one cell per rank, in five levels by glyph and color. Pure."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ddptop.draw.cards import memory_share
from ddptop.view import words
from ddptop.view.keys import key as key_of
from ddptop.view.odd import CALM, severity
from ddptop.view.rank_words import counts_own, data_share, rank_step
from ddptop.view.text import Line, Span, line, width
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import Figure, RankDeviation
from ddptop_runner.model.snapshot import GpuSample, RankSample

FEWEST = 65
"""With this many ranks or more, the map is shown by default."""

GLYPHS = "▁▂▄▆█"
"""Of the five levels, from the least to the most."""

UNKNOWN: Span = ("·", "faint")
"""For a rank whose figure is unknown: never level 0."""

_SIDES = ("busy", "median", "band", "median", "busy")
"""A rank that an alert names is drawn as a warning, whatever its level."""
_WAITING = ("band", "median", "median", "busy", "busy")
_BEHIND_BY = ("band", "median", "busy", "warn", "bad")
_IDLE = ("busy", "busy", "median", "median", "band")

Apart = Mapping[int, RankDeviation]
Gpus = Mapping[int, GpuSample]


class HeatFigure(msgspec.Struct, frozen=True):
    """What the cells may show."""

    key: str
    name: str
    edges: tuple[float, float, float, float]
    """Between the levels."""
    legend: tuple[str, str, str, str, str]
    styles: tuple[str, ...]
    read: Callable[[RankSample, RankDeviation], float | None]
    worst: Callable[[float], float] = abs
    """How urgent a value is: more is worse."""
    text: Callable[[float], str] = units.deviation
    calm: tuple[int, ...] = (2,)
    """The levels that need no attention."""


def _of(figure: Figure) -> Callable[[RankSample, RankDeviation], float | None]:
    return lambda rank, apart: apart.of(figure)


def _util(rank: RankSample, apart: RankDeviation) -> float | None:
    on_device = rank.gpu is not None or bool(rank.gpus)
    return rank.gpu_util_percent if on_device else rank.cpu_percent


def _wait_share(rank: RankSample, apart: RankDeviation) -> float | None:
    share = data_share(rank)
    return None if share is None else 100 * share


_TWENTY = ("≤-20%", "-20..-5%", "±5%", "+5..20%", "≥+20%")
_HALF = ("≤-50%", "-50..-10%", "±10%", "+10..50%", "≥+50%")

FIGURES: tuple[HeatFigure, ...] = (
    HeatFigure(
        "time", "step time vs median", (-0.2, -0.05, 0.05, 0.2), _TWENTY, _SIDES,
        _of("step_time"), lambda ratio: ratio,
    ),
    HeatFigure(
        "loss", "loss vs median", (-0.5, -0.1, 0.1, 0.5), _HALF, _SIDES, _of("loss"),
    ),
    HeatFigure(
        "memory", "memory vs median", (-0.2, -0.05, 0.05, 0.2), _TWENTY, _SIDES, _of("memory"),
    ),
    HeatFigure(
        "util", "util", (20, 40, 60, 80), ("<20%", "20-40%", "40-60%", "60-80%", "≥80%"),
        _IDLE, _util, lambda percent: -percent, units.percent, (3, 4),
    ),
    HeatFigure(
        "wait", "data wait per step", (5, 15, 30, 60),
        ("<5%", "5-15%", "15-30%", "30-60%", "≥60%"), _WAITING, _wait_share,
        lambda percent: percent, units.percent, (0, 1),
    ),
    HeatFigure(
        "power", "power vs median", (-0.2, -0.05, 0.05, 0.2), _TWENTY, _SIDES, _of("power"),
    ),
)  # fmt: skip
"""Of one rank against the others; state and step need all ranks to be read."""

_ALONE = HeatFigure(
    "own", "busy time vs median", (-0.2, -0.05, 0.05, 0.2), _TWENTY, _SIDES,
    lambda rank, apart: apart.own_time, lambda ratio: ratio,
)  # fmt: skip
"""What a rank does before it waits for the others: where all wait for each other, the time of a
step is the same for all."""

_BEHIND = HeatFigure(
    "step", "steps behind the leading rank", (1, 2, 10, 100),
    ("none", "1", "2-9", "10-99", "≥100"), _BEHIND_BY, lambda rank, apart: None,
    lambda steps: steps, lambda steps: f"{steps:.0f} behind", (0, 1),
)  # fmt: skip

STATE = "state"
ORDER = (STATE, "own", "time", "loss", "step", "memory", "util", "wait", "power")
_BY_KEY = {figure.key: figure for figure in (*FIGURES, _ALONE, _BEHIND)}
_NOTHING = RankDeviation()


def name_of(key: str) -> str:
    """What the cells show, in words."""
    return "state" if key == STATE else _BY_KEY[key].name


def values_of(key: str, ranks: Sequence[RankSample], apart: Apart) -> list[float | None]:
    """The figure of each rank, in their order; None where it is not known."""
    if key == "step":
        first = max((rank.step for rank in ranks if rank.step is not None), default=0)
        return [None if rank.step is None else float(first - rank.step) for rank in ranks]
    read = _BY_KEY[key].read
    return [read(rank, apart.get(rank.rank, _NOTHING)) for rank in ranks]


def known_figures(ranks: Sequence[RankSample], apart: Apart) -> list[str]:
    """The figures that something is known of, in the order in which a key goes through them."""
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
    looks = list(zip(GLYPHS, figure.styles, strict=True))
    edges = figure.edges
    cells = [
        UNKNOWN if value is None else looks[bisect.bisect_right(edges, value)]
        for value in values_of(key, ranks, apart)
    ]
    for place, rank in enumerate(ranks):
        if _is_marked(key, rank.rank, apart):
            cells[place] = cells[place][0], "warn"
    return cells


_MARKED_IN: Mapping[str, Figure] = {
    "time": "step_time",
    "own": "step_time",
    "wait": "step_time",
    "loss": "loss",
    "memory": "memory",
    "util": "utilization",
    "power": "power",
}


def _is_marked(key: str, rank: int, apart: Apart) -> bool:
    """Whether an alert names the rank in what the cells show."""
    return _MARKED_IN.get(key) in apart.get(rank, _NOTHING).outliers


def _state_cell(rank: RankSample) -> Span:
    if rank.state == "unknown":
        return UNKNOWN
    text, style = words.rank_state(rank.state)
    return text[0], style


def legend(key: str, ranks: Sequence[RankSample], cells: int) -> Line:
    """What each glyph means; for states, those present and the number of ranks in each.

    Entries stand closer where `cells` are few.
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
        looks = (*zip(GLYPHS, figure.styles, strict=True), UNKNOWN)
        entries = list(zip(looks, (*figure.legend, "n/a"), strict=True))
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
    """Next to the map's title: which `rows` are shown, unless all are, and the key."""
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
    """The ranks farthest off in a figure, the worst first; of states, those that are not well."""
    if key == STATE:
        ill = [rank for rank in ranks if rank.state not in CALM]
        ill.sort(key=lambda rank: -severity(rank, _NOTHING, True))
        return [
            Worst(rank.rank, *words.rank_state(rank.state, rank.exit_code, rank.signal))
            for rank in ill[:most]
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
            "warn" if _is_marked(key, rank, apart) else figure.styles[level],
        )
        for rank, value, level in levels
        if level not in figure.calm
    ]


# --- how the cells lie ----------------------------------------------------------------------------


class HeatGrid(msgspec.Struct, frozen=True):
    """How cells lie in rows."""

    per_row: int
    cell: int
    """Columns of one cell: 1, or 2 with a gap after its glyph."""
    label: int
    """Columns of a row's label."""

    def rows(self, number: int) -> int:
        """How many rows this number of ranks takes."""
        return -(-number // self.per_row)


def heat_grid(number: int, cells: int, rows: int, largest: int) -> HeatGrid:
    """The grid of `number` ranks: cells of two columns where they fit, rows of a power of two.

    Where neither fits, rows as long as there is room; the map then scrolls.

    Args:
        number: of ranks.
        cells: columns of the terminal.
        rows: of the terminal.
        largest: rank number, for the width of labels.
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
    """Column offsets above the map, and where the cursor is."""
    text = [" "] * (grid.per_row * grid.cell + 4)
    for offset in range(0, grid.per_row, 8 if grid.cell == 1 else 4):
        said, start = f"+{offset}" if offset else "", offset * grid.cell
        if not any(one != " " for one in text[start : start + len(said) + 1]):
            text[start : start + len(said)] = said
    at = place % grid.per_row * grid.cell
    if place >= 0:
        text[at] = "▾"
    shown = "".join(text)[: max(0, cells - grid.label)]
    return line(" " * grid.label, (shown[:at], "faint"), (shown[at : at + 1], "strong"),
                (shown[at + 1 :], "faint"))  # fmt: skip


def map_row(
    row: int, grid: HeatGrid, ranks: Sequence[RankSample], cells: Sequence[Span], place: int
) -> Line:
    """One row of the map: its first rank, and its cells; that of the cursor is drawn reversed."""
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
    """All that is known of one rank, for the foot: each figure with its distance."""

    def far(figure: Figure) -> Span:
        ratio, is_marked = apart.marked(figure)
        style = "warn" if is_marked else "dim"
        return ("", "") if ratio is None else (f" {units.deviation(ratio)}", style)

    on_device = rank.gpu is not None or bool(rank.gpus)
    load = rank.gpu_util_percent if on_device else rank.cpu_percent
    memory = rank.gpu_mem_used_bytes if on_device else rank.rss_bytes
    share = memory_share(rank, gpus)
    of = "" if share is None else f" ({100 * share:.0f}%)"
    parts: list[tuple[str, str, Span]] = [
        ("loss", units.loss(rank.loss, rank.loss_state), far("loss")),
        ("time", units.step_time(rank.step_time_s), far("step_time")),
        ("step*" if counts_own(rank) else "step", units.count(rank_step(rank)), ("", "")),
        ("util" if on_device else "CPU", units.percent(load), far("utilization")),
        ("mem" if on_device else "RSS", units.size(memory) + of, far("memory")),
        ("data wait", units.step_time(rank.data_wait_s), ("", "")),
    ]
    if rank.gpu_power_w is not None:
        parts.append(("power", units.watts(rank.gpu_power_w), far("power")))
    parts.append(("host", rank.host, ("", "")))
    head = line((f" rank {rank.rank} ", "strong"), state)
    return [head, *(line((f"{name} ", "dim"), value, aside) for name, value, aside in parts)]
