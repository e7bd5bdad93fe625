"""How tests control the log screen and read what it shows."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from ddptop.style import plain
from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.logs import LogHead, LogsScreen
from tests.support import fake_logs
from tests.support.driving import look, until
from textual.pilot import Pilot


async def opened(
    pilot: Pilot[None], rank: int | None, job: str = fake_logs.JOB, **more: bool
) -> LogsScreen:
    """The log screen with its first lines."""
    app = pilot.app
    assert isinstance(app, DdptopApp)
    await look(pilot)
    app.post_message(ScreenWanted("logs", job, rank, **more))
    await until(pilot, lambda: isinstance(app.screen, LogsScreen))
    screen = app.screen
    assert isinstance(screen, LogsScreen)
    await look(pilot)
    await settled(pilot, screen)
    return screen


@contextlib.asynccontextmanager
async def log_of(
    app: DdptopApp,
    rank: int | None,
    job: str = fake_logs.JOB,
    size: tuple[int, int] = (120, 40),
    **more: bool,
) -> AsyncIterator[tuple[DdptopApp, Pilot[None], LogsScreen]]:
    """The app with the log screen open, and its first lines."""
    async with app.run_test(size=size) as pilot:
        yield app, pilot, await opened(pilot, rank, job, **more)


async def settled(pilot: Pilot[None], screen: LogsScreen) -> None:
    """Everything requested has arrived."""
    await until(pilot, lambda: screen.pager.shown == screen.pager.generation, "the log's lines")
    await pilot.pause()


def view(screen: LogsScreen) -> list[str]:
    """The rows of the pager, without the scroll bar and trailing empty rows."""
    rows = [plain(line)[:-1].rstrip() for line in screen.pager._lines]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def title(screen: LogsScreen) -> str:
    return plain(screen.query_one(LogHead)._lines[0])


def cursor(screen: LogsScreen) -> str:
    row = screen.pager.current
    assert row is not None
    return row.text


async def press(pilot: Pilot[None], screen: LogsScreen, *keys: str) -> None:
    await pilot.press(*keys)
    await settled(pilot, screen)


async def search(pilot: Pilot[None], screen: LogsScreen, text: str) -> None:
    await pilot.press("slash", *text, "enter")
    await until(pilot, lambda: screen._search and not screen._is_searching, "the search's end")
    await pilot.pause()
