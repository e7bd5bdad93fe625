"""How a group goes from one attempt to the next: waits, a person's word, another agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from ddptop_runner.job.group import Group
from tests.runner.builders import make_spec
from tests.runner.emitted import EmittedLog

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import run_folder
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job.state import Ending
from ddptop_runner.judge.hangs.types import HangVerdict
from ddptop_runner.judge.losses import BadLoss
from ddptop_runner.judge.restarts import policy
from ddptop_runner.judge.restarts.policy import AttemptOutcome
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Cause, GpuSample
from ddptop_runner.model.spec import Device, JobSpec

pytestmark = pytest.mark.usefixtures("ddptop_home")

CAUSE = Cause(kind="signal", signal="SIGKILL", rank=1, summary="Rank 1 was killed.")
AT_START = AttemptOutcome(0, 3.0, 0, None, "SIGKILL", None)
"""What is followed by a wait."""
TRAINED = AttemptOutcome(0, 3.0, 9, None, "SIGKILL", None)
"""What is not."""
DEVICES = [Device(index=n, uuid=f"GPU-{n}") for n in (0, 1)]


class Around:
    """A supervisor that notes what it is asked for."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.devices: list[Device] = []
        self.agents: list[tuple[int, int, int | None]] = []
        self.specs: list[JobSpec] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def snapshot_bytes(self) -> bytes:
        return b"{}"

    def publish(self) -> None:
        pass

    def start_agent(self, attempt: int, restarts_left: int) -> None:
        nproc = self.specs[-1].nproc if self.specs else None
        self.agents.append((attempt, restarts_left, nproc))

    def device_report(self) -> DeviceReport | None:
        gpus = [GpuSample(index=d.index, uuid=d.uuid, lost=d.index in self.lost) for d in DEVICES]
        return DeviceReport(ts=utc_now(), boottime_s=boottime_s(), source="nvml", gpus=gpus)

    def change_spec(self, spec: JobSpec) -> None:
        self.specs.append(spec)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)


def run(scenario: Callable[[Group, Around], Coroutine[Any, Any, None]], **spec: object) -> None:
    async def body() -> None:
        job = msgspec.structs.replace(make_spec(), **spec)
        folder, around = run_folder(job.job), Around()
        folder.nodes_dir.mkdir(parents=True)
        log: Any = EmittedLog()
        group = Group(folder, job, log, HostUsage(), around)
        group.planner.begin_attempt()
        await scenario(group, around)
        await asyncio.gather(*around.tasks)

    asyncio.run(asyncio.wait_for(body(), 30.0))


def open_attempt(group: Group, number: int) -> None:
    group._log.emit(ev.AttemptOpened(attempt=number))
    group._begin_attempt()


def test_a_person_need_not_wait_for_the_next_attempt_and_it_costs_nothing(monkeypatch):
    monkeypatch.setattr(policy, "BACKOFF_BASE_S", 60.0)

    async def scenario(group: Group, around: Around) -> None:
        waiting = asyncio.create_task(group._restart_or_end(AT_START, CAUSE))
        while group.restart_at_s is None:
            await asyncio.sleep(0)
        assert group.state == "restarting" and group.restarts_used == 1
        assert not waiting.done() and group.restart_at_s - boottime_s() > 15
        group.request_restart()
        began_s = boottime_s()
        assert await waiting
        assert boottime_s() - began_s < 12
        assert group.restarts_used == 0
        open_attempt(group, 1)
        assert not group._hurry.is_set()
        with pytest.raises(ControlError):
            group.request_restart()  # it has begun, and its ranks are not started

    run(scenario)


def test_a_stop_ends_the_wait():
    async def scenario(group: Group, around: Around) -> None:
        waiting = asyncio.create_task(group._restart_or_end(AT_START, CAUSE))
        await asyncio.sleep(0.01)
        group._stop_requested.set()
        assert not await waiting

    run(scenario)


def test_what_an_attempt_had_achieved_is_told_to_the_policy():
    async def scenario(group: Group, around: Around) -> None:
        group._log.emit(ev.TrainingStarted(attempt=0, after_s=4.0))
        record = group.table[0]
        record.reported = msgspec.structs.replace(record.reported, global_step=120)
        record = group.table[1]
        record.reported = msgspec.structs.replace(record.reported, global_step=121)
        outcome = AttemptOutcome(0, 30.0, 7, None, "SIGKILL", None)
        assert await group._restart_or_end(outcome, CAUSE)
        kept = group.planner.remember()["history"]["failed"][0]
        assert kept["progress"] is True
        assert (kept["outcome"]["global_step"], kept["outcome"]["startup_s"]) == (121, 4.0)
        assert kept["outcome"]["kind"] == "signal"

    run(scenario)


def test_a_lost_device_ends_a_job_that_may_not_shrink_and_is_its_cause():
    async def scenario(group: Group, around: Around) -> None:
        around.lost = {1}
        assert not await group._restart_or_end(TRAINED, CAUSE)
        assert group.job.ending is not None and group.job.ending.requeue is not False
        assert group.job.ending.cause is not None and group.job.ending.cause.kind == "gpu"
        assert "GPU 1: lost" in group.job.ending.cause.summary
        assert "--allow-shrink" in group.job.ending.cause.summary
        assert "Rank 1 was killed." in group.job.ending.cause.summary

    run(scenario, devices=DEVICES)


@pytest.mark.parametrize("way", ["agent dead", "agent ends", "hang"])
def test_with_fewer_ranks_there_is_one_new_agent_whatever_led_to_it(way):
    async def scenario(group: Group, around: Around) -> None:
        around.lost = {1}
        group.agent_pid = 4_000_000  # of no process
        if way == "agent dead":
            group.agent_pid = None
            group.table[1].exit = Mock(failed=True)
            group._decide_after_failure = lambda: group._restart_or_end(  # type: ignore[method-assign]
                TRAINED, CAUSE
            )
            await group._continue_without_agent()
        elif way == "agent ends":
            assert not await group._restart_or_end(TRAINED, CAUSE)
            group.process_exited(4_000_000, 1, boottime_s())
        else:
            await group._end_attempt(TRAINED, CAUSE)
        await asyncio.gather(*around.tasks)
        assert around.agents == [(1, 2, 1)]
        # what is heard late of the old one begins nothing
        group.process_exited(4_000_000, -15, boottime_s())
        await group._after_orphan_exit()
        await asyncio.gather(*around.tasks)
        assert len(around.agents) == 1 and group.job.ending is None and not group.ended.is_set()
        open_attempt(group, 1)
        assert len(list(group.table)) == 1

    run(scenario, devices=DEVICES, allow_shrink=True)


def test_a_new_agent_that_cannot_start_ranks_ends_the_job():
    async def scenario(group: Group, around: Around) -> None:
        around.lost = {1}
        await group._end_attempt(TRAINED, CAUSE)
        await asyncio.gather(*around.tasks)
        group.table[1].exit = Mock(failed=True)  # of the attempt that hung
        group.agent_pid = 4_000_001
        group.process_exited(4_000_001, 1, boottime_s())
        await asyncio.gather(*around.tasks)
        assert group.state == "failed"
        assert group.job.cause is not None and group.job.cause.kind == "launch"

    run(scenario, devices=DEVICES, allow_shrink=True)


@pytest.mark.parametrize(("returncode", "signal"), [(-9, "SIGKILL"), (None, None)])
def test_an_agent_that_is_killed_before_it_starts_ranks_is_followed_by_others_within_the_budget(
    returncode, signal, monkeypatch
):
    monkeypatch.setattr(policy, "BACKOFF_BASE_S", 0.01)

    async def agent_ends(group: Group, around: Around) -> None:
        group.agent_pid = 4_000_001
        group.process_exited(4_000_001, returncode, boottime_s())
        while waiting := [task for task in around.tasks if not task.done()]:
            await asyncio.gather(*waiting)

    async def scenario(group: Group, around: Around) -> None:
        await agent_ends(group, around)
        assert around.agents == [(1, 1, None)]
        assert (group.attempt, group.state, group.restarts_used) == (0, "restarting", 1)
        group.agent_pid = 4_000_001
        group.agent_connected({"pid": 4_000_001, "attempt": 1, "workers": [], "exits": []}, Mock())
        await agent_ends(group, around)
        assert around.agents == [(1, 1, None), (2, 0, None)]
        assert (group.attempt, group.state, group.restarts_used) == (1, "restarting", 2)
        await agent_ends(group, around)
        assert len(around.agents) == 2 and group.ended.is_set()
        assert (group.attempt, group.state) == (2, "failed")
        assert group.job.cause is not None and group.job.ending is not None
        assert (group.job.cause.kind, group.job.cause.signal) == ("launch", signal)
        assert group.job.ending.requeue is True

    run(scenario, max_restarts=2)


def test_a_device_that_is_back_is_taken_back_with_a_restart():
    async def scenario(group: Group, around: Around) -> None:
        around.lost = {1}
        await group._end_attempt(TRAINED, CAUSE)
        await asyncio.gather(*around.tasks)
        open_attempt(group, 1)
        group.table.started(0, 0, 4_000_002)
        group._log.emit(ev.AttemptStarted(attempt=1, world=1, probed=False))
        around.lost = set()
        group.planner.look(around.device_report())
        group.request_restart()
        await asyncio.gather(*around.tasks)
        assert around.agents == [(1, 2, 1), (2, 2, 2)]

    run(scenario, devices=DEVICES, allow_shrink=True)


def test_the_memory_is_waited_for_before_the_ranks_start_unless_the_job_is_stopped(monkeypatch):
    monkeypatch.setattr("ddptop_runner.judge.restarts.fitness.POLL_S", 0.01)

    async def scenario(group: Group, around: Around) -> None:
        answers: list[dict[str, Any]] = []
        group._send_to_agent = answers.append
        group.planner.look(around.device_report())
        held = [GpuSample(index=0, uuid="GPU-0", mem_used_bytes=9 * 2**30)]
        group.planner._health.look([msgspec.structs.replace(held[0], mem_used_bytes=0)], 1.0)
        now = {"gpus": held}
        around.device_report = lambda: DeviceReport(  # type: ignore[method-assign]
            ts=utc_now(), boottime_s=boottime_s() + 1, source="nvml", gpus=now["gpus"]
        )
        question = {"question": 5, "attempt": 0}
        task = asyncio.create_task(group._answer_group_stopped(question))
        await asyncio.sleep(0.1)
        assert not task.done() and answers == []
        now["gpus"] = []
        await task
        assert answers == [{"answer": 5}]
        now["gpus"] = held
        task = asyncio.create_task(group._answer_group_stopped(question))
        await asyncio.sleep(0.05)
        group._stop_requested.set()
        await task
        assert len(answers) == 1

    run(scenario, devices=DEVICES)


HANG = HangVerdict((1,), 60.0, "no step for 60 s")
BAD = BadLoss(rank=1, step=7, what="NaN")


@pytest.mark.parametrize("found", [HANG, BAD], ids=["a hang", "a loss gone bad"])
@pytest.mark.parametrize("meanwhile", ["a rank failed", "the next began", "stopped", "restarted"])
def test_what_is_decided_while_evidence_is_taken_is_not_decided_again(
    monkeypatch, found, meanwhile
):
    monkeypatch.setattr(policy, "BACKOFF_BASE_S", 0.0)

    async def scenario(group: Group, around: Around) -> None:
        sent: list[dict[str, Any]] = []
        group._log.emit(ev.RunningAssumed(attempt=0))
        if found is BAD:
            group._log.emit(ev.TroubleFound(attempt=0))
        group._send_to_agent = sent.append

        async def takes_long(reason: str) -> str:
            if meanwhile == "a rank failed":
                await group._restart_or_end(AT_START, CAUSE)
            elif meanwhile == "the next began":
                open_attempt(group, 1)
            elif meanwhile == "stopped":
                group._log.emit(ev.StopRequested(attempt=0, grace_s=1.0))
                group._stop_requested.set()
            else:
                group._log.emit(ev.RestartRequested(attempt=0, used=0))
            return "/evidence"

        monkeypatch.setattr(group, "_keep_evidence", takes_long)
        judge = group._end_hang if found is HANG else group._end_bad_loss
        await judge(found)
        assert sent == []
        assert group.restarts_used == (meanwhile == "a rank failed")
        assert group.job.ending == (Ending(state="stopped") if meanwhile == "stopped" else None)

    run(scenario, max_restarts=3, on_nan="restart")
