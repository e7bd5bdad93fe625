"""A supervisor that is started again goes on where the last one stood: nothing lost or repeated."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from tests.runner.builders import make_snapshot, make_spec

from ddptop_runner import procs
from ddptop_runner.clock import boottime_s
from ddptop_runner.device_report import DeviceReport
from ddptop_runner.group import Group
from ddptop_runner.group_memory import WantedAgent
from ddptop_runner.history import HistoryReader, HistoryWriter
from ddptop_runner.host_usage import HostUsage
from ddptop_runner.model import Cause, Event, NodeSnapshot, RankSample, decode_snapshot, encode
from ddptop_runner.paths import RunFolder, run_folder
from ddptop_runner.restarts.policy import AttemptOutcome
from ddptop_runner.spec import JobSpec
from ddptop_runner.story import Story

pytestmark = pytest.mark.usefixtures("ddptop_home")
CAUSE = Cause(kind="signal", signal="SIGKILL", rank=1, summary="Rank 1 was killed.")
AT_START = AttemptOutcome(0, 3.0, 0, None, "SIGKILL", None)
WORKERS = [
    {"rank": rank, "local_rank": rank, "pid": os.getpid(), "returncode": None} for rank in (0, 1)
]


class Around:
    """A supervisor with a history, that may die."""

    def __init__(self, folder: RunFolder) -> None:
        self.agents: list[tuple[int, int]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.group: Group | None = None
        self.history = HistoryWriter(folder.path / "history.db")
        self.story = Story(self.history, lambda line: None)
        self.story.recall(HistoryReader(folder.path / "history.db").events())
        self.published: NodeSnapshot | None = None

    def snapshot_bytes(self) -> bytes:
        return b"{}"

    def publish(self) -> None:
        assert self.group is not None
        group = self.group
        ranks = [record.sample(boottime_s(), probe=True) for record in group.table]
        self.published = make_snapshot(
            make_spec(),
            state=group.state,
            attempt=group.attempt,
            restarts_used=group.restarts_used,
            ranks=ranks,
            exit_code=group.exit_code,
            previous_cause=group.previous_cause,
            memory=group.remember(),
        )

    def start_agent(self, attempt: int, restarts_left: int) -> None:
        self.agents.append((attempt, restarts_left))

    def device_report(self) -> DeviceReport | None:
        return None

    def change_spec(self, spec: JobSpec) -> None:
        raise AssertionError

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def die(self) -> NodeSnapshot:
        """What the next one finds."""
        for task in self.tasks:
            task.cancel()
        self.history.close()
        assert self.published is not None
        return decode_snapshot(encode(self.published))


def begin(snapshot: NodeSnapshot | None = None) -> tuple[Group, Around]:
    folder = run_folder("train")
    folder.nodes_dir.mkdir(parents=True, exist_ok=True)
    around = Around(folder)
    group = Group(folder, make_spec(), around.story, HostUsage(), around, 0)
    around.group = group
    if snapshot is None:
        group.planner.begin_attempt()
    else:
        group.recover(snapshot)
    return group, around


def told(type_: str) -> list[Event]:
    events = HistoryReader(run_folder("train").path / "history.db").events()
    return [event for event in events if event.type == type_]


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30.0))


def exited(rank: int, returncode: int, at_s: float) -> dict[str, Any]:
    ended = {"attempt": 0, "rank": rank, "pid": os.getpid(), "at_boottime_s": at_s}
    return {**ended, "returncode": returncode}


def test_each_exit_is_known_exactly_and_told_once():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        group.first_step_after_s = 3.5
        group.rank_exited(exited(1, -9, 100.25))
        group._ending_ranks_at_s = 100.5
        group.rank_exited(exited(0, 143, 101.0))
        before, started_s = group.table.exits(), group.attempt_started_s
        around.publish()
        group, around = begin(around.die())
        assert group.table.exits() == before
        assert (before[1].returncode, before[1].ended_by_us) == (-9, False)
        assert before[0].ended_by_us
        assert (group.attempt_started_s, group.first_step_after_s) == (started_s, 3.5)
        group.rank_exited(exited(1, -9, 100.25))  # the agent repeats it
        assert len(told("rank_exited")) == 2

    run(scenario)


def test_a_failure_is_counted_and_told_once_and_the_rest_of_its_wait_is_waited():
    async def scenario() -> None:
        group, around = begin()
        waiting = asyncio.create_task(group._restart_or_end("failure", AT_START, CAUSE))
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
        waiting = asyncio.create_task(group._restart_or_end("failure", AT_START, CAUSE))
        while group.restart_at_s is None:
            await asyncio.sleep(0)
        waiting.cancel()
        around.published = before
        group, around = begin(around.die())
        waiting = asyncio.create_task(group._restart_or_end("failure", AT_START, CAUSE))
        while group.restart_at_s is None:
            await asyncio.sleep(0)
        waiting.cancel()
        assert group.restarts_used == 1
        assert (len(told("failure")), len(told("group_restart"))) == (1, 1)

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
        assert 1.4 < boottime_s() - began_s < 3.0
        await asyncio.gather(*around.tasks)
        assert group.ended.is_set() and group.state == "stopped"
        assert len(told("stopping")) == 1

    run(scenario)


def test_an_agent_that_was_asked_for_is_asked_for_again():
    async def scenario() -> None:
        group, around = begin()
        group.state = "restarting"
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
            group.state, group.agent_pid = "restarting", old.pid
            group._wanted_agent = WantedAgent(attempt=1, restarts_left=3, replaces=old.pid)
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
            assert (group.state, group.restarts_used, group.cause) == ("restarting", 0, None)
            assert told("failure") == []

    run(scenario)


def test_an_agent_that_dies_during_a_stop_takes_no_rank_its_grace_or_its_exit_status():
    rank = (
        "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit(7)));"
        "print(1, flush=True); time.sleep(60)"
    )

    async def scenario() -> None:
        with subprocess.Popen([sys.executable, "-c", rank], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            group, _ = begin()
            group._processes = Mock(
                end_leftovers=AsyncMock(), everything_started=Mock(return_value=[])
            )
            group.table.started(0, 0, process.pid)
            group.agent_pid, group.state = os.getppid(), "running"
            group.request_stop(20.0)
            await asyncio.sleep(0.05)
            group.process_exited(os.getppid(), -9, boottime_s())
            await asyncio.sleep(0.05)
            assert not group.ended.is_set() and process.poll() is None
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
        group.state = "running"
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
        group.state = "running"
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


@pytest.mark.parametrize(("state", "exit_code"), [("failed", 3), ("finished", 0)])
def test_what_has_ended_stays_so(state, exit_code):
    async def scenario() -> None:
        group, around = begin()
        group.state, group.exit_code = state, exit_code
        around.publish()
        group, around = begin(around.die())
        group.process_exited(4711, 0, 1.0)
        group.resume()
        assert group.ended.is_set()
        assert (group.state, group.exit_code, around.tasks) == (state, exit_code, [])

    run(scenario)


def test_a_hang_whose_evidence_was_being_taken_is_judged_again():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        group.agent_pid, group.state = os.getpid(), "hung"
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
        assert "exit status is unknown" in told("rank_exited")[0].message
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
            assert group.was_started

    run(scenario)


def test_the_next_attempt_remembers_why_the_one_before_failed():
    async def scenario() -> None:
        group, around = begin()
        group._group_started({"attempt": 0, "workers": WORKERS})
        group.cause = Cause(kind="signal", rank=1, signal="SIGKILL", summary="Rank 1 was killed.")
        group._group_started({"attempt": 1, "workers": WORKERS})
        assert (group.cause, group.previous_cause.summary) == (None, "Rank 1 was killed.")
        around.publish()
        group, around = begin(around.die())
        assert group.previous_cause.rank == 1
        group._group_started({"attempt": 2, "workers": WORKERS})  # a person asked for it
        assert group.previous_cause is None

    run(scenario)
