"""A job's ranks as cards, as a table or as a map, whichever suits their number and the room."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from ddptop.draw.cards import MOST as MOST_CARDS
from ddptop.draw.heat import FEWEST
from ddptop.draw.launched import launcher_alone, rank_detail
from ddptop.sources.snapshot import JobDetail
from ddptop.tui.widgets.heat_map import HeatMap
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.rank_cards import RankCards
from ddptop.tui.widgets.rank_grid import RankGrid
from ddptop.tui.widgets.rank_table import RankTable
from ddptop.tui.widgets.table import Table
from ddptop.view.attention import waiting_text
from ddptop.view.keys import key
from ddptop.view.rank_words import is_rank_too, launcher_name
from ddptop.view.shown import Recent
from ddptop.view.text import Line, clip, line
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.model.snapshot import LauncherSample, RankSample

Shape = Literal["cards", "table", "heat"]
SHAPES: tuple[Shape, ...] = ("cards", "table", "heat")


def usual_shape(ranks: int) -> Shape:
    """The view for a number of ranks: cards up to 8, a table up to 64, a map beyond that."""
    if ranks == 0 or MOST_CARDS < ranks < FEWEST:
        return "table"
    return "cards" if ranks <= MOST_CARDS else "heat"


class _Rows(LinesView):
    """Lines that are given."""

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
    """Exactly one of the three is shown; the chosen rank is the same in all of them."""

    DEFAULT_CSS = """
    RankPanel > RankCards, RankPanel > RankTable, RankPanel > HeatMap { width: 100%; height: 1fr; }
    """

    @dataclass
    class Moved(Message):
        """Another rank was chosen; None is the launcher of a command."""

        rank: int | None

    class Chosen(Moved):
        """A rank is to be opened."""

    def __init__(self) -> None:
        super().__init__(id="ranks")
        self.table = RankTable()
        self.cards = RankCards(id="rank-cards")
        self.heat = HeatMap(id="rank-heat")
        self.shape: Shape = "table"
        """What is shown."""
        self._wanted: Shape | None = None
        """The view that the user chose; None follows the number of ranks."""
        self._launcher = _Rows()
        self._foot = _Rows()
        self._ranks: list[RankSample] = []
        self._detail: JobDetail | None = None
        self._rank: int | None = None

    def compose(self) -> ComposeResult:
        """All three, of which one is displayed."""
        yield from (self._launcher, self.cards, self.table, self.heat, self._foot)

    def on_mount(self) -> None:
        """The table, until ranks are known."""
        self._show_shape()

    @property
    def shown(self) -> RankCards | RankTable | HeatMap:
        """The widget that is shown."""
        if self.shape == "cards":
            return self.cards
        return self.table if self.shape == "table" else self.heat

    @property
    def rank(self) -> int | None:
        """The chosen rank; None while there is none, and while the launcher's row is chosen."""
        return self.shown.rank

    def replaces_devices(self, detail: JobDetail) -> bool:
        """Whether what is shown, or would be, tells of the devices as well."""
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
        """Take a new look at the job's ranks, and say how many rows that wants.

        Args:
            detail: of the job.
            now: for what has passed.
            recent: its last minutes.
            cells: that are there for the ranks.
            most: rows that they may take.
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
            assert found is not None  # the shape was chosen by it
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
        return launcher_alone(name, launcher, chosen=self.rank is None)

    def _foot_line(self, detail: JobDetail, cells: int) -> Line:
        """What cards do not tell of the chosen rank, or what is waited for."""
        snapshot = detail.view.snapshot
        if snapshot is None:
            return ()
        if waiting := waiting_text(detail.view, snapshot):
            return line((f" {waiting}", "busy"))
        if isinstance(detail.view, ForeignView) and not detail.view.is_live:
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
        """What was asked for, or what suits the number of ranks; a map has room for all only."""
        number = len(detail.ranks)
        shape = self._wanted or usual_shape(number)
        if shape != "heat" or detail.only is None:
            return shape
        return "cards" if usual_shape(number) == "cards" else "table"

    def next_shape(self) -> Shape:
        """Switch to cards, table, or map; the choice stays as long as it fits."""
        self._wanted = SHAPES[(SHAPES.index(self.shape) + 1) % len(SHAPES)]
        return self._wanted

    def focus_ranks(self) -> None:
        """Give the keys to what is shown."""
        self.shown.focus()

    def move_to(self, rank: int) -> None:
        """Choose a rank, if there is one of that number."""
        widget = self.shown
        if isinstance(widget, RankGrid):
            widget.move_to(rank)
        else:
            widget.move_to(str(rank))

    def step(self, ranks: int) -> None:
        """The next or previous rank."""
        widget = self.shown
        if isinstance(widget, RankGrid):
            widget.step(ranks)
        else:
            widget.action_move(ranks)

    # --- what a person does ---------------------------------------------------------------------

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
        """What is under the cursor."""
        return self.shown.explain()
