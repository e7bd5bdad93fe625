"""The command palette: actions of the current screen, jobs and ranks, and metrics."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from ddptop.job.keys import BACK, EVERYWHERE, EXIT, LEAVE, PALETTE, SCREENS, Key
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.bars import KeyBar
from ddptop.tui.widgets.charts import ChartWidget

MAX_JOBS = 200
"""Maximum number of jobs listed."""


UNLISTED = (BACK, LEAVE, PALETTE)
"""Actions that nobody looks for in the palette."""

NAME_CELLS, KEY_CELLS = 26, 6
"""Widths of the name and key columns."""


class Palette(CommandPalette):
    """Textual's palette with one line per command; the quit key works in it."""

    DEFAULT_CSS = """
    Palette > Vertical { width: 90; max-width: 96%; }
    Palette OptionList { text-wrap: nowrap; text-overflow: ellipsis; }
    """

    BINDINGS = bindings([EXIT])


@dataclass(frozen=True)
class Command:
    """One line of the palette."""

    name: str
    help: str
    run: Callable[[], Awaitable[object] | object]
    key: str = ""
    """The key of the same action."""
    listed: bool = True
    """Whether it is listed before the user types anything."""


class Commands(Provider):
    """Commands by name, each with its key."""

    async def discover(self) -> Hits:
        """The initial list."""
        for command in self.commands(""):
            if command.listed:
                display = _display(Content(command.name), command)
                yield DiscoveryHit(display, command.run, command.name)

    async def search(self, query: str) -> Hits:
        """Commands that match the query."""
        matcher = self.matcher(query)
        for command in self.commands(query):
            if (score := matcher.match(command.name)) > 0:
                display = _display(matcher.highlight(command.name), command)
                yield Hit(score, display, command.run, command.name)

    def commands(self, query: str) -> Iterator[Command]:
        """The commands available now.

        Args:
            query: what the user typed; empty for the initial list.
        """
        yield from self._actions()
        yield from self._jobs(query)
        yield from self._charts()
        yield Command("Theme", "select a theme; the choice is remembered", self.app.search_themes)

    def _actions(self) -> Iterator[Command]:
        """Actions that the key bar offers, including those for which it has no room."""
        screen = self.screen
        table = SCREENS[screen.KEYS] if isinstance(screen, MonitorScreen) else ()
        for action in (*table, *EVERYWHERE):
            if action not in UNLISTED and self._is_offered(action):
                run = partial(screen.app.run_action, action.action, default_namespace=screen)
                yield Command(action.name, action.help, run, action.text)

    def _is_offered(self, action: Key) -> bool:
        bars = self.screen.query(KeyBar)
        if bars:
            return bars.first().offers(action)
        readonly = isinstance(self.screen, MonitorScreen) and self.screen.readonly
        return action.is_offered(None, foreign=False, readonly=readonly)

    def _jobs(self, query: str) -> Iterator[Command]:
        """Each job, and its ranks whose number the user typed."""
        answer = self.screen.answer if isinstance(self.screen, MonitorScreen) else None
        numbers = {int(number) for number in re.findall(r"\d{1,6}", query)}
        for job in answer.look.jobs[:MAX_JOBS] if answer is not None else ():
            wanted = ScreenWanted("job", job.name, foreign=job.is_foreign)
            yield Command(f"go to {job.name}", "open this job", self._post(wanted))
            for rank in job.snapshot.ranks if numbers else ():
                if rank.rank in numbers:
                    wanted = ScreenWanted("rank", job.name, rank.rank, foreign=job.is_foreign)
                    name = f"rank {rank.rank} of {job.name}"
                    yield Command(name, "open this rank", self._post(wanted), listed=False)

    def _post(self, wanted: ScreenWanted) -> Callable[[], object]:
        return partial(self.app.post_message, wanted)

    def _charts(self) -> Iterator[Command]:
        """The metrics that the screen's chart can show."""
        for chart in self.screen.query(ChartWidget):
            for name in chart.names if chart.can_focus or chart.display else ():
                run = partial(chart.show_as, name)
                yield Command(f"chart {name}", "show this metric over time", run, listed=False)


def _display(name: Content, command: Command) -> Content:
    """Name, key, and help on one line."""
    gap = " " * max(2, NAME_CELLS - name.cell_length)
    key = command.key.ljust(KEY_CELLS)
    return Content.assemble(name, gap, (key, "bold"), "  ", (command.help, "dim"))
