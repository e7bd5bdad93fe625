"""What a job's story looks like, at three sizes, dark and light.

After a change that is meant: `pytest tests/tui/test_pictures_story.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui import messages
from ddptop.tui.app import DdptopApp
from ddptop.tui.theme import DARK, LIGHT
from tests.tui import fake_story
from tests.tui.driving import settle
from textual.pilot import Pilot

SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_story_of_a_failed_job(
    frozen: Path,
    make_app: Callable[..., DdptopApp],
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    theme: str,
) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await settle(pilot)

    fake_story.many_attempts(frozen)
    app = make_app(opening=messages.StoryWanted("gpt-small"))
    assert snap_compare(app, terminal_size=size, run_before=prepare)
