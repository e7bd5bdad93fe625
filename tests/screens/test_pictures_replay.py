"""Pictures of a replay, at three sizes.

After an intended change: `pytest tests/screens/test_pictures_replay.py --snapshot-update`, then
look at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.replay import ReplayScreen
from tests.support.driving import settle, until
from tests.support.pictures import Picture, by_size
from tests.support.replay_home import HANG, JOB, begin, recorded_job
from textual.pilot import Pilot


@by_size
def test_a_moment_of_a_hang(frozen: Path, picture: Picture, size: object) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        app = pilot.app

        def has_read() -> bool:
            return isinstance(app.screen, ReplayScreen) and app.screen.detail is not None

        await until(pilot, has_read)
        await settle(pilot)
        await until(pilot, lambda: log_of(app), "the log of then")

    recorded_job(frozen, every_s=2)
    picture(size, prepare, opening=ScreenWanted("replay", JOB, begin() + HANG - 1))


def log_of(app: object) -> object:
    """The log lines on the topmost screen."""
    assert isinstance(app, DdptopApp) and isinstance(app.screen, ReplayScreen)
    return list(app.screen.log_view.lines.lines)
