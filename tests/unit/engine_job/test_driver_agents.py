"""Agents that are requested, replaced, or dead, and what the job does without them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from tests.support.resuming import (
    AGENT,
    CAUSE,
    PIDS,
    TRAINED,
    ask,
    begin,
    connect,
    fail,
    finish,
    put_state,
    start,
    told,
)

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.job.state import NodeLife, PendingRestart
from ddptop_runner.judge.restarts import policy
from ddptop_runner.judge.restarts.devices import Waited
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import HERE
from ddptop_runner.node.driver import JobDriver

pytestmark = pytest.mark.usefixtures("ddptop_home")

DEVICES = [Device(index=n, uuid=f"GPU-{n}") for n in (0, 1)]


def end_nothing(driver: JobDriver) -> Mock:
    """No process is really ended."""
    mock = Mock(
        end_leftovers=AsyncMock(),
        everything_started=Mock(return_value=[]),
        is_living=Mock(return_value=False),
    )
    driver.processes = mock
    return mock


async def test_an_agent_that_is_being_replaced_is_not_listened_to():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as old:
        driver, around = begin()
        driver.agent_pid = old.pid
        wanted = ev.WantedAgent(attempt=1, replaces=old.pid)
        nodes = {HERE: NodeLife(takes_part=True, wanted_agent=wanted)}
        restart = PendingRestart(at=utc_now(), next_attempt=1, nodes=[HERE])
        put_state(around, phase="restarting", nodes=nodes, restart=restart)
        around.publish()
        driver, around = begin(around.die())
        driver.agent_pid = old.pid

        def hello(*_: object, **__: object) -> None:
            old.kill()
            sent = pt.AgentHello(pid=old.pid, attempt=0, workers=[], exits=[])
            driver.agent_connected(sent, print)
            assert driver._link is None
            old.wait()

        end_nothing(driver).end_leftovers = AsyncMock(side_effect=hello)
        driver.resume()
        await finish(around)
        driver.process_exited(old.pid, -9, boottime_s())
        await finish(around)
        assert around.agents == [1]
        job = driver.job
        assert (job.phase, job.budget.used, job.cause) == ("restarting", 0, None)
        assert told("failure") == []


async def test_an_agent_that_dies_during_a_stop_takes_no_rank_its_grace_or_its_exit_status():
    rank = (
        "import signal as s, sys; s.signal(15, lambda *_: (s.signal(15, 1), input(), sys.exit(7)));"
        "print(1, flush=True); s.pause()"
    )

    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", rank], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        driver, _around = begin()
        end_nothing(driver)
        driver.agent_pid = os.getppid()
        driver.take(pt.GroupStarted(attempt=0, workers=[pt.Worker(rank=0, pid=process.pid)]))
        driver.stop(20.0)
        await asyncio.sleep(0.05)
        driver.process_exited(os.getppid(), -9, boottime_s())
        await asyncio.sleep(0.05)
        assert not driver.ended.is_set() and process.poll() is None
        process.stdin.write(b"\n")
        process.stdin.flush()
        returncode = await asyncio.to_thread(process.wait)
        await asyncio.sleep(0.1)  # the guardian reports a moment later
        driver.process_exited(process.pid, returncode, boottime_s())
        await driver.ended.wait()
    assert driver.job.phase == "stopped"
    assert [event.exit_code for event in told("rank_exited")] == [7]


async def test_a_lost_device_ends_a_job_that_may_not_shrink_and_is_its_cause():
    driver, around = begin(devices=DEVICES)
    start(driver)
    end_nothing(driver)
    around.lost = {1}
    fail(driver, TRAINED, question=3)
    await finish(around)
    ending = driver.job.ending
    assert ending is not None and ending.requeue and ending.cause is not None
    assert ending.cause.kind == "gpu" and "GPU 1: lost" in ending.cause.summary
    assert "--allow-shrink" in ending.cause.summary
    assert "Rank 1 was killed." in ending.cause.summary


@pytest.mark.parametrize("way", ["agent dead", "agent ends", "hang"])
async def test_with_fewer_ranks_there_is_one_new_agent_whatever_led_to_it(way):
    driver, around = begin(devices=DEVICES, allow_shrink=True)
    start(driver)
    end_nothing(driver)
    around.lost = {1}
    driver.agent_pid = None if way == "agent dead" else AGENT
    if way == "hang":
        driver.take(pt.TroubleFound(reason="hang"))
        around.tasks.pop().cancel()
        await asyncio.sleep(0)
        driver.take(
            pt.AttemptJudged(
                attempt=0,
                trouble="hang",
                cause=CAUSE,
                outcome=TRAINED,
                jitter=0.0,
            )
        )
    else:
        for rank, status in ((1, -9), (0, -15)):
            driver.attempt.exited(PIDS[rank], status, boottime_s())
        fail(driver, TRAINED, question=None if way == "agent dead" else 3)
    driver._link = None
    await finish(around)
    if way == "agent ends":
        driver.process_exited(AGENT, 1, boottime_s())
    await finish(around)
    assert around.agents == [1]
    assert around.requests >= 2, "to choose devices, and to see their memory released"
    assert driver.job.needs_new_agent
    # late reports about the old one start nothing
    driver.process_exited(AGENT, -15, boottime_s())
    driver.take(pt.OrphanExited())
    await finish(around)
    assert len(around.agents) == 1 and driver.job.ending is None
    driver.take(pt.GroupStarted(attempt=1, workers=[pt.Worker(rank=0, pid=PIDS[0])]))
    assert len(list(driver.attempt.table)) == driver.attempt.spec.nproc == 1
    around.lost = set()
    driver.devices.update(around.device_report(), driver.job.set_aside)
    driver.restart()
    await finish(around)
    assert around.agents == [1, 2]
    assert driver.job.needs_new_agent and not driver.job.set_aside


@pytest.mark.parametrize(("returncode", "signal"), [(-9, "SIGKILL"), (None, None)])
async def test_an_agent_killed_before_it_starts_ranks_is_followed_by_others_within_the_budget(
    returncode, signal, monkeypatch
):
    monkeypatch.setattr(policy, "BACKOFF_BASE_S", 0.01)

    driver, around = begin(max_restarts=2)
    end_nothing(driver)
    for attempt, used in ((0, 1), (1, 2)):
        driver.agent_pid = AGENT
        driver.process_exited(AGENT, returncode, boottime_s())
        await finish(around)
        assert around.agents[-1] == attempt + 1
        job = driver.job
        assert (job.attempt, job.phase, job.budget.used) == (attempt, "restarting", used)
        connect(driver, attempt + 1)
    driver.process_exited(AGENT, returncode, boottime_s())
    await finish(around)
    assert len(around.agents) == 2 and driver.ended.is_set()
    job = driver.job
    assert (job.attempt, job.phase) == (2, "failed")
    assert job.cause is not None and job.ending is not None
    assert (job.cause.kind, job.cause.signal) == ("launch", signal)
    assert job.ending.requeue is True


@pytest.mark.parametrize("attempt", [0, 1])
async def test_reports_before_the_agents_are_applied_once_it_reports(attempt):
    driver, _ = begin()
    connect(driver)
    if attempt:
        start(driver)
        fail(driver)
    for rank, pid in enumerate(PIDS):
        now_s = boottime_s()
        fields = {"v": 1, "seq": 1, "t": now_s, "last_step_t": now_s, "steps": 7}
        driver.attempt.receive(ProbeMessage(pid=pid, rank=rank, attempt=attempt, **fields))
    assert told("training") == []
    start(driver, attempt)
    assert [record.steps for record in driver.attempt.table] == [7, 7]
    assert told("training")[0].seq > told("attempt_started")[-1].seq


async def test_the_memory_is_awaited_before_the_ranks_start_unless_the_job_is_stopped(monkeypatch):
    driver, around = begin()
    start(driver)
    end_nothing(driver)
    sent = connect(driver)
    freed = asyncio.Event()

    async def wait_for_memory(
        report: Any, aside: Any, is_ours: Any, skip: Any, request: Any
    ) -> Any:
        while not freed.is_set() and not skip():
            await asyncio.sleep(0.01)
        return Waited(9.0)

    monkeypatch.setattr(driver.devices, "wait_for_memory", wait_for_memory)
    ask(driver, "group_stopped", 5)
    await asyncio.sleep(0.05)
    assert sent == []
    freed.set()
    await finish(around)
    assert [one.question for one in sent] == [5]
    freed.clear()
    ask(driver, "group_stopped", 6)
    await asyncio.sleep(0.05)
    driver.agent_pid = None
    for rank in (0, 1):
        driver.attempt.exited(PIDS[rank], -9, boottime_s())
    driver.stop(0.0)
    await finish(around)
    assert [type(one) for one in sent[1:]] == [pt.TellAgent]
