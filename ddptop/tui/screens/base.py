"""What the screens that watch have in common."""

from __future__ import annotations

from textual.reactive import var
from textual.screen import Screen

from ddptop.tui.messages import WishChanged
from ddptop.tui.snapshot import Snapshot, Wish

HORIZONTAL = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]
VERTICAL = [(0, "-short"), (32, "-tall")]


class MonitorScreen(Screen[None]):
    """A screen that shows snapshots and says what should be in them."""

    HORIZONTAL_BREAKPOINTS = HORIZONTAL
    VERTICAL_BREAKPOINTS = VERTICAL

    snapshot: var[Snapshot | None] = var(None, init=False, always_update=True)
    """The latest look."""

    def wish(self) -> Wish:
        """What this screen needs to know."""
        raise NotImplementedError

    def show(self, snapshot: Snapshot) -> None:
        """Bring the widgets up to date."""
        raise NotImplementedError

    def on_screen_resume(self) -> None:
        """Seen again, or for the first time: what is needed has changed."""
        self.post_message(WishChanged())

    def watch_snapshot(self, snapshot: Snapshot | None) -> None:
        """Show each look once."""
        if snapshot is not None and self.is_mounted:
            with self.app.batch_update():
                self.show(snapshot)
