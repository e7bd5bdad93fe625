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
        self._foreign = self._readonly = False
        self._cost = ("", "")

    def show(
        self,
        live: bool | None,
        *,
        foreign: bool = False,
        readonly: bool = False,
        cost: tuple[str, str] = ("", ""),
    ) -> None:
        """Show the keys for a live job, an ended one, or none; and what watching costs.

        Args:
            live: whether the job lives; None without a job.
            foreign: whether ddptop did not start it.
            readonly: whether nothing may be done to it.
            cost: the longer text that has room is shown.
        """
        now = (live, foreign, readonly, cost)
        if now != (self._live, self._foreign, self._readonly, self._cost):
            self._live, self._foreign, self._readonly, self._cost = now
            self.redraw()

    def _labels(self, cells: int) -> list[tuple[Action, Line]]:
        labels: list[tuple[Action, Line]] = []
        used = 1
        for action in self._actions:
            if action.id == HELP_ID or not action.is_offered(
                self._live, foreign=self._foreign, readonly=self._readonly
            ):
                continue
            label = line(
                (action.key_display or keys_text(action), "busy"), (f" {action.name}  ", "")
            )
            if used + width(label) > cells - 8:
                break
            used += width(label)
            labels.append((action, label))
        return labels

    def build(self, cells: int, height: int) -> list[Line]:
        """The row."""
        keys = line(" ", *[span for _, label in self._labels(cells) for span in label])
        right = line(("?", "busy"), " Help ")
        room = cells - width(keys) - 14
        if cost := next((text for text in self._cost if text and len(text) <= room), ""):
            right = line((f"{cost}   ", "dim"), *right)
        return [spread(keys, right, cells)]

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
