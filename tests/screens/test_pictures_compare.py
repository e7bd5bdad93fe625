"""Pictures of the compare screen, at three sizes, dark and light.

After an intended change: `pytest tests/screens/test_pictures_compare.py --snapshot-update`, then
look at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

from ddptop.tui import messages
from tests.support import fake_story
from tests.support.pictures import Picture, after, by_look


@by_look
def test_a_job_and_its_companion(frozen: Path, picture: Picture, size: object, theme: str) -> None:
    fake_story.learner(frozen, "gpt-lr3e-4", "3e-4")
    fake_story.learner(frozen, "gpt-lr1e-3", "1e-3", falls=60, ago_s=7000, restart_at=240)
    fake_story.learner(frozen, "vit-base", "5e-4", ago_s=5000, target="fit.py", bad_from=300)
    picture(size, after(theme), opening=messages.ScreenWanted("compare", ("gpt-lr3e-4",)))
