"""Pictures of the devices screen, at three sizes, dark and light.

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
from tests.support.pictures import Compare, MakeApp, after, by_look


@by_look
def test_one_is_too_hot(
    eight_gpus: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    write_gpu_history(fake_gpus.eight_gpu_ranks(eight_gpus), 1000)
    app = make_app(opening=messages.ScreenWanted("devices", uuid(5)))
    assert snap_compare(app, terminal_size=size, run_before=after(theme, looks=6))


def test_each_in_another_trouble(ill_gpus: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(opening=messages.ScreenWanted("devices"))
    assert snap_compare(
        app, terminal_size=(120, 40), run_before=after(DARK.name, "j", "j", looks=6)
    )


def test_none(frozen: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(opening=messages.ScreenWanted("devices"))
    assert snap_compare(app, terminal_size=(80, 24), run_before=after(DARK.name))
