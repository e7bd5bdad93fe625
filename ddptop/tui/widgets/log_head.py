"""The rows above a log: what it is, and which others there are."""

from __future__ import annotations

from textual import events

from ddptop.logs.head import HeadFacts, choices, head_rule
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.text import Line, width


class LogHead(LinesView):
    """The title, and the ranks and attempts to choose from; a click chooses."""

    DEFAULT_CSS = "LogHead { height: 2; }"

    def __init__(self) -> None:
        super().__init__()
        self._facts = HeadFacts()

    def show(self, facts: HeadFacts) -> None:
        """Say this of the log."""
        if facts != self._facts:
            self._facts = facts
            self.redraw()

    def build(self, cells: int, height: int) -> list[Line]:
        """Both rows."""
        row = tuple(span for one in choices(self._facts, cells) for span in one.spans)
        return [head_rule(self._facts, cells), row]

    async def on_click(self, event: events.Click) -> None:
        """Choose what is under the mouse."""
        x = 0
        for one in choices(self._facts, self.size.width):
            x += width(one.spans)
            if event.x < x:
                if event.y == 1 and one.action:
                    await self.app.run_action(one.action, default_namespace=self.screen)
                return
