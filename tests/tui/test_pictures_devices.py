"""What the screen with the devices looks like, at three sizes, dark and light.

After a change that is meant: `pytest tests/tui/test_pictures_devices.py --snapshot-update`, then
look at each changed picture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui import messages
from ddptop.tui.app import DdptopApp
from ddptop.tui.theme import DARK, LIGHT
from tests.tui import fake_gpus
from tests.tui.driving import settle
from tests.tui.fake_device_history import write_gpu_history
from tests.tui.fake_home import uuid
from textual.pilot import Pilot

SIZES = [(80, 24), (120, 40), (200, 60)]
Compare = Callable[..., bool]
MakeApp = Callable[..., DdptopApp]

by_size = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")


def after(theme: str, *keys: str) -> Callable[[Pilot[None]], object]:
    async def prepare(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await settle(pilot)
        await pilot.press(*keys)
        await settle(pilot)  # histories of devices are read one after the other
        await settle(pilot)

    return prepare


@by_size
@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name])
def test_one_is_too_hot(
    eight_gpus: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    write_gpu_history(fake_gpus.eight_gpu_ranks(eight_gpus), 1000)
    app = make_app(opening=messages.DevicesWanted(uuid(5)))
    assert snap_compare(app, terminal_size=size, run_before=after(theme))


@by_size
def test_each_in_another_trouble(
    ill_gpus: Path, make_app: MakeApp, snap_compare: Compare, size: object
) -> None:
    app = make_app(opening=messages.DevicesWanted())
    assert snap_compare(app, terminal_size=size, run_before=after(DARK.name, "j", "j"))


def test_none(frozen: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(opening=messages.DevicesWanted())
    assert snap_compare(app, terminal_size=(80, 24), run_before=after(DARK.name))
