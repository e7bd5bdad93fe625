"""Pictures of the log screen, at three sizes.

After an intended change: `pytest tests/screens/test_pictures_logs.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

from ddptop.tui import messages
from ddptop.tui.screens.logs import LogsScreen
from ddptop.tui.themes import DARK
from tests.support import fake_logs
from tests.support.driving import look, until
from tests.support.driving_logs import search, settled
from tests.support.pictures import Picture, by_size
from textual.pilot import Pilot

pytestmark = by_size


async def ready(pilot: Pilot[None]) -> LogsScreen:
    """The screen with its lines."""
    app = pilot.app
    app.theme = DARK.name
    await until(pilot, lambda: isinstance(app.screen, LogsScreen))
    screen = app.screen
    assert isinstance(screen, LogsScreen)
    await look(pilot, 2)
    await settled(pilot, screen)
    await until(pilot, lambda: screen.places.attempts)
    return screen


def test_all_ranks(frozen: Path, picture: Picture, size: object) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        await ready(pilot)

    fake_logs.eight_ranks(frozen)
    picture(size, prepare, opening=messages.ScreenWanted("logs", fake_logs.JOB))


def test_one_rank_searched_and_wrapped(frozen: Path, picture: Picture, size: object) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        screen = await ready(pilot)
        await pilot.press("W")
        await search(pilot, screen, "error|warn")
        await pilot.press("N")
        await until(pilot, lambda: screen._search == 2 and not screen._is_searching)
        await pilot.pause()

    fake_logs.eight_ranks(frozen)
    picture(size, prepare, opening=messages.ScreenWanted("logs", fake_logs.JOB, 5))
