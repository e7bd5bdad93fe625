"""Pictures of the devices screen, at three sizes.

After an intended change: `pytest tests/screens/test_pictures_devices.py --snapshot-update`, then
look at each changed picture.
"""

from __future__ import annotations

from pathlib import Path

from ddptop.tui import messages
from ddptop.tui.themes import DARK
from tests.support import fake_gpus
from tests.support.fake_device_history import write_gpu_history
from tests.support.fake_home import uuid
from tests.support.pictures import Picture, after, by_size


@by_size
def test_one_is_too_hot(eight_gpus: Path, picture: Picture, size: object) -> None:
    write_gpu_history(fake_gpus.eight_gpu_ranks(eight_gpus), 1000)
    picture(size, after(DARK.name, looks=6), opening=messages.ScreenWanted("devices", uuid(5)))


def test_each_in_another_trouble(ill_gpus: Path, picture: Picture) -> None:
    picture(
        (120, 40), after(DARK.name, "j", "j", looks=6), opening=messages.ScreenWanted("devices")
    )


def test_none(frozen: Path, picture: Picture) -> None:
    picture((80, 24), after(DARK.name), opening=messages.ScreenWanted("devices"))
