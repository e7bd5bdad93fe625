"""What jobs beside each other look like, at three sizes, dark and light.

After a change that is meant: `pytest tests/tui/test_pictures_compare.py --snapshot-update`, then
look at each changed picture.
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
def test_a_job_and_its_companion(
    frozen: Path,
    make_app: Callable[..., DdptopApp],
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    theme: str,
) -> None:
    async def prepare(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await settle(pilot)

    fake_story.learner(frozen, "gpt-lr3e-4", "3e-4")
    fake_story.learner(frozen, "gpt-lr1e-3", "1e-3", falls=60, ago_s=7000, restart_at=240)
    fake_story.learner(frozen, "vit-base", "5e-4", ago_s=5000, target="fit.py", bad_from=300)
    app = make_app(opening=messages.CompareWanted(("gpt-lr3e-4",)))
    assert snap_compare(app, terminal_size=size, run_before=prepare)
