"""A job's ranks as cards, a table, or a map, depending on their number and the room."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from ddptop.draw.heat import (
    FEWEST,
    ORDER,
    STATE,
    HeatGrid,
    heat_grid,
    known_figures,
    legend,
    map_cells,
    map_hint,
    map_row,
    name_of,
    ruler,
    worst_ranks,
)
from ddptop.draw.panels import rank_detail
from ddptop.draw.ranks import GAP, Around, Grid, around, card_lines, grid, rank_line, wanted_rows
from ddptop.draw.ranks import MOST as MOST_CARDS
from ddptop.job.figures.ranks import NOTHING, Subject, columns_of, rank_row, verdict, worst_first
from ddptop.job.help import explain_heat, explain_rank
from ddptop.job.keys import ACROSS, key, with_keys
from ddptop.job.ranks import has_several, hosts_of, short_names
from ddptop.job.series import SPARK_S, Recent
from ddptop.job.status import waiting_text
from ddptop.sources.job import JobDetail
from ddptop.style import Line, Row, Span, clip, fit, line, rule
from ddptop.tui.keymap import bindings
from ddptop.tui.widgets.table import CursorList, Table
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.judge.balance.rank_devices import own_devices
from ddptop_runner.model.snapshot import GpuSample, RankSample

NO_RANK = "no ranks have started yet"
NO_MATCH = "no ranks match; press {view.back} to show all"
FEW = 64
"""Whether any rank has details is looked up for this many ranks."""


def foot_of(detail: JobDetail, rank: RankSample | None, cells: int) -> Line:
    """What is not shown elsewhere of the selected rank, or what the job waits for."""
    view, snapshot = detail.view, detail.view.snapshot
    if waiting := waiting_text(view):
        return line((f" {waiting}", "busy"))
    if view.is_foreign and not view.is_live:
        return line((" last known values", "dim"))
    if rank is None:
        text = f" press {key('view.logs')} for output from all ranks"
        return line((text, "dim")) if snapshot.launcher else ()

    def about(one: RankSample) -> Line:
        if not one.state_reason:
            return rank_detail(one, snapshot.launcher, cells)
        return line((f" rank {one.rank}  ", "strong"), clip(one.state_reason, max(10, cells - 12)))

    # the row stays while the cursor is on a rank without details
    return about(rank) or (((" ", ""),) if any(map(about, detail.ranks[:FEW])) else ())


class RankShape(CursorList[RankSample]):
    """What cards, table, and map have in common: the job, and the rank under the cursor."""

    detail: JobDetail | None = None
    now = dt.datetime.min

    @property
    def rank(self) -> int | None:
        """The number of the selected rank; None if there is none."""
        return None if self.cursor_key is None else int(self.cursor_key)

    def apart(self, rank: RankSample) -> RankDeviation:
        """The rank's distance from the others."""
        return NOTHING if self.detail is None else self.detail.deviations.get(rank.rank, NOTHING)

    def take(self, detail: JobDetail, now: dt.datetime) -> None:
        """Take over the job and its ranks."""
        self.detail, self.now, self.items = detail, now, detail.ranks
        self.set_keys([str(rank.rank) for rank in detail.ranks])

    def explain_item(self, item: RankSample) -> list[tuple[str, str]]:
        """Help on a rank."""
        is_live = self.detail is not None and self.detail.view.is_live
        return explain_rank(item, self.apart(item), self.now, is_live)


class RankGrid(RankShape):
    """Several ranks per row, walked in two directions."""

    BINDINGS = bindings(ACROSS)

    def action_across(self, ranks: int) -> None:
        """Move to the adjacent rank."""
        self.step(ranks)


class RankCards(RankGrid):
    """Cards in a grid; the selected one has a heavy border."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._around = Around(dt.datetime.min, False)
        self._grid: Grid | None = None

    def show(self, detail: JobDetail, now: dt.datetime, recent: Recent) -> None:
        """Show the job's ranks."""
        snapshot = detail.view.snapshot
        live = detail.view.is_live
        self._around = around(snapshot.ranks, snapshot.gpus, now, live, recent.losses, SPARK_S)
        self.take(detail, now)
        self.redraw()

    def _foot(self, width: int) -> Line:
        return () if self.detail is None else foot_of(self.detail, self.chosen, width)

    def build(self, width: int, height: int) -> list[Line]:
        """Build the cards."""
        foot = self._foot(width)
        self._grid = found = fit_cards(self.detail, width, height)
        if found is None:
            text = f" not enough room for cards; press {key('ranks.shape')} for the table"
            return [line((text, "dim"))]
        self.per_row = found.columns
        lines: list[Line] = []
        for first in range(0, len(self.items), found.columns):
            cards = [
                card_lines(
                    rank,
                    self.apart(rank),
                    self._around,
                    found.width,
                    found.height,
                    rank.rank == self.rank,
                )
                for rank in self.items[first : first + found.columns]
            ]
            for parts in zip(*cards, strict=True):
                spans = [part for one in parts for part in (*one, (" " * GAP, ""))]
                lines.append(tuple(spans[:-1]))
        return [*lines, foot] if foot else lines

    def at(self, x: int, y: int) -> int | None:
        """Index of the card drawn at a cell."""
        if self._grid is None:
            return None
        column, inside = divmod(x, self._grid.width + GAP)
        if column >= self._grid.columns or inside >= self._grid.width:
            return None
        return y // self._grid.height * self._grid.columns + column


def fit_cards(detail: JobDetail | None, cells: int, most_rows: int) -> Grid | None:
    """The grid of the ranks' cards in this many cells and rows; None if they do not fit."""
    if detail is None:
        return None
    return grid(len(detail.ranks), cells, most_rows - has_foot(detail), wanted_rows(detail.ranks))


def has_foot(detail: JobDetail) -> bool:
    """Whether there is a row below the cards."""
    return any(foot_of(detail, rank, FEW) for rank in detail.ranks[:1])


class RankTable(RankShape, Table[RankSample]):
    """One row per rank."""

    def __init__(self) -> None:
        super().__init__("ranks", columns_of((), False), empty=NO_RANK, id="rank-table")
        self._worst_first = False

    def next_order(self) -> None:
        """Sort by number, or ranks that need attention first."""
        self._worst_first = not self._worst_first
        if self.detail is not None:
            self.show(self.detail, self.now)

    def foot(self, width: int) -> Line:
        """What the columns do not show of the selected rank, or what the job waits for."""
        return () if self.detail is None else foot_of(self.detail, self.chosen, width)

    def show(self, detail: JobDetail, now: dt.datetime) -> None:
        """Show the job's ranks."""
        self.detail, self.now = detail, now
        snapshot, live = detail.view.snapshot, detail.view.is_live
        ranks, note = detail.ranks, line()
        self.empty = NO_RANK if detail.only is None else with_keys(NO_MATCH)
        if self._worst_first:
            ranks = worst_first(ranks, detail.deviations, live)
            note = line((f"worst first; {key('ranks.sort')}: sort by rank", "dim"))
        self.items = ranks
        hosts = short_names(hosts_of(snapshot)) if has_several(snapshot) else {}
        self._columns = columns_of(ranks, detail.view.is_foreign, hosts)
        rows: list[tuple[str, Row]] = []
        for rank in ranks:
            own = self.apart(rank)
            look = Subject(rank, now, live, own, hosts, verdict(rank, own, now, live))
            rows.append((str(rank.rank), rank_row(look)))
        self.set_rows(rows, note)


AROUND_ROWS = 4
"""Rows for title, ruler, legend, and foot."""

WORST_CELLS = 30
WORST_FROM = 110
"""From this width on, the worst ranks are next to the map."""


class HeatMap(RankGrid):
    """One cell per rank; a key changes the figure shown."""

    DEFAULT_CSS = """
    HeatMap {
        .line--picked { color: $background; background: $accent; text-style: bold; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.figure = STATE
        """The figure that the cells show."""
        self._known: Sequence[str] = (STATE,)
        self._gpus: Mapping[int, GpuSample] = {}
        self._cells: list[Span] = []
        self._top = 0
        self._grid: HeatGrid | None = None
        self._has_chosen = False

    def show(self, detail: JobDetail, now: dt.datetime) -> None:
        """Show the job's ranks."""
        self.take(detail, now)
        snapshot = detail.view.snapshot
        self._gpus = own_devices(snapshot.ranks, snapshot.gpus)
        self._known = known_figures(self.items, detail.deviations)
        if not self._has_chosen or self.figure not in self._known:
            usual = (one for one in ("busy", "time") if one in self._known)
            self.figure = next(usual, STATE)
        self._paint()

    def _paint(self) -> None:
        deviations = {} if self.detail is None else self.detail.deviations
        self._cells = map_cells(self.figure, self.items, deviations)
        self.redraw()

    def next_figure(self) -> None:
        """Color the cells by the next known figure."""
        known = [one for one in ORDER if one in self._known]
        self._has_chosen = True
        self.figure = known[(known.index(self.figure) + 1) % len(known)]
        self._paint()

    def rows_wanted(self, cells: int, most: int) -> int:
        """Rows that show every rank, up to `most`."""
        rows = self._layout_grid(cells, most).rows(len(self.items))
        return min(most, AROUND_ROWS + rows)

    def _layout_grid(self, cells: int, rows: int) -> HeatGrid:
        largest = max((rank.rank for rank in self.items), default=0)
        across = cells - WORST_CELLS - 2 if cells >= WORST_FROM else cells
        room = max(1, rows - AROUND_ROWS)
        return heat_grid(len(self.items), across - 1, room, largest)

    @property
    def rows_shown(self) -> int:
        """Rows of the map that are visible."""
        return max(1, self.size.height - AROUND_ROWS)

    def build(self, width: int, height: int) -> list[Line]:
        """Build title, rows around the cursor, legend, and the selected rank's figures."""
        number = len(self.items)
        if self.detail is None or not number:
            return [rule("ranks", width), line((f"  {NO_RANK}", "dim"))]
        self._grid = grid = self._layout_grid(width, height)
        self.per_row = grid.per_row
        room = max(1, height - AROUND_ROWS)
        place, total = self.place, grid.rows(number)
        row = place // grid.per_row
        self._top = max(0, min(self._top, row, total - room), row - room + 1)
        shown = range(self._top, min(total, self._top + room))
        rows = f"{self._top + 1}-{self._top + len(shown)} of {total}" if len(shown) < total else ""
        lines = [ruler(grid, place, width)]
        lines += [map_row(one, grid, self.items, self._cells, place) for one in shown]
        if width >= WORST_FROM:
            at = min(grid.label + grid.per_row * grid.cell + 6, width - WORST_CELLS)
            worst = self._worst(len(lines))
            worst += [()] * (len(lines) - len(worst))
            lines = [(*fit(left, at), *right) for left, right in zip(lines, worst, strict=True)]
        title = f"{number:,} ranks by {name_of(self.figure)}"
        return [
            rule(title, width, map_hint(rows)),
            *lines,
            *[()] * (room + 1 - len(lines)),
            legend(self.figure, self.items, width),
            self._foot(width),
        ]

    def _worst(self, rows: int) -> list[Line]:
        """The worst ranks, one per row, under a heading."""
        if rows < 2 or self.detail is None:
            return []
        found = worst_ranks(self.figure, self.items, self.detail.deviations, rows - 1)
        lines = [line((" largest deviations", "title"))]
        if not found:
            calm = "all ranks healthy" if self.figure == STATE else "none: all ranks are similar"
            return [*lines, line((f"  {calm}", "dim"))]
        hosts = {rank.rank: rank.host for rank in self.items}
        for rank, (text, style) in found:
            head = f"  rank {rank:>5}  "
            lines.append(line(head, (f"{text:<10}", style), (f" {hosts[rank]}", "dim")))
        return lines

    def _foot(self, cells: int) -> Line:
        if self.detail is None or (rank := self.chosen) is None:
            return () if self.detail is None else foot_of(self.detail, None, cells)
        device, live = self._gpus.get(rank.rank), self.detail.view.is_live
        return rank_line(rank, self.apart(rank), device, self.now, live, cells)

    def at(self, x: int, y: int) -> int | None:
        """Index of the rank drawn at a cell."""
        grid, row = self._grid, y - 2
        if grid is None or not 0 <= row < self.rows_shown or x < grid.label:
            return None
        column = (x - grid.label) // grid.cell
        if column >= grid.per_row:
            return None
        return (self._top + row) * grid.per_row + column

    def explain(self) -> list[tuple[str, str]]:
        """Help on the cells and on the selected rank."""
        return [*explain_heat(name_of(self.figure)), *super().explain()]


Shape = Literal["cards", "table", "heat"]


def usual_shape(ranks: int) -> Shape:
    """The default shape for a number of ranks: cards up to 8, a table up to 64, else a map."""
    if ranks == 0 or MOST_CARDS < ranks < FEWEST:
        return "table"
    return "cards" if ranks <= MOST_CARDS else "heat"


class RankPanel(Vertical):
    """Shows the ranks in one of three shapes, which share the selected rank."""

    DEFAULT_CSS = """
    RankPanel > RankShape { width: 100%; height: 1fr; }
    """

    class Moved(Message):
        """Another rank was selected."""

    class Chosen(Message):
        """Open the selected rank."""

    def __init__(self) -> None:
        super().__init__(id="ranks")
        self.table = RankTable()
        self.cards = RankCards(id="rank-cards")
        self.heat = HeatMap(id="rank-heat")
        self._shapes: Mapping[Shape, RankCards | RankTable | HeatMap] = {
            "cards": self.cards,
            "table": self.table,
            "heat": self.heat,
        }
        self.shape: Shape = "table"
        """The current shape."""
        self._wanted: Shape | None = None
        """The shape that the user chose; None depends on the number of ranks."""
        self._rank: int | None = None

    def compose(self) -> ComposeResult:
        """All three shapes, of which one is displayed."""
        yield from self._shapes.values()

    def on_mount(self) -> None:
        """Show the table until the ranks are known."""
        self._show_shape()

    @property
    def shown(self) -> RankCards | RankTable | HeatMap:
        """The widget of the current shape."""
        return self._shapes[self.shape]

    @property
    def rank(self) -> int | None:
        """The selected rank; None if there is none."""
        return self.shown.rank

    def show(
        self, detail: JobDetail, now: dt.datetime, recent: Recent, cells: int, most: int
    ) -> int:
        """Show the job's ranks; returns how many rows they need.

        Args:
            detail: the job.
            now: the current time, for durations.
            recent: the job's last minutes.
            cells: the available width.
            most: the maximum number of rows.
        """
        shape = self.usual(detail)
        cards = fit_cards(detail, cells, most) if shape == "cards" else None
        if not detail.ranks or (shape == "cards" and cards is None):
            shape = "table"
        if shape != self.shape:
            self._take_shape(shape)
        if cards is not None:
            self.cards.show(detail, now, recent)
            return cards.rows * cards.height + has_foot(detail)
        if self.shape == "heat":
            self.heat.show(detail, now)
            return self.heat.rows_wanted(cells, most)
        self.table.show(detail, now)
        return min(most, max(5, self.table.rows_wanted()))

    def _take_shape(self, shape: Shape) -> None:
        """Switch to a shape, with the selected rank and the focus."""
        before, self.shape = self.shown, shape
        self.shown.cursor_key = before.cursor_key
        self._show_shape()
        if before.has_focus:
            self.shown.focus()

    def _show_shape(self) -> None:
        for name, widget in self._shapes.items():
            widget.display = name == self.shape

    def usual(self, detail: JobDetail) -> Shape:
        """The shape that the user chose if it fits, else the one for the number of ranks."""
        number = len(detail.ranks)
        shape = self._wanted or usual_shape(number)
        if shape != "heat" or detail.only is None:
            return shape
        return "cards" if usual_shape(number) == "cards" else "table"

    def next_shape(self) -> Shape:
        """Switch to the next of cards, table, and map; the choice stays as long as it fits."""
        shapes = list(self._shapes)
        self._wanted = shapes[(shapes.index(self.shape) + 1) % len(shapes)]
        return self._wanted

    @on(CursorList.Moved)
    def _moved(self, message: CursorList.Moved) -> None:
        message.stop()
        if isinstance(message, CursorList.Chosen):
            self.post_message(self.Chosen())
        elif self.rank != self._rank:
            self._rank = self.rank
            self.post_message(self.Moved())
