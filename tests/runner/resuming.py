"""A group under supervisors that die and come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from ddptop_runner.job.group import Group
from tests.runner.builders import make_snapshot, make_spec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.old_events import typed
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import fold
from ddptop_runner.judge.restarts.policy import AttemptOutcome
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Cause, Event, NodeSnapshot, decode_snapshot, encode
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store.history import HistoryReader, HistoryWriter

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
        self.log = EventLog(self.history, lambda line: None)
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
            exit_code=group.job.exit_code,
            previous_cause=group.job.previous_cause,
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
    """The group of a new supervisor, and that supervisor."""
    folder = run_folder("train")
    folder.nodes_dir.mkdir(parents=True, exist_ok=True)
    around = Around(folder)
    group = Group(folder, make_spec(), around.log, HostUsage(), around)
    around.group = group
    if snapshot is None:
        group.planner.begin_attempt()
        around.log.emit(ev.Launched(attempt=0, target="train.py", nproc=2))
    else:
        rows = HistoryReader(folder.path / "history.db").events(silent=True)
        around.log.restore(rows, snapshot)
        group.recover(snapshot)
    return group, around


def told(type_: str) -> list[Event]:
    """Events of that type, as the history has them."""
    events = HistoryReader(run_folder("train").path / "history.db").events()
    return [event for event in events if event.type == type_]


def state_of_the_log() -> JobState:
    """What the whole log folds to."""
    rows = HistoryReader(run_folder("train").path / "history.db").events(silent=True)
    return fold((row.ts, event) for row, event in zip(rows, typed(rows), strict=True))


def put_state(around: Around, **changes: Any) -> None:
    """The state as it is after events that do not matter here."""
    around.log.state = msgspec.structs.replace(around.log.state, **changes)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The scenario, for half a minute at most."""
    asyncio.run(asyncio.wait_for(scenario(), 30.0))


def exited(rank: int, returncode: int, at_s: float) -> dict[str, Any]:
    """What an agent says of a rank that ended."""
    ended = {"attempt": 0, "rank": rank, "pid": os.getpid(), "at_boottime_s": at_s}
    return {**ended, "returncode": returncode}
