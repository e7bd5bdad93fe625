"""Terminals of a few cells, such as a tiled one while its border is dragged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddptop.tui.app import DdptopApp
from tests.support import replay_home
from tests.support.driving import look, running, shown

SIZES = [(1, 5), (9, 4), (80, 24)]
SCREENS = ["v", "question_mark", "enter", "enter enter", "enter l", "enter e", "enter p"]


async def test_no_screen_needs_room(frozen: Path, make_app: Callable[..., DdptopApp]) -> None:
    replay_home.recorded_job(frozen, every_s=10)
    async with running(make_app(), (80, 24)) as (app, pilot):
        for keys in SCREENS:
            await pilot.press(*keys.split())
            await look(pilot, 2)
            for size in SIZES:
                await pilot.resize_terminal(*size)
                await pilot.pause()
            while len(app.screen_stack) > 2:
                app.pop_screen()
                await pilot.pause()
        assert "all jobs" in shown(app)
