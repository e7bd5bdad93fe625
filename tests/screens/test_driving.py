"""What tests of the interface rely on for waiting, on busy and idle machines."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.job.series import Machine
from ddptop.tui.app import DdptopApp
from tests.support import fake_home, idle
from tests.support.driving import look, settle, shown


async def test_what_one_step_leaves_to_the_next_is_waited_for() -> None:
    done: list[bool] = []

    async def many_steps() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        done.append(True)

    task = asyncio.ensure_future(many_steps())
    assert await idle.let_it_work()
    assert done == [True] and task.done()
    assert not await idle.let_it_work()


async def test_a_look_that_had_begun_before_does_not_count(
    frozen: Path, make_app: Callable[..., DdptopApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fake_home.two_cpu_ranks(frozen)
    app = make_app("mlp-cpu")
    looking, may_go_on = threading.Event(), threading.Event()
    ordinary = app.collector._machine

    def slow() -> Machine:
        looking.set()
        assert may_go_on.wait(60)
        time.sleep(0.3)
        return ordinary()

    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        monkeypatch.setattr(app.collector, "_machine", slow)
        app.collector.ask()
        assert looking.wait(60)
        fake_home.change(folder, step=4711)
        asyncio.get_running_loop().call_later(0.1, may_go_on.set)
        await look(pilot)
        assert "step 4,711" in shown(app)
