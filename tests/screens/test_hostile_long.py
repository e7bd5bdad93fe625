"""A viewer that stays open: nothing grows with updates, or with the screens that were opened."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
from ddptop.tui.app import DdptopApp
from tests.support import fake_gpus
from tests.support.driving import running, shown, until
from textual.pilot import Pilot
from textual.timer import Timer
from textual.widget import Widget

MakeApp = Callable[..., DdptopApp]

LOOKS = 80
"""In each half of the test."""
MOST_GROWTH = 400
"""How many objects caches of bounded size may add meanwhile."""
MOST_RSS_BYTES = 6 << 20


def counted() -> Counter[str]:
    """Objects that must not grow in number, and all objects together."""
    gc.collect()
    objects = gc.get_objects()
    found = Counter(
        kind.__name__
        for one in objects
        for kind in (Widget, Timer, threading.Thread)
        if issubclass(type(one), kind)  # does not call into objects, as isinstance may
    )
    found["all"] = len(objects)
    return found


async def run_on(pilot: Pilot[None], looks: int) -> None:
    app = pilot.app
    assert isinstance(app, DdptopApp)
    for number in range(looks):
        monitor = app.monitor
        assert monitor is not None
        monitor.answer = app.collector.answer(monitor.needs())
        if number % 10 == 0:
            await pilot.pause()


async def there_and_back(pilot: Pilot[None], keys: tuple[str, ...]) -> None:
    app = pilot.app
    below = app.screen
    for key in keys:
        await pilot.press(key)
        await pilot.pause()
        while app.screen is not below:
            app.pop_screen()
            await pilot.pause()


async def test_looks_leave_nothing_behind_and_neither_do_screens(
    eight_gpus: Path, make_app: MakeApp
) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    keys = ("question_mark", "f", "l", "e", "v", "p")
    async with running(make_app("llama-ft")) as (app, pilot):
        app.collector.stop()  # this thread updates now
        await there_and_back(pilot, keys)
        await run_on(pilot, LOOKS)
        before, rss = counted(), psutil.Process().memory_info().rss
        await run_on(pilot, LOOKS)
        grown = counted()
        grown.subtract(before)
        assert grown.pop("all") < MOST_GROWTH
        assert max(grown.values()) <= 0, grown
        assert psutil.Process().memory_info().rss - rss < MOST_RSS_BYTES
        await there_and_back(pilot, keys)
        await until(pilot, lambda: counted()["Widget"] == before["Widget"], "screens to go")
        await until(pilot, lambda: counted()["Timer"] <= before["Timer"], "what they drew to go")
        await run_on(pilot, 5)
        left = counted()
        left.subtract(before)
        assert left.pop("all") < MOST_GROWTH * len(keys)
        assert max(left.values()) <= 0, left
        assert shown(app)
