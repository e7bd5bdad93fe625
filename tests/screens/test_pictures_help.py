"""Pictures of the help, and of a screen without colors, without glyphs, and in each theme.

After an intended change: `pytest tests/screens/test_pictures_help.py --snapshot-update`, then look
at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.settings import Interface, Settings
from ddptop.tui.themes import OWN
from tests.support import fake_gpus, fake_home
from tests.support.driving import look, settle, until
from tests.support.pictures import Compare, MakeApp, Picture, by_size
from textual.pilot import Pilot


@by_size
def test_help(frozen: Path, picture: Picture, size: object) -> None:
    fake_home.failed_job(frozen)

    async def prepare(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        await look(pilot)

    picture(size, prepare)


@pytest.mark.parametrize("theme", [theme.name for theme in OWN[2:]])
def test_other_themes(
    eight_gpus: Path, make_app: MakeApp, snap_compare: Compare, theme: str
) -> None:
    app = some_jobs(eight_gpus, make_app, settings=Settings(Interface(theme=theme)))
    assert snap_compare(app, terminal_size=(120, 40), run_before=settle)


def test_ascii_only(eight_gpus: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    app = some_jobs(eight_gpus, make_app, letters="ascii")
    assert snap_compare(app, terminal_size=(120, 40), run_before=settle)


def some_jobs(home: Path, make_app: MakeApp, **options: object) -> DdptopApp:
    """Four jobs on eight devices."""
    for make in (fake_home.two_cpu_ranks, fake_gpus.eight_gpu_ranks, fake_home.failed_job):
        make(home)
    return make_app(**options)
