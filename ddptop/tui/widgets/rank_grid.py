"""The base of what shows ranks in a grid: a cursor in two directions, mouse and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.binding import Binding
from textual.message import Message

from ddptop.tui.actions import MOVING, bindings
from ddptop.tui.widgets.lines import LinesView
from ddptop_runner.model.snapshot import RankSample


class RankGrid(LinesView, can_focus=True):
    """Ranks in rows of `per_row`; the cursor stays on its rank when ranks come and go."""

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
        """None is a command's launcher, shown above its ranks."""

    class Chosen(Moved):
        """Enter, or a click on the rank under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.shown: Sequence[RankSample] = ()
        """The ranks, in order."""
        self.rank: int | None = None
        """The chosen rank; None while there is none, and on the launcher."""
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
        """Show these ranks; the cursor stays on its rank, or on its place when that is gone."""
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
        """The place of the rank that is drawn there."""
        raise NotImplementedError

    def rows_shown(self) -> int:
        """Rows of ranks that are visible at once."""
        return 1

    def action_across(self, ranks: int) -> None:
        """Move to the adjacent rank."""
        self.step(ranks)

    def action_move(self, rows: int) -> None:
        """To the rank below or above; from the edge to the first or last rank."""
        target = self.place + rows * self.per_row
        if self.place < 0 or (rows == -1 and target < 0 and self.has_launcher):
            self.step(-self.place - 1 if rows < 0 else 1 if rows == 1 else len(self.shown))
        elif 0 <= target < len(self.shown):
            self.step(rows * self.per_row)
        elif abs(rows) > 1:
            self.step(-len(self.shown) if rows < 0 else len(self.shown))
        elif rows > 0 and self.place // self.per_row < (len(self.shown) - 1) // self.per_row:
            self.step(len(self.shown))  # the last row is not full

    def action_page(self, pages: int) -> None:
        """Move by one page."""
        self.action_move(pages * max(1, self.rows_shown() - 1))

    def action_half(self, pages: int) -> None:
        """Move by half a page."""
        self.action_move(pages * max(1, self.rows_shown() // 2))

    def action_choose(self) -> None:
        """Open the chosen rank."""
        if self.shown:
            self.post_message(self.Chosen(self, self.rank))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor; on the cursor it chooses."""
        place = self.at(event.x, event.y)
        if place is None or place >= len(self.shown):
            return
        if self.shown[place].rank == self.rank:
            self.action_choose()
        else:
            self.move_to(self.shown[place].rank)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves the cursor."""
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves the cursor."""
        event.stop()
        self.action_move(-1)

    def on_focus(self) -> None:
        """The cursor shows."""
        self.redraw()

    def on_blur(self) -> None:
        """The cursor is drawn less."""
        self.redraw()
