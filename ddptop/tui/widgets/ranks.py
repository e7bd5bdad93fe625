"""A job's ranks as cards, a table, or a map, depending on their number and the room."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message

from ddptop.draw.heat import (
    FEWEST,
    ORDER,
    STATE,
    HeatGrid,
    cells_of,
    figures_of,
    heat_grid,
    known_figures,
    legend,
    map_hint,
    map_row,
    name_of,
    ruler,
    worst_ranks,
)
from ddptop.draw.launchers import launcher_line, launcher_state, launcher_summary, rank_detail
from ddptop.draw.ranks import GAP, Around, Grid, around, card_lines, grid, wanted_rows
from ddptop.draw.ranks import MOST as MOST_CARDS
from ddptop.job.figures.columns import Column, Row, plain_cell
from ddptop.job.figures.ranks import NOTHING, Subject, columns_of, rank_row
from ddptop.job.help import explain_heat, explain_rank, glossary
from ddptop.job.hosts import has_several, hosts_of, short_names
from ddptop.job.keys import MOVING, key, with_keys
from ddptop.job.loss_trend import SPARK_S, Recent
from ddptop.job.outliers import state_of, verdict, worst_first
from ddptop.job.ranks import is_rank_too, launcher_name
from ddptop.job.status import waiting_text
from ddptop.sources.job import JobDetail
from ddptop.style import Line, Span, clip, fill, fit, line, rule, width
from ddptop.tui.keymap import bindings
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.table import Table
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.judge.balance.rank_devices import own_devices
from ddptop_runner.model.snapshot import GpuSample, LauncherSample, NodeSnapshot, RankSample


class RankGrid(LinesView, can_focus=True):
    """Ranks in rows of `per_row`; the cursor stays on its rank if ranks appear or disappear."""

    BINDINGS = [
        *bindings(MOVING),
        Binding("left,h", "across(-1)", "Left", show=False, id="ranks.left"),
        Binding("right", "across(1)", "Right", show=False, id="ranks.right"),
    ]

    @dataclass
    class Moved(Message):
        """The cursor moved to another rank."""

        grid: RankGrid
        rank: int | None
        """The rank; None is a command's launcher, shown above its ranks."""

    class Chosen(Moved):
        """Enter, or a click on the rank under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.shown: Sequence[RankSample] = ()
        """The ranks shown, in order."""
        self.rank: int | None = None
        """The selected rank; None if there is none or the launcher is selected."""
        self.has_launcher = False
        """Whether a launcher is shown above the ranks and can be selected."""
        self.per_row = 1
        """Ranks per row."""

    @property
    def place(self) -> int:
        """Index of the selected rank among those shown; -1 is the launcher."""
        if self.rank is None:
            return -1 if self.has_launcher else 0
        for place, rank in enumerate(self.shown):
            if rank.rank == self.rank:
                return place
        return 0

    def take(self, ranks: Sequence[RankSample]) -> None:
        """Show these ranks; the cursor stays on its rank, or on its place if the rank is gone."""
        place = self.place
        self.shown = ranks
        if not ranks:
            self.rank = None
        elif place >= 0 and all(rank.rank != self.rank for rank in ranks):
            self._choose(min(place, len(ranks) - 1))

    def move_to(self, rank: int | None) -> None:
        """Put the cursor on a rank, if it is shown."""
        for place, one in enumerate(self.shown):
            if one.rank == rank and rank != self.rank:
                self._choose(place)
                self.redraw()

    def step(self, ranks: int) -> None:
        """Move the cursor by some ranks."""
        least = -1 if self.has_launcher else 0
        place = min(len(self.shown) - 1, max(least, self.place + ranks))
        if self.shown and place != self.place:
            self._choose(place)
            self.redraw()

    def _choose(self, place: int) -> None:
        self.rank = None if place < 0 else self.shown[place].rank
        self.post_message(self.Moved(self, self.rank))

    def at(self, x: int, y: int) -> int | None:
        """The place of the rank drawn at a cell."""
        raise NotImplementedError

    def rows_shown(self) -> int:
        """Rows of ranks that are visible at once."""
        return 1

    def action_across(self, ranks: int) -> None:
        """Move to the adjacent rank."""
        self.step(ranks)

    def action_move(self, rows: int) -> None:
        """Move to the rank below or above; from the edge, to the first or last rank."""
        target = self.place + rows * self.per_row
        if self.place < 0 or (rows == -1 and target < 0 and self.has_launcher):
            self.step(-self.place - 1 if rows < 0 else 1 if rows == 1 else len(self.shown))
        elif 0 <= target < len(self.shown):
            self.step(rows * self.per_row)
        elif abs(rows) > 1:
            self.step(-len(self.shown) if rows < 0 else len(self.shown))
        elif rows > 0 and self.place // self.per_row < (len(self.shown) - 1) // self.per_row:
            self.step(len(self.shown))  # the last row may be incomplete

    def action_page(self, pages: int) -> None:
        """Move by one page."""
        self.action_move(pages * max(1, self.rows_shown() - 1))

    def action_half(self, pages: int) -> None:
        """Move by half a page."""
        self.action_move(pages * max(1, self.rows_shown() // 2))

    def action_choose(self) -> None:
        """Open the selected rank."""
        if self.shown:
            self.post_message(self.Chosen(self, self.rank))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the rank that was clicked, or open it if the cursor is there."""
        place = self.at(event.x, event.y)
        if place is None or place >= len(self.shown):
            return
        if self.shown[place].rank == self.rank:
            self.action_choose()
        else:
            self.move_to(self.shown[place].rank)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(-1)

    def on_focus(self) -> None:
        """Show the cursor."""
        self.redraw()

    def on_blur(self) -> None:
        """Dim the cursor."""
        self.redraw()


class RankCards(RankGrid):
    """Cards in a grid; the selected one has a heavy border."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._apart: Mapping[int, RankDeviation] = {}
        self._around = Around(dt.datetime.min, False)
        self._grid: Grid | None = None

    def show(self, detail: JobDetail, now: dt.datetime, recent: Recent) -> None:
        """Show the job's ranks."""
        snapshot = detail.view.snapshot
        ranks = snapshot.ranks if snapshot is not None else []
        gpus = snapshot.gpus if snapshot is not None else []
        live = detail.view.is_live
        self._apart = detail.deviations
        self._around = around(
            ranks, gpus, now, live, recent.step_times, recent.losses, SPARK_S, detail.has_slow_rank
        )
        self.take(detail.ranks)
        self.redraw()

    def fit(self, cells: int, most_rows: int) -> Grid | None:
        """The grid of the cards in this many cells and rows; None if they do not fit."""
        return grid(len(self.shown), cells, most_rows, wanted_rows(self.shown))

    def build(self, width: int, height: int) -> list[Line]:
        """Build the cards."""
        self._grid = found = self.fit(width, height)
        if found is None:
            return [
                line(
                    (f" not enough room for cards; press {key('ranks.shape')} for the table", "dim")
                )
            ]
        self.per_row = found.columns
        lines: list[Line] = []
        for first in range(0, len(self.shown), found.columns):
            row = self.shown[first : first + found.columns]
            cards = [
                card_lines(
                    rank,
                    self._apart.get(rank.rank, NOTHING),
                    self._around,
                    self._edges(place, width)[1],
                    found.height,
                    rank.rank == self.rank,
                    found.width,
                )
                for place, rank in enumerate(row)
            ]
            for parts in zip(*cards, strict=True):
                spans = [part for one in parts for part in (*one, (" " * GAP, ""))]
                lines.append(tuple(spans[:-1]))
        return lines

    def _edges(self, column: int, cells: int) -> tuple[int, int]:
        """Start and width of a column of cards."""
        assert self._grid is not None
        more = cells - (self._grid.width + GAP) * self._grid.columns + GAP
        start = column * (self._grid.width + GAP) + min(column, more)
        return start, self._grid.width + (column < more)

    def at(self, x: int, y: int) -> int | None:
        """The place of the card drawn at a cell."""
        if self._grid is None:
            return None
        for column in range(self._grid.columns):
            start, cells = self._edges(column, self.size.width)
            if start <= x < start + cells:
                return y // self._grid.height * self._grid.columns + column
        return None

    def explain(self) -> list[tuple[str, str]]:
        """Help on the selected card."""
        if not self.shown or self.place < 0:
            return glossary("launcher") if self.has_launcher else []
        rank = self.shown[self.place]
        apart = self._apart.get(rank.rank, NOTHING)
        return explain_rank(rank, apart, self._around.now, self._around.live)


LAUNCHER_ROW = "launcher"
"""The key of the launcher row, shown above the ranks of a command."""

NO_RANK = "no ranks have started yet"
NO_MATCH = "no ranks match; press {view.back} to show all"


class RankTable(Table):
    """One row per rank; the cursor is on the selected rank."""

    def __init__(self) -> None:
        super().__init__("ranks", columns_of((), False), empty=NO_RANK, id="rank-table")
        self._launcher: LauncherSample | None = None
        self._by_rank: dict[int, RankSample] = {}
        self._has_details = False
        self._waiting = ""
        self._worst_first = False
        self._shown: tuple[JobDetail, dt.datetime, Line] | None = None

    def next_order(self) -> None:
        """Sort by number, or ranks that need attention first."""
        self._worst_first = not self._worst_first
        if self._shown is not None:
            self.show(*self._shown)

    def explain(self) -> list[tuple[str, str]]:
        """Help on the row under the cursor."""
        rank = self._by_rank.get(self.rank) if self.rank is not None else None
        if rank is None or self._shown is None:
            return glossary("launcher") if self._launcher else []
        detail, now, _ = self._shown
        apart = detail.deviations.get(rank.rank, NOTHING)
        return explain_rank(rank, apart, now, detail.view.is_live)

    @property
    def rank(self) -> int | None:
        """The selected rank; None if there is none or the launcher is selected."""
        return int(self.cursor_key) if self.cursor_key not in (None, LAUNCHER_ROW) else None

    def _hosts(self, snapshot: NodeSnapshot | None) -> Mapping[str, str]:
        """Short names of the job's hosts, if there are several."""
        if not has_several(snapshot):
            return {}
        return short_names(hosts_of(snapshot), 12 if self.size.width >= 100 else 8)

    def foot(self, width: int) -> Line:
        """What the columns do not show of the selected rank, or what the job waits for."""
        if self._waiting:
            return line((f" {self._waiting}", "busy"))
        if self.rank is None or self.rank not in self._by_rank:
            return (
                line((f" press {key('view.logs')} for output from all ranks", "dim"))
                if self._launcher
                else ()
            )
        detail = rank_detail(self._by_rank[self.rank], self._launcher, width)
        return detail or ((" ", ""),) if self._launcher or self._has_details else ()

    def line_of(self, key: str, row: Row, layout: Sequence[tuple[Column, int]], width: int) -> Line:
        """Draw a row; the launcher's starts with its name, and has the figures that fit."""
        if key != LAUNCHER_ROW or self._launcher is None:
            return super().line_of(key, row, layout, width)
        state = launcher_state(self._launcher)
        return launcher_line(plain_cell(row["launcher"]), self._launcher, state, layout, width)

    def show(self, detail: JobDetail, now: dt.datetime, note: Line = ()) -> None:
        """Show the job's ranks."""
        self._shown = (detail, now, note)
        snapshot, live = detail.view.snapshot, detail.view.is_live
        ranks = detail.ranks
        self.empty = NO_RANK if detail.only is None else with_keys(NO_MATCH)
        if self._worst_first:
            ranks = worst_first(ranks, detail.deviations, live)
            note = (*note, (f"  worst first; {key('ranks.sort')}: sort by rank", "dim"))
        foreign = detail.view.is_foreign
        hosts = self._hosts(snapshot)
        self._columns = columns_of(ranks, foreign, hosts)
        if foreign and not live:
            note = line(("last known values", "dim"))
        apart = detail.deviations
        rows = []
        for rank in ranks:
            own = apart.get(rank.rank, NOTHING)
            look = Subject(rank, now, live, own, hosts, verdict(rank, own, now, live))
            rows.append((str(rank.rank), rank_row(look)))
        launcher = None if snapshot is None else snapshot.launcher
        every_rank = ranks if snapshot is None else snapshot.ranks
        if launcher is not None and not is_rank_too(launcher, every_rank):
            name = launcher_name(detail.view) or launcher.name
            row = {"launcher": (name, ""), "state": launcher_state(launcher)}
            rows.insert(0, (LAUNCHER_ROW, row))
        self._launcher = launcher
        self._waiting = "" if snapshot is None else waiting_text(detail.view, snapshot)
        self._by_rank = {rank.rank: rank for rank in ranks}
        self._has_details = any(rank_detail(rank, launcher, 1000) for rank in ranks)
        self.set_rows(rows, note)


AROUND_ROWS = 4
"""Rows for title, ruler, legend, and foot."""

WORST_CELLS = 30
WORST_FROM = 110
"""From this width on, the worst ranks are next to the map, else below it if there is room."""

FOOT_GAP = "   "


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
        self._cells: list[Span] = []
        self._apart: Mapping[int, RankDeviation] = {}
        self._gpus: Mapping[int, GpuSample] = {}
        self._now = dt.datetime.min
        self._live = False
        self._top = 0
        self._grid: HeatGrid | None = None
        self._has_chosen = False

    def show(self, detail: JobDetail, now: dt.datetime) -> None:
        """Show the job's ranks."""
        snapshot = detail.view.snapshot
        ranks = snapshot.ranks if snapshot is not None else []
        self._apart, self._now, self._live = detail.deviations, now, detail.view.is_live
        self._gpus = own_devices(ranks, snapshot.gpus) if snapshot is not None else {}
        self._known = known_figures(ranks, self._apart)
        if not self._has_chosen:
            self.figure = next((key for key in ("own", "time") if key in self._known), STATE)
        self.take(ranks)
        self._paint()
        self.redraw()

    def _paint(self) -> None:
        if self.figure not in self._known:
            self.figure = STATE
        self._cells = cells_of(self.figure, self.shown, self._apart)

    def next_figure(self) -> None:
        """Color the cells by the next known figure."""
        known = [key for key in ORDER if key in self._known]
        self._has_chosen = True
        self.figure = known[(known.index(self.figure) + 1) % len(known)]
        self._paint()
        self.redraw()

    def rows_wanted(self, cells: int, most: int) -> int:
        """Rows that show every rank, and the worst ones below if they fit, up to `most`."""
        grid = self._layout_grid(cells, most)
        rows = AROUND_ROWS + grid.rows(len(self.shown)) + (self._foot_rows(cells) - 1)
        below = 0 if cells >= WORST_FROM else 4
        return min(most, rows + below) if rows + below <= most else min(most, rows)

    def _layout_grid(self, cells: int, rows: int) -> HeatGrid:
        largest = max((rank.rank for rank in self.shown), default=0)
        across = cells - WORST_CELLS - 2 if cells >= WORST_FROM else cells
        around = AROUND_ROWS + self._foot_rows(cells) - 1
        return heat_grid(len(self.shown), across - 1, max(1, rows - around), largest)

    def _foot_rows(self, cells: int) -> int:
        return 1 if cells >= WORST_FROM else 2

    def rows_shown(self) -> int:
        """Rows of the map that are visible."""
        return max(1, self.size.height - AROUND_ROWS - self._foot_rows(self.size.width) + 1)

    def build(self, width_: int, height: int) -> list[Line]:
        """Build title, rows around the cursor, legend, and the selected rank's figures."""
        number = len(self.shown)
        title = f"{number:,} ranks by {name_of(self.figure)}"
        if not number:
            return [rule("ranks", width_), line(("  no ranks have started yet", "dim"))]
        foot = self._foot(width_) if self.place >= 0 else [()] * self._foot_rows(width_)
        self._grid = grid = self._layout_grid(width_, height)
        self.per_row = grid.per_row
        room = max(1, height - AROUND_ROWS - len(foot) + 1)
        place, total = self.place, grid.rows(number)
        row = max(0, place) // grid.per_row
        self._top = max(0, min(self._top, row, total - room), row - room + 1)
        shown = range(self._top, min(total, self._top + room))
        rows = f"{self._top + 1}-{self._top + len(shown)} of {total}" if len(shown) < total else ""
        hint = map_hint(title, rows, width_)
        lines = [
            ruler(grid, place, width_),
            *(map_row(one, grid, self.shown, self._cells, place) for one in shown),
        ]
        side_by_side = width_ >= WORST_FROM
        spare = height - 1 - len(lines) - 1 - len(foot)
        worst = self._worst(len(lines) if side_by_side else spare)
        if side_by_side:
            used = grid.label + grid.per_row * grid.cell
            lines = _join_columns(lines, worst, min(used + 6, width_ - WORST_CELLS))
        else:
            lines += worst[:spare] if spare >= 2 else []
        lines += [()] * max(0, height - 2 - len(lines) - len(foot))
        return [rule(title, width_, hint), *lines, legend(self.figure, self.shown, width_), *foot]

    def _worst(self, rows: int) -> list[Line]:
        """The worst ranks, one per row, under a heading."""
        if rows < 2:
            return []
        found = worst_ranks(self.figure, self.shown, self._apart, rows - 1)
        head = line((" largest deviations", "title"))
        if not found:
            calm = "all ranks healthy" if self.figure == STATE else "none: all ranks are similar"
            return [head, line((f"  {calm}", "dim"))]
        hosts = {rank.rank: rank.host for rank in self.shown}
        return [
            head,
            *(
                line(f"  rank {one.rank:>5}  ", (f"{one.text:<10}", one.style),
                     (f" {hosts[one.rank]}", "dim"))
                for one in found
            ),
        ]  # fmt: skip

    def _foot(self, cells: int) -> list[Line]:
        rank = self.shown[self.place]
        parts = figures_of(
            rank,
            self._apart.get(rank.rank, NOTHING),
            self._gpus,
            state_of(rank, self._now, self._live),
        )
        rows = self._foot_rows(cells)
        first = fill(parts, cells, FOOT_GAP)
        if rows == 1:
            return [first]
        used = 0
        while used < len(parts) and width(fill(parts[: used + 1], cells, FOOT_GAP)) > 0:
            if fill(parts[: used + 1], cells, FOOT_GAP) == fill(parts[:used], cells, FOOT_GAP):
                break
            used += 1
        second = fill([line("  "), *parts[used:]], cells, FOOT_GAP) if used < len(parts) else ()
        return [first, second]

    def at(self, x: int, y: int) -> int | None:
        """The place of the rank drawn at a cell."""
        grid = self._grid
        row = y - 2
        if grid is None or not 0 <= row < self.rows_shown() or x < grid.label:
            return None
        column = (x - grid.label) // grid.cell
        return (self._top + row) * grid.per_row + column if column < grid.per_row else None

    def explain(self) -> list[tuple[str, str]]:
        """Help on the cells and on the selected rank."""
        if not self.shown or self.place < 0:
            return explain_heat(name_of(self.figure))
        rank = self.shown[self.place]
        apart = self._apart.get(rank.rank, NOTHING)
        about = explain_rank(rank, apart, self._now, self._live)
        return [*explain_heat(name_of(self.figure)), *about]


def _join_columns(lines: Sequence[Line], worst: Sequence[Line], at: int) -> list[Line]:
    found = []
    for place, one in enumerate(lines):
        right = worst[place] if place < len(worst) else ()
        found.append((*fit(one, at), *right))
    return found


Shape = Literal["cards", "table", "heat"]
SHAPES: tuple[Shape, ...] = ("cards", "table", "heat")


def usual_shape(ranks: int) -> Shape:
    """The default shape for a number of ranks: cards up to 8, a table up to 64, else a map."""
    if ranks == 0 or MOST_CARDS < ranks < FEWEST:
        return "table"
    return "cards" if ranks <= MOST_CARDS else "heat"


class _Rows(LinesView):
    """Shows given lines."""

    DEFAULT_CSS = "_Rows { height: 1; display: none; }"

    def __init__(self) -> None:
        super().__init__()
        self._row: Line = ()

    def show(self, row: Line) -> None:
        self._row = row
        self.display = bool(row)
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        return [self._row]


class RankPanel(Vertical):
    """Shows the ranks in one of three shapes, which share the selected rank."""

    DEFAULT_CSS = """
    RankPanel > RankCards, RankPanel > RankTable, RankPanel > HeatMap { width: 100%; height: 1fr; }
    """

    @dataclass
    class Moved(Message):
        """Another rank was selected; None is the launcher of a command."""

        rank: int | None

    class Chosen(Moved):
        """Open the selected rank."""

    def __init__(self) -> None:
        super().__init__(id="ranks")
        self.table = RankTable()
        self.cards = RankCards(id="rank-cards")
        self.heat = HeatMap(id="rank-heat")
        self.shape: Shape = "table"
        """The current shape."""
        self._wanted: Shape | None = None
        """The shape that the user chose; None depends on the number of ranks."""
        self._launcher = _Rows()
        self._foot = _Rows()
        self._ranks: list[RankSample] = []
        self._detail: JobDetail | None = None
        self._rank: int | None = None

    def compose(self) -> ComposeResult:
        """All three shapes, of which one is displayed."""
        yield from (self._launcher, self.cards, self.table, self.heat, self._foot)

    def on_mount(self) -> None:
        """Show the table until the ranks are known."""
        self._show_shape()

    @property
    def shown(self) -> RankCards | RankTable | HeatMap:
        """The widget of the current shape."""
        if self.shape == "cards":
            return self.cards
        return self.table if self.shape == "table" else self.heat

    @property
    def rank(self) -> int | None:
        """The selected rank; None if there is none or the launcher is selected."""
        return self.shown.rank

    def replaces_devices(self, detail: JobDetail) -> bool:
        """Whether the shape for these ranks also shows the devices."""
        snapshot = detail.view.snapshot
        if snapshot is None or self.usual(detail) == "table":
            return False
        if detail is self._detail and self.shape == "table":
            return False
        devices = [gpu for gpu in snapshot.gpus if gpu.parent_uuid is None]
        return len(devices) <= len(snapshot.ranks)

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
        self._detail = detail
        self._ranks = detail.ranks
        self._choose_shape(detail, cells, most - self._extra_rows(detail))
        extra: Line = ()
        foot: Line = ()
        if self.shape == "table":
            self.table.show(detail, now)
        else:
            self.cards.has_launcher = self.heat.has_launcher = self._launcher_of(detail) is not None
            if self.shape == "cards":
                self.cards.show(detail, now, recent)
            else:
                self.heat.show(detail, now)
            extra = self._launcher_line(detail)
            foot = self._foot_line(detail, cells)
        self._launcher.show(extra)
        self._foot.show(foot)
        if self.shape == "table":
            return min(most, max(5, self.table.rows_wanted()))
        room = most - bool(extra) - bool(foot)
        if self.shape == "cards":
            found = self.cards.fit(cells, room)
            assert found is not None  # `usual` chose cards because they fit
            return found.rows * found.height + bool(extra) + bool(foot)
        return self.heat.rows_wanted(cells, room) + bool(extra) + bool(foot)

    def _extra_rows(self, detail: JobDetail) -> int:
        return bool(self._launcher_line(detail)) + bool(self._foot_line(detail, 1000))

    def _launcher_of(self, detail: JobDetail) -> LauncherSample | None:
        """The process shown above the ranks if it is not one of them."""
        snapshot = detail.view.snapshot
        launcher = None if snapshot is None else snapshot.launcher
        if snapshot is None or launcher is None or is_rank_too(launcher, snapshot.ranks):
            return None
        return launcher

    def _launcher_line(self, detail: JobDetail) -> Line:
        if (launcher := self._launcher_of(detail)) is None:
            return ()
        name = launcher_name(detail.view) or launcher.name
        return launcher_summary(name, launcher, chosen=self.rank is None)

    def _foot_line(self, detail: JobDetail, cells: int) -> Line:
        """What cards do not show of the selected rank, or what the job waits for."""
        snapshot = detail.view.snapshot
        if snapshot is None:
            return ()
        if waiting := waiting_text(detail.view, snapshot):
            return line((f" {waiting}", "busy"))
        if detail.view.is_foreign and not detail.view.is_live:
            return line((" last known values", "dim"))
        if self.usual(detail) != "cards":
            return ()
        reasons = {rank.rank: rank.state_reason for rank in self._ranks if rank.state_reason}
        if self.rank in reasons:
            text = clip(f"{reasons[self.rank]}", max(10, cells - 12))
            return line((f" rank {self.rank}  ", "strong"), (text, ""))
        details = {rank.rank: rank_detail(rank, snapshot.launcher, cells) for rank in self._ranks}
        if self.rank is None and self._launcher_of(detail) is not None:
            return line((f" press {key('view.logs')} for output from all ranks", "dim"))
        if not (reasons or any(details.values())):
            return ()
        return details.get(self.rank if self.rank is not None else -1) or ((" ", ""),)

    def _choose_shape(self, detail: JobDetail, cells: int, most: int) -> None:
        shape = self.usual(detail)
        if not self._ranks:
            shape = "table"
        if shape == "cards":
            self.cards.shown = self._ranks
            if self.cards.fit(cells, most) is None:
                shape = "table"
        if shape != self.shape:
            self._take_shape(shape)

    def _take_shape(self, shape: Shape) -> None:
        rank, had_focus = self._rank, self.shown.has_focus
        self.shape = shape
        widget = self.shown
        if isinstance(widget, RankGrid):
            widget.shown = self._ranks
            widget.has_launcher = (
                self._detail is not None and self._launcher_of(self._detail) is not None
            )
            known = any(one.rank == rank for one in self._ranks)
            widget.rank = rank if known else None
        elif rank is not None:
            widget.cursor_key = str(rank)
        self._show_shape()
        if had_focus:
            self.focus_ranks()

    def _show_shape(self) -> None:
        for name, widget in (("cards", self.cards), ("table", self.table), ("heat", self.heat)):
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
        self._wanted = SHAPES[(SHAPES.index(self.shape) + 1) % len(SHAPES)]
        return self._wanted

    def focus_ranks(self) -> None:
        """Focus the current shape."""
        self.shown.focus()

    def move_to(self, rank: int) -> None:
        """Select a rank, if it exists."""
        widget = self.shown
        if isinstance(widget, RankGrid):
            widget.move_to(rank)
        else:
            widget.move_to(str(rank))

    def step(self, ranks: int) -> None:
        """Select the next or previous rank."""
        widget = self.shown
        if isinstance(widget, RankGrid):
            widget.step(ranks)
        else:
            widget.action_move(ranks)

    # --- actions ---------------------------------------------------------------------------------

    @on(Table.Moved)
    @on(RankGrid.Moved)
    def _moved(self, message: Table.Moved | RankGrid.Moved) -> None:
        message.stop()
        if isinstance(message, Table.Chosen | RankGrid.Chosen):
            self.post_message(self.Chosen(self.rank))
            return
        if self.rank != self._rank:
            self._rank = self.rank
            if self._detail is not None and self.shape != "table":
                self._foot.show(self._foot_line(self._detail, self.size.width))
                self._launcher.show(self._launcher_line(self._detail))
            self.post_message(self.Moved(self._rank))

    def explain(self) -> list[tuple[str, str]]:
        """Help on the item under the cursor."""
        return self.shown.explain()
