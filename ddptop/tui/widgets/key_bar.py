"""The bottom row: the keys that do something now."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events

from ddptop.tui.actions import Action, keys_text
from ddptop.tui.render.text import Line, line, spread, width
from ddptop.tui.widgets.lines import LinesView

HELP_ID = "app.help"


class KeyBar(LinesView):
    """As many keys as fit, in the table's order, and at the right end always the help.

    Textual's own footer keeps every key it ever showed in memory; this one draws a line.
    """

    DEFAULT_CSS = """
    KeyBar { height: 1; dock: bottom; background: $panel; }
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        super().__init__()
        self._actions = [action for action in actions if action.show]
        self._live: bool | None = None

    def show(self, live: bool | None) -> None:
        """Show the keys for a live job, an ended one, or none."""
        if live != self._live:
            self._live = live
            self.redraw()

    def _labels(self, cells: int) -> list[tuple[Action, Line]]:
        labels: list[tuple[Action, Line]] = []
        used = 1
        for action in self._actions:
            if action.live not in (None, self._live) or action.id == HELP_ID:
                continue
            label = line(
                (action.key_display or keys_text(action), "busy"), (f" {action.name}  ", "")
            )
            if used + width(label) > cells - 8:
                break
            used += width(label)
            labels.append((action, label))
        return labels

    def build(self, width: int, height: int) -> list[Line]:
        """The row."""
        spans = [span for _, label in self._labels(width) for span in label]
        right = line(("?", "busy"), " Help ")
        return [spread(line(" ", *spans), right, width)]

    async def on_click(self, event: events.Click) -> None:
        """A click is the key."""
        x = 1
        for action, label in self._labels(self.size.width):
            x += width(label)
            if event.x < x:
                await self.app.run_action(action.action, default_namespace=self.screen)
                return
        if event.x >= self.size.width - 8:
            await self.app.run_action("app.help")
