"""Colors: legible, distinguishable, and never the only sign of anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.charts.plots import STYLES
from ddptop.tui.app import DdptopApp
from ddptop.tui.settings import Interface, Memory, Settings, parse, recall
from ddptop.tui.themes import COLOR_BLIND, COLOR_BLIND_LIGHT, CONTRAST, DARK, OWN
from ddptop.tui.widgets.bars import KeyBar
from tests.support import color_vision, fake_gpus, fake_home
from tests.support.driving import running
from textual.theme import Theme

MakeApp = Callable[..., DdptopApp]

TEXT = ("foreground", "primary", "secondary", "accent", "success", "warning", "error")
"""Roles of colors for text."""
STATES = ("success", "primary", "warning", "error")
"""Roles of colors for states."""
DIM = {theme.name: 0.68 for theme in OWN} | {CONTRAST.name: 0.88}


def color(theme: Theme, role: str) -> str:
    return str(getattr(theme, role))


@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
@pytest.mark.parametrize("ground", ["background", "surface", "panel"])
def test_text_can_be_read(theme: Theme, ground: str) -> None:
    behind = color(theme, ground)
    enough = 7.0 if theme is CONTRAST else 4.5
    for role in TEXT:
        assert color_vision.contrast(color(theme, role), behind) >= enough, role
    dim = color_vision.blended(color(theme, "foreground"), behind, DIM[theme.name])
    assert color_vision.contrast(dim, behind) >= enough, "labels"


@pytest.mark.parametrize("theme", [COLOR_BLIND, COLOR_BLIND_LIGHT], ids=lambda theme: theme.name)
@pytest.mark.parametrize("deficiency", [None, *color_vision.DEFICIENCIES])
def test_states_stay_apart_for_color_blind_eyes(theme: Theme, deficiency: str | None) -> None:
    colors = [color(theme, role) for role in STATES]
    assert color_vision.least_distance(colors, deficiency) >= 20


ROLES = {"median": "primary", "strong": "foreground", "ok": "success", "warn": "warning"}
"""Colors of styles."""


@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
@pytest.mark.parametrize("deficiency", [None, *color_vision.DEFICIENCIES])
def test_compared_runs_stay_apart_for_everybody(theme: Theme, deficiency: str | None) -> None:
    colors = [color(theme, ROLES[style]) for style in STYLES[:4]]
    assert color_vision.least_distance(colors[:3], deficiency) >= 25
    assert color_vision.least_distance(colors, deficiency) >= 18


def test_the_simulation_sees_what_is_known() -> None:
    assert color_vision.contrast("#000000", "#ffffff") == pytest.approx(21)
    for gray in ("#000000", "#808080", "#ffffff"):  # grays do not change
        for deficiency in color_vision.DEFICIENCIES:
            assert color_vision.distance(gray, gray, deficiency) == 0
    # ddptop's default pair, which differs only in hue, does not suit these deficiencies
    colors = [DARK.success, DARK.error]
    assert color_vision.least_distance([str(c) for c in colors], "deuteranopia") < 15


async def test_a_chosen_theme_is_there_at_the_next_start(frozen: Path, make_app: MakeApp) -> None:
    async with running(make_app(settings=Settings()), (80, 24)) as (app, pilot):
        app.theme = "nord"
        await pilot.pause()
    assert recall() == Memory(theme="nord")
    async with running(make_app(settings=Settings()), (80, 24)) as (app, _):
        assert app.theme == "nord"


async def test_a_theme_of_the_settings_is_not_written_down(frozen: Path, make_app: MakeApp) -> None:
    given = {"interface": {"theme": "nord"}}
    async with running(make_app(settings=parse(given, "config.toml"))):
        pass
    assert recall() == Memory()


async def test_labels_are_brighter_where_contrast_is_wanted(
    frozen: Path, make_app: MakeApp
) -> None:
    async with running(make_app(settings=Settings(Interface(theme=CONTRAST.name))), (80, 24)) as (
        app,
        pilot,
    ):
        view = app.screen.query_one(KeyBar)
        for theme in (CONTRAST, DARK):
            app.theme = theme.name
            await pilot.pause()
            drawn = view._style("dim", False).color
            assert drawn is not None and drawn.triplet is not None
            shown = drawn.triplet.hex
            wanted = color_vision.blended(
                color(theme, "foreground"), color(theme, "panel"), DIM[theme.name]
            )
            assert color_vision.distance(shown, wanted) < 3, theme.name


class TestNoColor:
    async def test_nothing_is_colored_and_the_cursor_is_seen(
        self, eight_gpus: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        fake_home.failed_job(eight_gpus)
        fake_gpus.eight_gpu_ranks(eight_gpus)
        async with running(make_app()) as (app, _):
            strips = app.screen._compositor.render_strips()
            styles = [part.style for strip in strips for part in strip if part.style is not None]
            assert not [s for s in styles if s.color is not None and not s.color.is_default]
            assert not [s for s in styles if s.bgcolor is not None and not s.bgcolor.is_default]
            (cursor,) = (
                strip
                for strip in strips
                if any(part.style and part.style.reverse for part in strip)
            )
            assert "vit-base" in cursor.text or "llama-ft" in cursor.text
