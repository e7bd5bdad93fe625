"""The bottom row: the keys that do something now."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.content import Content

from ddptop.tui.actions import Action
from ddptop.tui.actions.common import HELP
from ddptop.tui.prefs.keymap import keys_in_use
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.text import Line, line, spread, width


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
        self._without: frozenset[str] = frozenset()

    def show(
        self,
        live: bool | None,
        *,
        foreign: bool = False,
        readonly: bool = False,
        cost: tuple[str, str] = ("", ""),
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Show the keys for a live job, an ended one, or none; and what watching costs.

        Args:
            live: whether the job lives; None without a job.
            foreign: whether ddptop did not start it.
            readonly: whether nothing may be done to it.
            cost: the longer text that has room is shown.
            without: ids of actions that have nothing to act on.
        """
        now = (live, foreign, readonly, cost, without)
        if now != (self._live, self._foreign, self._readonly, self._cost, self._without):
            self._live, self._foreign, self._readonly, self._cost, self._without = now
            self.redraw()

    def offers(self, action: Action) -> bool:
        """Whether an action applies now to the item under the cursor."""
        if action.id in self._without:
            return False
        return action.is_offered(self._live, foreign=self._foreign, readonly=self._readonly)

    def _labels(self, cells: int) -> list[tuple[Action, Line]]:
        labels: list[tuple[Action, Line]] = []
        keys = keys_in_use(self.app)
        used = 1
        for action in self._actions:
            if action.id == HELP.id or not self.offers(action) or not keys.keys(action):
                continue
            label = line((keys.short(action), "busy"), (f" {action.name}  ", ""))
            if used + width(label) > cells - width(self._help()):  # its gap is that before the help
                break
            used += width(label)
            labels.append((action, label))
        return labels

    def build(self, cells: int, height: int) -> list[Line]:
        """The row."""
        *first, (last, style) = [(" ", ""), *(s for _, label in self._labels(cells) for s in label)]
        keys = (*first, (last.rstrip(), style))
        right = self._help()
        room = cells - width(keys) - width(right) - 7
        if cost := next((text for text in self._cost if text and len(text) <= room), ""):
            right = line((f"{cost}   ", "dim"), *right)
        return [spread(keys, right, cells)]

    def _help(self) -> Line:
        key = keys_in_use(self.app).short(HELP)
        return line((f"{key} " if key else "", "busy"), "Help ")

    def action_at(self, x: int) -> Action | None:
        """The action whose key is drawn there; the help at the right end."""
        if x >= self.size.width - width(self._help()) - 1:
            return HELP
        end = 1
        for action, label in self._labels(self.size.width):
            end += width(label)
            if x < end:
                return action
        return None

    async def on_click(self, event: events.Click) -> None:
        """A click is the key."""
        if (action := self.action_at(event.x)) is not None:
            await self.app.run_action(action.action, default_namespace=self.screen)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """The pointer at rest over a key is told what it does."""
        action = self.action_at(event.x)
        self.tooltip = None if action is None else Content(action.help)
