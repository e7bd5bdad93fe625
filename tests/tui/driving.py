"""How tests wait for an app: for conditions, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddptop.tui.app import DdptopApp
from textual.pilot import Pilot

TIMEOUT_S = 15.0


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
