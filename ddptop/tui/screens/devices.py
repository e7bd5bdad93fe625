"""The devices: which is wasted, throttled or broken."""

from __future__ import annotations

from textual.app import ComposeResult

from ddptop.tui.actions.common import bindings
from ddptop.tui.actions.devices import DEVICES
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import Snapshot, Wish
from ddptop.tui.widgets.key_bar import KeyBar
from ddptop.tui.widgets.title_bar import TitleBar


class DevicesScreen(MonitorScreen):
    """The devices: which is wasted, throttled or broken."""

    BINDINGS = bindings(DEVICES)

    def __init__(self, uuid: str | None = None, *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self.uuid = uuid
        self._title = TitleBar(readonly=readonly)
        self._keys = KeyBar(DEVICES)

    def compose(self) -> ComposeResult:
        """Title and keys."""
        yield from (self._title, self._keys)

    def wish(self) -> Wish:
        """What it shows."""
        return Wish(devices=True, device_history_s=900.0)

    def show(self, snapshot: Snapshot) -> None:
        """Bring it up to date."""
        self._title.show("devices", self.place(snapshot))
