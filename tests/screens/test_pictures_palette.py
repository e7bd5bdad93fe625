"""Pictures of the palette.

After an intended change: `pytest tests/screens/test_pictures_palette.py --snapshot-update`, then
look at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import fake_gpus, fake_home
from tests.support.driving import settle, until
from tests.support.pictures import Picture, by_size
from textual.command import CommandList, CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input


@by_size
def test_what_can_be_done_with_a_rank(eight_gpus: Path, picture: Picture, size: object) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    fake_home.failed_job(eight_gpus)

    async def prepare(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette))
        palette = pilot.app.screen
        palette.query_one(Input).cursor_blink = False
        await pilot.press(*"rank5")
        commands = palette.query_one(CommandList)
        await until(pilot, lambda: commands.option_count == 1, "its screen")
        await pilot.pause()

    picture(size, prepare)
