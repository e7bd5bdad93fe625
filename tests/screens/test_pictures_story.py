"""Pictures of the story screen, at three sizes.

After an intended change: `pytest tests/screens/test_pictures_story.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

from ddptop.tui import messages
from ddptop.tui.themes import DARK
from tests.support import fake_story
from tests.support.pictures import Picture, after, by_size


@by_size
def test_the_story_of_a_failed_job(frozen: Path, picture: Picture, size: object) -> None:
    fake_story.many_attempts(frozen)
    picture(size, after(DARK.name), opening=messages.ScreenWanted("story", "gpt-small"))
