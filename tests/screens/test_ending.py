"""Leaving prints nothing, whatever is opened at the same time; internal errors are reported."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

import pytest
from ddptop.sources.query import Answered
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.help import HelpScreen
from tests.support.driving import running, until
from textual.css.query import NoMatches
from textual.dom import NoScreen
from textual.events import Key

MakeApp = Callable[..., DdptopApp]


async def test_a_screen_that_opens_as_ddptop_is_left_is_no_failure(make_app: MakeApp) -> None:
    async with running(make_app(), (80, 24)) as (app, pilot):
        app.action_help()
        app.action_command_palette()
        app.exit()
        await pilot.pause()
    assert not app.return_code


async def test_screen_failure_is_reported(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: HelpScreen) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HelpScreen, "compose", fail)
    app = make_app()
    with pytest.raises(ZeroDivisionError):
        async with running(app, (80, 24)) as (app, pilot):
            await pilot.press("question_mark")
            await pilot.pause()
    assert app.return_code == 1


async def test_update_after_the_last_screen_is_dropped(make_app: MakeApp) -> None:
    app = make_app()
    async with running(app, (80, 24)):
        pass
    assert app.screen_stack == [] and app.latest is not None
    app.on_query_changed()
    app.on_answered(Answered(app.latest))


@pytest.mark.parametrize(
    ("error", "is_told"), [(NoMatches, False), (NoScreen, False), (ZeroDivisionError, True)]
)
async def test_of_the_end_only_what_has_no_widgets_any_more_is_no_failure(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, error: type[Exception], is_told: bool
) -> None:
    begun = asyncio.Event()

    class Fails(HelpScreen):
        async def on_key(self) -> None:
            await begun.wait()
            raise error

    def end() -> Coroutine[None, None, None]:
        # one turn of the loop after the following starts
        asyncio.get_running_loop().call_soon(begun.set)
        return shutdown()

    app = make_app()
    shutdown = app._shutdown
    monkeypatch.setattr(app, "_shutdown", end)
    with pytest.raises(error) if is_told else contextlib.nullcontext():
        async with running(app, (80, 24)) as (app, pilot):
            app.push_screen(Fails())
            await until(pilot, lambda: isinstance(app.screen, Fails))
            app.screen.post_message(Key("x", "x"))
