"""Detects when an app under test has finished all of its work, however busy the machine is.

Textual's tests take an app for idle as soon as its process used no CPU for a fiftieth of a second.
On a busy machine it used none because it got none, and a test that looked then saw half of a screen
or typed to a field that had no focus yet.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import textual.app
import textual.pilot

MOST_S = 30.0
IN_A_ROW = 3
"""A due timer, and work from another thread, is seen one round later."""

ordinary = textual.pilot.wait_for_idle


async def let_it_work() -> bool:
    """Wait until the event loop has nothing left to do; returns whether there was anything."""
    ready: Any = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    deadline = time.monotonic() + MOST_S
    worked, quiet = False, 0
    while quiet < IN_A_ROW and time.monotonic() < deadline:
        await asyncio.sleep(0)
        quiet = 0 if ready else quiet + 1
        worked = worked or bool(ready)
    return worked


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Replaces Textual's function: also waits for drawing that was scheduled in the meantime."""
    deadline = time.monotonic() + MOST_S
    await ordinary(min_sleep, max_sleep)
    while await let_it_work() and time.monotonic() < deadline:
        await ordinary(min_sleep, max_sleep)


def take_its_place() -> None:
    """Make every test wait this way."""
    textual.pilot.wait_for_idle = textual.app.wait_for_idle = wait_for_idle
