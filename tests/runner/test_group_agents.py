"""Agents that are asked for, replaced or dead while a supervisor dies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from tests.runner.resuming import WORKERS, begin, exited, put_state, run, told

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.job.state import WantedAgent

pytestmark = pytest.mark.usefixtures("ddptop_home")


def test_an_agent_that_was_asked_for_is_asked_for_again():
    async def scenario() -> None:
        group, around = begin()
        put_state(around, phase="restarting")
        await group._restart_without_agent()
        assert around.agents == [(1, 3)]
        group, around = begin(around.die())
        group.resume()
        await asyncio.gather(*around.tasks)
        assert around.agents == [(1, 3)]
        group.agent_connected(
            {"pid": os.getpid(), "attempt": 1, "workers": WORKERS, "exits": []}, print
        )
        # it came up, and started its group while no supervisor was there to be told
        assert (group.state, group.attempt) == ("starting", 1)
        assert len(told("attempt_started")) == 1

    run(scenario)


def test_an_agent_that_was_being_replaced_is_replaced_and_not_listened_to():
    async def scenario() -> None:
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as old:
            group, around = begin()
            group.agent_pid = old.pid
            wanted = WantedAgent(attempt=1, restarts_left=3, replaces=old.pid)
            put_state(around, phase="restarting", wanted_agent=wanted)
            around.publish()
            group, around = begin(around.die())
            group.agent_pid = old.pid
            group._processes = Mock(end_leftovers=AsyncMock(side_effect=lambda *_, **__: hello()))

            def hello() -> None:
                old.kill()
                group.agent_connected(
                    {"pid": old.pid, "attempt": 0, "workers": [], "exits": []}, print
                )
                group.from_agent({"type": "torn_down", "attempt": 0, "workers": [], "question": 1})
                old.wait()

            group.resume()
            while waiting := [task for task in around.tasks if not task.done()]:
                await asyncio.gather(*waiting)
            group.process_exited(old.pid, -9, boottime_s())
            while waiting := [task for task in around.tasks if not task.done()]:
                await asyncio.gather(*waiting)
            assert around.agents == [(1, 3)]
            assert (group.state, group.restarts_used, group.job.cause) == ("restarting", 0, None)
            assert told("failure") == []

    run(scenario)


def test_an_agent_that_dies_during_a_stop_takes_no_rank_its_grace_or_its_exit_status():
    rank = (
        "import signal as s, sys; s.signal(15, lambda *_: (s.signal(15, 1), input(), sys.exit(7)));"
        "print(1, flush=True); s.pause()"
    )

    async def scenario() -> None:
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", rank], stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None and process.stdin is not None
            process.stdout.readline()
            group, around = begin()
            group._processes = Mock(
                end_leftovers=AsyncMock(), everything_started=Mock(return_value=[])
            )
            group.table.started(0, 0, process.pid)
            group.agent_pid = os.getppid()
            put_state(around, phase="running")
            group.request_stop(20.0)
            await asyncio.sleep(0.05)
            group.process_exited(os.getppid(), -9, boottime_s())
            await asyncio.sleep(0.05)
            assert not group.ended.is_set() and process.poll() is None
            process.stdin.write(b"\n")
            process.stdin.flush()
            returncode = await asyncio.to_thread(process.wait)
            await asyncio.sleep(0.1)  # the guardian tells a moment after
            group.process_exited(process.pid, returncode, boottime_s())
            await group.ended.wait()
        assert group.state == "stopped"
        assert [event.exit_code for event in told("rank_exited")] == [7]

    run(scenario)


@pytest.mark.parametrize("returncode", [None, -15], ids=["ranks live", "ranks were ended"])
def test_an_agent_that_dies_during_a_restart_is_followed_by_another_and_no_failure(returncode):
    async def scenario() -> None:
        group, around = begin()
        group.agent_connected(
            {"pid": os.getppid(), "attempt": 0, "workers": WORKERS, "exits": []}, print
        )
        group._processes = Mock(end_leftovers=AsyncMock())
        put_state(around, phase="running")
        group.request_restart()
        if returncode is not None:
            group.rank_exited(exited(0, returncode, boottime_s()))
        group.process_exited(os.getppid(), -9, boottime_s())
        await asyncio.gather(*around.tasks)
        assert around.agents == [(1, 3)]
        assert group.state == "restarting" and group.restarts_used == 0
        assert told("failure") == told("alert") == []

    run(scenario)


def test_an_agent_that_may_not_have_heard_is_told_again_to_restart():
    async def scenario() -> None:
        group, around = begin()
        sent: list[dict[str, Any]] = []
        hello = {"pid": os.getpid(), "attempt": 0, "workers": WORKERS, "exits": []}
        group.agent_connected(hello, sent.append)
        put_state(around, phase="running")
        group.request_restart()
        assert [one["type"] for one in sent] == ["restart_group"]
        group, around = begin(around.die())
        group.agent_pid = os.getpid()
        group.resume()
        group.agent_connected(hello, sent.append)
        assert [one["type"] for one in sent] == ["restart_group"] * 2
        group.from_agent({"type": "group_started", "attempt": 1, "workers": WORKERS})
        group.agent_connected({**hello, "attempt": 1}, sent.append)
        assert len(sent) == 2
        assert group.state == "starting"

    run(scenario)
