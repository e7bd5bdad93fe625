"""How tests wait for an app, for conditions and never for a time, and what it then shows."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddptop.tui.app import DdptopApp
from ddptop.tui.palette import ActionProvider, JobProvider, ThemeCommands
from ddptop.tui.render.text import plain
from ddptop.tui.widgets.key_bar import KeyBar
from ddptop.tui.widgets.lines import LinesView
from textual.pilot import Pilot
from textual.widgets import Static

TIMEOUT_S = 60.0


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str = "") -> None:
    """Let the app work until `condition()` holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:g} s: {what or condition}"
        await pilot.pause(0.01)


async def look(pilot: Pilot[None], times: int = 1) -> None:
    """Have the collector look, and the screen show it."""
    app = pilot.app
    assert isinstance(app, DdptopApp)
    for _ in range(times):
        before = app.latest
        app.collector.ask()
        await until(pilot, lambda before=before: app.latest is not before, "a look")
        await pilot.pause()


async def settle(pilot: Pilot[None]) -> None:
    """Looks until what was wished for after the first ones is there as well."""
    await look(pilot, times=3)
    await pilot.pause()


def shown(app: DdptopApp) -> str:
    """The text of every line widget of the screen."""
    views = app.screen.query(LinesView)
    return "\n".join(plain(line) for view in views if view.display for line in view._lines)


def said(app: DdptopApp) -> str:
    """The text of a modal screen, and of what was notified."""
    texts = [str(static.content) for static in app.screen.query(Static)]
    return "\n".join([*texts, *(note.message for note in app._notifications)])


def keys_shown(app: DdptopApp) -> str:
    """The row of keys."""
    return "\n".join(plain(line) for line in app.screen.query_one(KeyBar)._lines)


def offered(app: DdptopApp, query: str = "") -> set[str]:
    """The names of the commands that the palette offers."""
    providers = [ActionProvider(app.screen), JobProvider(app.screen), ThemeCommands(app.screen)]
    return {command.name for one in providers for command in one.commands(query)}
