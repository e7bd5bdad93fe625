"""Pictures of the story screen, at three sizes, dark and light.

After an intended change: `pytest tests/screens/test_pictures_story.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

from ddptop.tui import messages
from tests.support import fake_story
from tests.support.pictures import Compare, MakeApp, after, by_look


@by_look
def test_the_story_of_a_failed_job(
    frozen: Path,
    make_app: MakeApp,
    snap_compare: Compare,
    size: object,
    theme: str,
) -> None:
    fake_story.many_attempts(frozen)
    app = make_app(opening=messages.ScreenWanted("story", "gpt-small"))
    assert snap_compare(app, terminal_size=size, run_before=after(theme))
