"""What happened to a job, attempt by attempt."""

from __future__ import annotations

from textual.app import ComposeResult

from ddptop.tui.actions.common import bindings
from ddptop.tui.actions.story import STORY
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import Snapshot, Wish
from ddptop.tui.widgets.key_bar import KeyBar
from ddptop.tui.widgets.title_bar import TitleBar


class StoryScreen(MonitorScreen):
    """What happened to a job, attempt by attempt."""

    BINDINGS = bindings(STORY)

    def __init__(self, job: str, *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self.job = job
        self._title = TitleBar(readonly=readonly)
        self._keys = KeyBar(STORY)

    def compose(self) -> ComposeResult:
        """Title and keys."""
        yield from (self._title, self._keys)

    def wish(self) -> Wish:
        """What it shows."""
        return Wish(job=self.job, story=True, devices=False, foreign=False)

    def show(self, snapshot: Snapshot) -> None:
        """Bring it up to date."""
        self._title.show(f"story of {self.job}", self.place(snapshot))
