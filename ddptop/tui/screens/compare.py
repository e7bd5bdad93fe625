"""Jobs beside each other."""

from __future__ import annotations

from textual.app import ComposeResult

from ddptop.tui.actions.common import bindings
from ddptop.tui.actions.compare import COMPARE
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import Snapshot, Wish
from ddptop.tui.widgets.key_bar import KeyBar
from ddptop.tui.widgets.title_bar import TitleBar


class CompareScreen(MonitorScreen):
    """Jobs beside each other."""

    BINDINGS = bindings(COMPARE)

    def __init__(self, jobs: tuple[str, ...], *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self.jobs = jobs
        self._title = TitleBar(readonly=readonly)
        self._keys = KeyBar(COMPARE)

    def compose(self) -> ComposeResult:
        """Title and keys."""
        yield from (self._title, self._keys)

    def wish(self) -> Wish:
        """What it shows."""
        return Wish(compare=self.jobs, devices=False, foreign=False)

    def show(self, snapshot: Snapshot) -> None:
        """Bring it up to date."""
        self._title.show(" and ".join(self.jobs), self.place(snapshot))
