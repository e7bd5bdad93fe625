"""One rank: what it does, and since when it is odd."""

from __future__ import annotations

from textual.app import ComposeResult

from ddptop.tui.actions.common import bindings
from ddptop.tui.actions.rank import RANK
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import Snapshot, Wish
from ddptop.tui.widgets.key_bar import KeyBar
from ddptop.tui.widgets.title_bar import TitleBar


class RankScreen(MonitorScreen):
    """One rank: what it does, and since when it is odd."""

    BINDINGS = bindings(RANK)

    def __init__(
        self, job: str, rank: int, *, foreign: bool = False, readonly: bool = False
    ) -> None:
        super().__init__(readonly=readonly)
        self.job, self.rank, self.foreign = job, rank, foreign
        self._title = TitleBar(readonly=readonly)
        self._keys = KeyBar(RANK)

    def compose(self) -> ComposeResult:
        """Title and keys."""
        yield from (self._title, self._keys)

    def wish(self) -> Wish:
        """What it shows."""
        return Wish(job=self.job, rank=self.rank, foreign=self.foreign, devices=False, follow=True)

    def show(self, snapshot: Snapshot) -> None:
        """Bring it up to date."""
        self._title.show(f"{self.job}, rank {self.rank}", self.place(snapshot))
