"""Shared by all picture tests: sizes, themes, and how a screen reaches the state to draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ddptop.tui.app import DdptopApp
from ddptop.tui.themes import DARK, LIGHT
from tests.support.driving import look, settle, until
from textual.pilot import Pilot
from textual.screen import Screen

MakeApp = Callable[..., DdptopApp]
Compare = Callable[..., bool]
Picture = Callable[..., None]
Prepare = Callable[[Pilot[None]], object]

SIZES = [(80, 24), (120, 40), (200, 60)]
SMALL = (60, 18)


def name_of(value: object) -> str:
    """A size or a theme, in a picture's name."""
    return f"{value[0]}x{value[1]}" if isinstance(value, tuple) else str(value)


by_size = pytest.mark.parametrize("size", SIZES, ids=name_of)
LOOKS = [*((size, DARK.name) for size in SIZES), (SIZES[1], LIGHT.name)]
"""Another theme changes only colors, so there are light pictures of two screens."""
by_look = pytest.mark.parametrize(("size", "theme"), LOOKS, ids=name_of)


@pytest.fixture
def picture(make_app: MakeApp, snap_compare: Compare) -> Picture:
    """Compares what an app with these options draws with the picture taken before."""

    def compare(size: object, prepare: Prepare, job: str | None = None, **options: object) -> None:
        app = make_app(job, **options)
        assert snap_compare(app, terminal_size=size, run_before=prepare)

    return compare


def after(
    theme: str, *keys: str, on: type[Screen[None]] = Screen, looks: int = 2
) -> Callable[[Pilot[None]], object]:
    """What a picture waits for.

    Args:
        theme: in which it is drawn.
        keys: pressed once all is read.
        on: the screen that opens by itself.
        looks: after the keys; histories of devices, read one after the other, need more.
    """

    async def prepare(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await until(pilot, lambda: isinstance(pilot.app.screen, on))
        await settle(pilot)
        await pilot.press(*keys)
        await look(pilot, looks)
        await pilot.pause()

    return prepare
