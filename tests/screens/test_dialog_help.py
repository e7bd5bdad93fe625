"""The help of dialogs: the form, questions, and texts in sections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.job.help import texts
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.launch import LaunchScreen
from tests.support.driving import running, shown, until
from textual.pilot import Pilot
from textual.widgets import Input, Label

MakeApp = Callable[..., DdptopApp]


async def opened(pilot: Pilot[None], *keys: str) -> str:
    """The help after pressing these keys."""
    app = pilot.app
    assert isinstance(app, DdptopApp)
    await pilot.press(*keys)
    await until(pilot, lambda: isinstance(app.screen, HelpScreen) and shown(app), "the help")
    return shown(app)


@pytest.mark.parametrize("size", [(60, 18), (120, 40)])
async def test_the_form(eight_gpus: Path, make_app: MakeApp, size: tuple[int, int]) -> None:
    async with running(make_app(), size) as (app, pilot):
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
        form = app.screen
        assert isinstance(form, LaunchScreen)
        assert str(form.children[0].border_subtitle) == "F1 help"
        told = await opened(pilot, "f1")
        assert told.index("── this dialog") < told.index("── keys on every screen")
        assert told.index("script") < told.index("arguments") < told.index("max restarts")
        await pilot.press("f1")
        await until(pilot, lambda: app.screen is form)
        field = form.query_one("#arguments", Input)
        field.focus()
        await pilot.press("a", "question_mark")
        assert field.value == "a?"
        form.query_one("#gpus").focus()
        await opened(pilot, "question_mark")
        await pilot.press("question_mark")
        await until(pilot, lambda: app.screen is form)
        labels = {str(one.content) for one in form.query(".row > Label").results(Label)}
        named = ", ".join(texts().about["launch form"])
        unknown = {one for one in labels if one not in named}
        assert unknown == {
            "auto: one per selected GPU",
            "group restarts allowed after failures",
        }, "notes only"
