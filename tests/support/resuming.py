"""A job's driver under supervisors that die and are restarted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import msgspec
from tests.support.builders import make_snapshot, make_spec

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job.event_log import EventLog, read_memory
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import (
    Cause,
    Event,
    GpuSample,
    NodeSnapshot,
    decode_snapshot,
    encode,
)
from ddptop_runner.model.spec import Device
from ddptop_runner.node.alerts import LastResort
from ddptop_runner.node.driver import JobDriver
from ddptop_runner.store.history import HistoryReader, HistoryWriter

CAUSE = Cause(kind="signal", signal="SIGKILL", rank=1, summary="Rank 1 was killed.")
AT_START = AttemptOutcome(0, 3.0, 0, None, "SIGKILL", None)
"""Causes followed by a wait."""
TRAINED = AttemptOutcome(0, 3.0, 9, None, "SIGKILL", None)
"""Causes not followed by a wait."""
PIDS = (os.getpid(), 4_000_001)
"""This process, which nothing ends, and no process."""
WORKERS = [pt.Worker(rank=rank, local_rank=rank, pid=PIDS[rank]) for rank in (0, 1)]
AGENT = 4_000_000
"""The PID of no process."""


class Around:
    """A supervisor with a history, that may die."""

    def __init__(self, folder: RunFolder) -> None:
        self.agents: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.lost: set[int] = set()
        """Devices that a report calls lost."""
        self.devices: list[Device] = []
        self.requests = 0
        """For reports on the devices at once."""
        self.driver: JobDriver | None = None
        self.history = HistoryWriter(folder.path / "history.db")
        self.log = EventLog(self.history, lambda line: None)
        self.defects = LastResort(self.log)
        self.published: NodeSnapshot | None = None

    def snapshot_bytes(self) -> bytes:
        return b"{}"

    def publish(self) -> None:
        driver = self.driver
        if driver is None:
            return
        ranks = [record.sample(probe=True) for record in driver.attempt.table]
        self.published = make_snapshot(
            make_spec(),
            state=driver.job.phase,
            attempt=driver.attempt.number,
            restarts_used=driver.job.budget.used,
            ranks=ranks,
            exit_code=driver.job.exit_code,
            previous_cause=driver.job.previous_cause,
            memory=msgspec.structs.replace(
                driver.remember(), state=self.log.state, last_seq=self.history.last_seq
            ).plain(),
        )

    def start_agent(self, order: pt.StartAgent) -> None:
        self.agents.append(order.attempt)

    def request_device_report(self) -> None:
        self.requests += 1

    def device_report(self) -> DeviceReport | None:
        if not self.devices:
            return None
        gpus = [
            GpuSample(index=one.index, uuid=one.uuid, lost=one.index in self.lost)
            for one in self.devices
        ]
        return DeviceReport(ts=utc_now(), boottime_s=boottime_s(), source="nvml", gpus=gpus)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def die(self) -> NodeSnapshot:
        """What the next one restores."""
        for task in self.tasks:
            task.cancel()
        self.history.close()
        assert self.published is not None
        snapshot = decode_snapshot(encode(self.published))
        assert read_memory(snapshot).state is not None
        return snapshot


def begin(snapshot: NodeSnapshot | None = None, **spec: Any) -> tuple[JobDriver, Around]:
    """The driver of a new supervisor, and that supervisor."""
    folder = run_folder("train")
    folder.nodes_dir.mkdir(parents=True, exist_ok=True)
    around = Around(folder)
    driver = JobDriver(folder, make_spec(**spec), around.log, HostUsage(), around)
    around.driver = driver
    around.devices = driver._spec.devices or []
    if snapshot is None:
        around.log.emit(ev.Launched(attempt=0, target="train.py", nproc=2))
    else:
        rows = HistoryReader(folder.path / "history.db").events(silent=True)
        around.log.restore(rows, snapshot)
        driver.recover(snapshot, read_memory(snapshot))
    return driver, around


def start(driver: JobDriver, attempt: int = 0) -> None:
    """The agent started the ranks of an attempt."""
    driver.take(pt.GroupStarted(attempt=attempt, workers=WORKERS))


def connect(driver: JobDriver, attempt: int = 0, pid: int = AGENT) -> list[Any]:
    """An agent connects; returns what is sent to it."""
    sent: list[Any] = []
    workers = WORKERS if driver.job.ranks else []
    hello = pt.AgentHello(pid=pid, attempt=attempt, workers=workers, exits=[])
    driver.agent_connected(hello, sent.append)
    return sent


def ask(driver: JobDriver, kind: Any, question: int, **more: Any) -> None:
    """The connected agent asks."""
    link, attempt = driver._link, driver.attempt.number
    assert link is not None
    driver.from_agent(link, pt.AgentAsked(kind=kind, question=question, attempt=attempt, **more))


def fail(
    driver: JobDriver, outcome: AttemptOutcome = AT_START, question: int | None = None
) -> None:
    """The attempt failed for this reason, whether or not the agent asks."""
    if question is not None and driver._link is not None:
        driver._asked = pt.AgentAsked(kind="torn_down", question=question)
    judged = pt.AttemptJudged(
        attempt=driver.attempt.number, cause=CAUSE, outcome=outcome, jitter=0.5
    )
    driver.take(judged)


async def finish(around: Around) -> None:
    """Wait until everything that was started is done, for half a minute at most."""
    while waiting := [task for task in around.tasks if not task.done()]:
        await asyncio.wait_for(asyncio.gather(*waiting), 30.0)


def told(type_: str) -> list[Event]:
    """Events of this type in the history."""
    events = HistoryReader(run_folder("train").path / "history.db").events()
    return [event for event in events if event.type == type_]


def put_state(around: Around, **changes: Any) -> None:
    """The state after events that do not matter here."""
    around.log.state = msgspec.structs.replace(around.log.state, **changes)


def exited(rank: int, returncode: int, at_s: float) -> pt.RankEnded:
    """What an agent reports about a rank that exited."""
    return pt.RankEnded(attempt=0, pid=PIDS[rank], returncode=returncode, at_boottime_s=at_s)
