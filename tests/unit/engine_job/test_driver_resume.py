"""A restarted supervisor continues where the last one stopped: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from msgspec.structs import replace
from tests.support.resuming import (
    AGENT,
    PIDS,
    begin,
    connect,
    exited,
    fail,
    finish,
    put_state,
    start,
    told,
)

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt

pytestmark = pytest.mark.usefixtures("ddptop_home")


async def test_each_exit_is_known_exactly_and_recorded_once():
    driver, around = begin()
    start(driver)
    around.log.emit(ev.TrainingStarted(attempt=0, after_s=3.5))
    driver.attempt.exited(PIDS[1], -9, 100.25)
    around.log.emit(ev.RanksEnding(attempt=0, at_s=100.5))
    driver.attempt.exited(PIDS[0], 143, 101.0)
    before, started_s = [one.exit for one in driver.attempt.table], driver.attempt.started_s
    around.publish()
    driver, around = begin(around.die())
    assert [one.exit for one in driver.attempt.table] == before
    assert (before[1].returncode, before[1].ended_by_us) == (-9, False)
    assert before[0].ended_by_us
    assert (driver.attempt.started_s, driver.job.first_step_after_s) == (started_s, 3.5)
    driver.attempt.exited(PIDS[1], -9, 100.25)  # the agent repeats it
    assert len(told("rank_exited")) == 2


async def test_a_failure_is_counted_once_and_the_rest_of_its_wait_is_waited():
    driver, around = begin()
    start(driver)
    driver.attempt.exited(PIDS[1], -9, boottime_s())
    driver.attempt.exited(PIDS[0], -15, boottime_s())
    fail(driver, question=7)
    pending = driver.job.restart
    assert pending is not None and pending.at_s is not None
    for _ in range(2):  # and again
        driver, around = begin(around.die())
        assert (driver.job.phase, driver.job.budget.used) == ("restarting", 1)
        assert driver.job.restart == pending
        around.publish()
    driver.agent_pid = AGENT
    driver.resume()
    sent = connect(driver)
    link = driver._link
    assert link is not None
    driver.from_agent(link, pt.AgentAsked(kind="torn_down", question=7, attempt=0))
    await finish(around)
    assert boottime_s() >= pending.at_s
    assert [(one.question, one.restart) for one in sent] == [(7, True)]
    assert driver.job.budget.used == 1
    assert (len(told("failure")), len(told("group_restart"))) == (1, 1)


async def test_a_stop_has_what_was_left_of_its_grace():
    code = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); input()"
    rank = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert rank.stdout is not None
    rank.stdout.readline()
    driver, around = begin()
    driver.take(pt.GroupStarted(attempt=0, workers=[pt.Worker(rank=0, pid=rank.pid)]))
    began_s = boottime_s()
    driver.stop(1.5)
    await asyncio.sleep(0.5)
    driver, around = begin(around.die())
    driver.resume()
    while rank.poll() is None:
        await asyncio.sleep(0.02)
    rank.communicate()
    assert rank.returncode == -9
    assert 1.4 < boottime_s() - began_s < 20.0
    await finish(around)
    assert driver.ended.is_set() and driver.job.phase == "stopped"
    assert len(told("stopping")) == 1


@pytest.mark.parametrize(("state", "exit_code"), [("failed", 3), ("finished", 0)])
async def test_what_has_ended_stays_so(state, exit_code):
    driver, around = begin()
    put_state(around, phase=state, exit_code=exit_code)
    around.publish()
    driver, around = begin(around.die())
    driver.process_exited(4711, 0, 1.0)
    driver.resume()
    assert driver.ended.is_set()
    assert (driver.job.phase, driver.job.exit_code, around.tasks) == (state, exit_code, [])


async def test_ranks_without_any_guard_are_seen_to_end_and_unknown_is_not_0():
    driver, around = begin()
    start(driver)
    around.publish()
    driver, around = begin(around.die())
    ended = driver.attempt.table[1].process
    assert ended is not None and driver.unguarded_processes()[1] == ended
    driver.seen_to_exit(ended, None)
    found = driver.attempt.table[1].exit
    assert found is not None and found.failed and found.returncode is None
    assert "exited with an unknown status" in told("rank_exited")[0].message
    around.die()


async def test_no_hang_is_found_right_after_an_unobserved_time():
    attempt = begin()[0].attempt
    now_s = boottime_s()
    attempt.look_at_progress(now_s + 10.0)
    settled_s = attempt.settled_at_s
    attempt.look_at_progress(now_s + 11.0)
    assert attempt.settled_at_s == settled_s
    attempt.look_at_progress(now_s + 31.0)  # SIGSTOP, or a suspended machine
    assert attempt.settled_at_s > now_s + 31.0


async def test_an_agent_reports_an_exit_in_its_own_words():
    driver, _around = begin()
    start(driver)
    connect(driver)
    link = driver._link
    assert link is not None
    driver.from_agent(link, exited(1, 7, boottime_s()))
    driver.from_agent(link, replace(exited(0, 7, 1.0), attempt=9))
    assert [event.exit_code for event in told("rank_exited")] == [7]
