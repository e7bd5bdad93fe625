"""How tests wait for conditions in an app, never for a time, and read what it shows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ddptop.sources.query import Answer, Query
from ddptop.style import plain
from ddptop.tui.app import DdptopApp
from ddptop.tui.palette import Commands
from ddptop.tui.widgets.bars import KeyBar
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.logs import LogPager
from tests.support import idle
from textual.pilot import Pilot
from textual.widgets import Static

TIMEOUT_S = 60.0


class _Looks:
    """Numbers an app's updates in the order in which they start."""

    def __init__(self, answer: Callable[[Query], Answer]) -> None:
        self._answer = answer
        self.begun = 0
        self._last: tuple[int, Answer | None] = 0, None

    @classmethod
    def of(cls, app: DdptopApp) -> _Looks:
        answer = app.collector.answer
        if not isinstance(answer, cls):
            answer = app.collector.answer = cls(answer)  # type: ignore[method-assign]
        return answer

    def __call__(self, query: Query) -> Answer:
        self.begun += 1
        number = self.begun
        answer = self._answer(query)
        self._last = number, answer
        return answer

    def number_of(self, answer: Answer | None) -> int:
        """The number of an update; 0 if it is not the last, or started before counting."""
        number, last = self._last
        return number if answer is last else 0


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str = "") -> None:
    """Let the app run until `condition()` holds, and process what follows from it."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:g} s: {what or condition}"
        await pilot.pause(0.01)
    await idle.let_it_work()  # a new screen is drawn, and has a field for typed text


async def look(pilot: Pilot[None], times: int = 1) -> None:
    """Make the collector update and the screen show that update, not one already started."""
    app = pilot.app
    assert isinstance(app, DdptopApp)
    for _ in range(times):
        looks = _Looks.of(app)
        begun = looks.begun
        app.collector.ask()
        is_later = lambda looks=looks, begun=begun: looks.number_of(app.latest) > begun  # noqa: E731
        await until(pilot, is_later, "a look")
        await pilot.pause()
        await logs_read(pilot)


async def logs_read(pilot: Pilot[None]) -> None:
    """Everything that the open screens requested from logs has arrived."""
    for screen in pilot.app.screen_stack:
        for reader in [pager.reader for pager in screen.query(LogPager)]:
            for _ in range(2):  # lines that arrive may lead to further requests
                if reader is not None and reader._thread.is_alive():
                    done = threading.Event()
                    reader._asked.put(done.set)
                    await until(pilot, done.is_set, "a log")
                    await pilot.pause()


async def settle(pilot: Pilot[None]) -> None:
    """Update until the results of follow-up requests are there as well."""
    await look(pilot, times=3)
    await pilot.pause()


@contextlib.asynccontextmanager
async def running(
    app: DdptopApp, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[tuple[DdptopApp, Pilot[None]]]:
    """The app in a terminal of this size, with its first results shown."""
    async with app.run_test(size=size, **options) as pilot:
        await settle(pilot)
        yield app, pilot


def shown(app: DdptopApp) -> str:
    """The text of all line widgets on the screen, and the status of a filter."""
    views = app.screen.query(LinesView)
    rows = [plain(line) for view in views if view.display for line in view._lines]
    statuses = app.screen.query(".status").results(Static)
    return "\n".join([*rows, *(str(status.content) for status in statuses)])


def said(app: DdptopApp) -> str:
    """The text of a modal screen, and of notifications."""
    texts = [str(static.content) for static in app.screen.query(Static)]
    return "\n".join([*texts, *(note.message for note in app._notifications)])


def keys_shown(app: DdptopApp) -> str:
    """The bottom row with the keys."""
    return "\n".join(plain(line) for line in app.screen.query_one(KeyBar)._lines)


def offered(app: DdptopApp, query: str = "") -> set[str]:
    """The names of the commands in the palette."""
    return {command.name for command in Commands(app.screen).commands(query)}
