"""The help of dialogs: the form, questions, and texts in sections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.job.help import texts
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.launch import LaunchScreen
from ddptop.tui.settings import Settings
from tests.support import fake_gpus
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


async def test_a_question_and_a_text(frozen: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    async with running(make_app("llama-ft"), (80, 24)) as (app, pilot):
        for key, told in (
            ("K", "changes nothing; enter selects this"),
            ("f", "PgDn, PgUp, g, and G scroll"),
        ):
            below = app.screen
            await pilot.press(key)
            await until(pilot, lambda below=below: app.screen is not below)
            dialog = app.screen
            assert told in " ".join((await opened(pilot, "question_mark")).split())
            await pilot.press("escape")
            await until(pilot, lambda dialog=dialog: app.screen is dialog)
            await pilot.press("escape")
            await until(pilot, lambda below=below: app.screen is below)


async def test_a_key_of_ones_own_is_named_and_the_question_mark_is_free_again(
    frozen: Path, make_app: MakeApp
) -> None:
    async with running(make_app(settings=Settings(keys={"app.help": ("F2",)})), (80, 24)) as (
        app,
        pilot,
    ):
        await pilot.press("n")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
        assert str(app.screen.children[0].border_subtitle) == "F2 help"
        name = app.screen.query_one("#name", Input)
        name.focus()
        await pilot.press("question_mark")
        assert name.value == "?"
        await opened(pilot, "f2")
