"""Memory is returned to the system."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui import app as app_module
from ddptop.tui.app import DdptopApp
from tests.support import fake_home
from tests.support.driving import running, until

HELD = """
import gc, psutil
from ddptop.tui.app import give_back
rss = lambda: psutil.Process().memory_info().rss
held = [bytes(1000 + index % 7) for index in range(60_000)]
last = held[-1]  # what is free below it stays with the C library
before = rss()
del held
give_back()
print(before - rss())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked")
def test_what_is_free_goes_back() -> None:
    answer = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True)
    assert answer.stderr == ""
    assert int(answer.stdout) > 40 << 20


async def test_it_does_when_a_screen_is_closed(
    frozen: Path, make_app: Callable[..., DdptopApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(app_module, "give_back", lambda: given.append(len(app.screen_stack)))
    fake_home.two_cpu_ranks(frozen)
    async with running(make_app(), (80, 24)) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: len(app.screen_stack) == 3)
        assert given == []
        await pilot.press("escape")
        await until(pilot, lambda: len(given) >= 2, "at once, and when the screen is gone")
