"""One history of a job, seen live, restored by another supervisor, and replayed from its log."""

from __future__ import annotations

import datetime as dt
from typing import Any
from unittest import mock

import msgspec
from msgspec.structs import replace
from tests.support import machine, machine_nodes
from tests.support.builders import make_snapshot

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.moment import samples_of
from ddptop_runner.job.ranks import OwnRanks, table_of
from ddptop_runner.job.samples import of_nodes
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import fold
from ddptop_runner.job.view import Samples, view
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import LauncherSample, NodeSnapshot, RankSample
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store.history_reader import Figures

LATER = machine.EPOCH + dt.timedelta(days=1)
COMPARED_EVERY = 4
"""So many steps of a history are between two comparisons."""


class OneNode(machine.Machine):
    """A job on one node, with a live table of its ranks.

    Its ranks have no probes, because the history alone does not tell whether one has reported.
    """

    table: OwnRanks | None = None

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.spec = replace(self.spec, probe=False)

    def _record(self, event: ev.JobEvent) -> None:
        before = self.state
        super()._record(event)
        if self.table is None or self.state.attempt_started_at != before.attempt_started_at:
            self.table = table_of(self.state.spec_in_force(self.spec), 0.0, lambda: self.log.state)
        if isinstance(event, ev.AttemptStarted) and event.launcher_pid is not None:
            self.table.started(LAUNCHER, 0, event.launcher_pid)
        life = self.state.ranks.get(getattr(event, "rank", -1))
        if isinstance(event, ev.RankStarted) and life is not None and life.pid == event.pid:
            self.table.started(event.rank, event.rank, event.pid)

    def _check_event(self, before: JobState, event: ev.JobEvent) -> None:
        if not isinstance(event, ev.AttemptStarted):  # runs at once without probes
            super()._check_event(before, event)

    def compare(self) -> None:
        """The views agree, unless a full disk has lost the end of the log."""
        if self.lost_log or self.rows.pending:
            return
        assert self.table is not None
        live = view(self.spec, self.state, self._samples(self.table, self.state), LATER)
        state = self._restored()
        table = table_of(state.spec_in_force(self.spec), 0.0, lambda: state)
        if live.launcher is not None and live.launcher.pid is not None:
            table.started(LAUNCHER, 0, live.launcher.pid)
        for rank in live.ranks:
            if rank.pid is not None:
                table.restore(rank, rank.pid)
        restored = view(self.spec, state, self._samples(table, state), LATER)
        assert_equal(restored, live)
        assert_equal(replayed(self.spec, self.rows), live)

    def _samples(self, table: OwnRanks, state: JobState) -> Samples:
        launcher = None
        if table.launcher is not None:
            state_ = table.launcher.sample(probe=False).state
            launcher = LauncherSample(name="python", state=state_)
        return Samples(
            started_at=self.spec.created_at,
            ranks=[one.sample(probe=False) for one in table if not state.in_queue],
            launcher=launcher,
        )

    def _restored(self) -> JobState:
        history: Any = machine.Rows()
        log = EventLog(history, lambda line: None)
        log.restore(self.rows.kept, self._snapshot(self.stale))
        return log.state


class SeveralNodes(machine_nodes.World):
    """A job on several nodes, whose head shows the ranks of its nodes."""

    def check(self) -> None:
        super().check()
        if self.lost_log or self.rows.pending or self.state.attempt is None:
            return
        samples = of_nodes(
            self.state,
            {host: self._seen(node) for host, node in self.nodes.items()},
            stale=[host for host, node in self.nodes.items() if not node.is_up],
            clock_offsets={},
            started_at=self.spec.created_at,
            pause=None,
            checkpoint=None,
        )
        live = view(self.spec, self.state, samples, LATER)
        again = replayed(self.spec, self.rows)
        lag = {one.rank for one in live.ranks} ^ {one.rank for one in again.ranks}
        lag |= {one.rank for one in live.ranks if one.state == "unknown"}
        lives = [one for one in live.ranks if one.rank not in lag]
        same = [one for one in again.ranks if one.rank not in lag]
        assert_equal(replace(live, ranks=lives), replace(again, ranks=same))

    def _seen(self, node: machine_nodes.Node) -> NodeSnapshot:
        """The node's ranks of the attempt, as its last snapshot shows them."""
        group, attempt = node.group, self.state.attempt
        workers = [] if group is None or group.attempt != attempt else group.workers
        working = "starting" if self.state.phase in ("queued", "starting") else "running"
        ranks = [
            RankSample(
                rank=one.rank or 0,
                local_rank=one.local_rank,
                host=node.host,
                pid=one.pid,
                state=working,
            )
            for one in workers
        ]
        return make_snapshot(self.spec, ranks=ranks, alerts=[], attempt=attempt)


def replayed(spec: JobSpec, rows: machine.Rows) -> NodeSnapshot:
    """The job according to its log alone."""
    stored = msgspec.json.decode(msgspec.json.encode(rows.kept), type=list[ev.Event])
    state = fold((row.ts, ev.of_row(row)) for row in stored)
    return view(spec, state, samples_of(spec, state, Figures(), LATER, None), LATER)


BY_PROCESS = ("seq", "ts", "boot_id", "pid_ns", "started_at", "guardian", "supervisor", "ran_s")
"""What a snapshot tells of the process that wrote it, and of its clock."""
SAMPLED = ("boottime_s", "memory", "alerts", "world_size", "ended_at", "checkpoint")
"""What only samples tell of these jobs."""


def assert_equal(one: NodeSnapshot, other: NodeSnapshot) -> None:
    """Both show the same job."""
    for name in NodeSnapshot.__struct_fields__:
        if name not in (*BY_PROCESS, *SAMPLED):
            mine, its = getattr(one, name), getattr(other, name)
            assert mine == its, f"{name}: {mine} is not {its}"


def drive(seed: int) -> OneNode:
    """Compare the views along one history of a job on one node."""
    job = OneNode(seed)
    for number in range(30):
        step = job.random.choice(machine.Machine.STEPS)
        step(job)
        if number % COMPARED_EVERY == 0:
            job.compare()
    job.settle()
    job.compare()
    return job


def drive_nodes(seed: int) -> SeveralNodes:
    """Compare the views along one history of a job on several nodes."""
    with mock.patch.object(machine_nodes, "World", SeveralNodes):
        world = machine_nodes.drive(seed)
    assert isinstance(world, SeveralNodes)
    return world
