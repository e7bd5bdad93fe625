"""A supervisor that is started again goes on where the last one stood: nothing lost or repeated."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.runner.builders import make_snapshot, make_spec
from tests.runner.resuming import (
    AT_START,
    CAUSE,
    WORKERS,
    begin,
    exited,
    put_state,
    run,
    state_of_the_log,
    told,
)

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.host import procs
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import RankSample, decode_snapshot, encode

pytestmark = pytest.mark.usefixtures("ddptop_home")


def test_each_exit_is_known_exactly_and_told_once():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        around.log.emit(ev.TrainingStarted(attempt=0, after_s=3.5))
        group.rank_exited(exited(1, -9, 100.25))
        around.log.emit(ev.RanksEnding(attempt=0, at_s=100.5))
        group.rank_exited(exited(0, 143, 101.0))
        before, started_s = group.table.exits(), group.attempt_started_s
        around.publish()
        group, around = begin(around.die())
        assert group.table.exits() == before
        assert (before[1].returncode, before[1].ended_by_us) == (-9, False)
        assert before[0].ended_by_us
        assert (group.attempt_started_s, group.job.first_step_after_s) == (started_s, 3.5)
        group.rank_exited(exited(1, -9, 100.25))  # the agent repeats it
        assert len(told("rank_exited")) == 2

    run(scenario)


def test_a_failure_is_counted_and_told_once_and_the_rest_of_its_wait_is_waited():
    async def scenario() -> None:
        group, around = begin()
        waiting = asyncio.create_task(group._restart_or_end(AT_START, CAUSE))
        while group.restart_at_s is None or around.published is None:
            await asyncio.sleep(0)
        waiting.cancel()
        restart_at_s = group.restart_at_s
        for _ in range(2):  # and again
            group, around = begin(around.die())
            assert (group.state, group.restarts_used) == ("restarting", 1)
            assert group.restart_at_s == restart_at_s
            around.publish()
        answers: list[dict[str, Any]] = []
        group.agent_connected(
            {"pid": os.getpid(), "attempt": 0, "workers": [], "exits": []}, answers.append
        )
        group.from_agent({"type": "torn_down", "question": 7, "attempt": 0, "workers": []})
        await asyncio.gather(*around.tasks)
        assert boottime_s() >= restart_at_s
        assert [(one["answer"], one["restart"]) for one in answers] == [(7, True)]
        assert group.restarts_used == 1
        assert (len(told("failure")), len(told("group_restart"))) == (1, 1)

    run(scenario)


def test_what_was_told_before_the_snapshot_could_be_written_is_not_told_again():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        around.publish()
        before = around.published
        waiting = asyncio.create_task(group._restart_or_end(AT_START, CAUSE))
        while group.restart_at_s is None:
            await asyncio.sleep(0)
        waiting.cancel()
        around.published = before
        group, around = begin(around.die())
        assert (group.state, group.restarts_used) == ("restarting", 1)
        again = asyncio.create_task(group._decide_after_failure())  # the agent asks once more
        for _ in range(20):
            await asyncio.sleep(0)
        again.cancel()
        assert group.restarts_used == 1
        assert (len(told("failure")), len(told("group_restart"))) == (1, 1)
        assert state_of_the_log() == around.log.state

    run(scenario)


def test_a_stop_has_what_was_left_of_its_grace():
    async def scenario() -> None:
        code = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); input()"
        rank = subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert rank.stdout is not None
        rank.stdout.readline()
        group, around = begin()
        workers = [{**WORKERS[0], "pid": rank.pid}]
        group._group_started({"attempt": 0, "workers": workers})
        began_s = boottime_s()
        group.request_stop(1.5)
        await asyncio.sleep(0.5)
        group, around = begin(around.die())
        group.resume()
        while rank.poll() is None:
            await asyncio.sleep(0.02)
        rank.communicate()
        assert rank.returncode == -9
        assert 1.4 < boottime_s() - began_s < 20.0
        await asyncio.gather(*around.tasks)
        assert group.ended.is_set() and group.state == "stopped"
        assert len(told("stopping")) == 1

    run(scenario)


@pytest.mark.parametrize(("state", "exit_code"), [("failed", 3), ("finished", 0)])
def test_what_has_ended_stays_so(state, exit_code):
    async def scenario() -> None:
        group, around = begin()
        put_state(around, phase=state, exit_code=exit_code)
        around.publish()
        group, around = begin(around.die())
        group.process_exited(4711, 0, 1.0)
        group.resume()
        assert group.ended.is_set()
        assert (group.state, group.job.exit_code, around.tasks) == (state, exit_code, [])

    run(scenario)


def test_a_hang_whose_evidence_was_being_taken_is_judged_again():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        group.agent_pid = os.getpid()
        around.log.emit(ev.TroubleFound(attempt=0))
        around.publish()
        group, _ = begin(around.die())
        group.agent_pid = os.getpid()
        group.resume()
        assert group.state == "running"

    run(scenario)


def test_ranks_without_any_guard_are_seen_to_end_and_unknown_is_not_0():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        around.publish()
        group, around = begin(around.die())
        ended = group.table[1].process
        assert ended is not None and group.minded_processes() == [ended, ended]
        group.seen_to_exit(ended, None)
        found = group.table[1].exit
        assert found is not None and found.failed and found.returncode is None
        assert "exited with an unknown status" in told("rank_exited")[0].message
        for task in around.tasks:
            task.cancel()

    run(scenario)


def test_no_hang_is_found_right_after_a_time_that_nobody_watched():
    async def scenario() -> None:
        group, _ = begin()
        now_s = boottime_s()
        group.check_progress(now_s + 10.0)
        settled_s = group._settled_at_s
        group.check_progress(now_s + 11.0)
        assert group._settled_at_s == settled_s
        group.check_progress(now_s + 31.0)  # SIGSTOP, or a suspended machine
        assert group._settled_at_s > now_s + 31.0

    run(scenario)


def test_memory_that_cannot_be_read_is_left_out():
    async def scenario() -> None:
        sample = RankSample(rank=0, local_rank=0, host=procs.host_name(), pid=os.getpid(), step=7)
        for memory in ({"group": {"exits": 7}}, {"group": "x"}, {}):
            snapshot = make_snapshot(make_spec(), ranks=[sample], memory=memory)
            group, _ = begin(decode_snapshot(json.dumps(json.loads(encode(snapshot))).encode()))
            assert group.table[0].steps == 7
            assert not group.job.in_queue

    run(scenario)


def test_the_next_attempt_remembers_why_the_one_before_failed():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        around.log.emit(ev.FailureJudged(attempt=0, cause=CAUSE))
        group._group_started({"attempt": 1, "workers": WORKERS})
        assert (group.job.cause, group.job.previous_cause.summary) == (None, "Rank 1 was killed.")
        around.publish()
        group, around = begin(around.die())
        assert group.job.previous_cause.rank == 1
        group._group_started({"attempt": 2, "workers": WORKERS})  # a person asked for it
        assert group.job.previous_cause is None

    run(scenario)
