"""The ranks of a job that is a command; they appear as their probes report.

The command is the launcher: the attempt lives as long as it does. A process that knows its rank is
that rank, unless another living process already is. If no rank is known, a process that trains
without knowing its rank is a rank too; such ranks are numbered as they report. If no probe
reports, but the output shows training, the command's own process counts as rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host import procs, tree
from ddptop_runner.job.ranks import DiscoveredRanks, OwnRanks, RankRecord
from ddptop_runner.job.state import JobState
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import ProcessId
from ddptop_runner.model.spec import JobSpec

PATIENCE_S = 15.0
"""A rank with a probe first reports within this time; until then, its output does not count."""
ASSUMED = "single"
"""`rank_source` of a command's process that counts as rank 0 because its output shows training."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CommandRanks(OwnRanks):
    """A command's launcher and each rank that its probe reports."""

    def __init__(self, started_boottime_s: float, job: Callable[[], JobState] = JobState) -> None:
        super().__init__(0, started_boottime_s, job=job)
        self.launcher = RankRecord(LAUNCHER, 0, started_boottime_s, job)
        self._numbered: set[int] = set()
        """Pids of ranks that do not know their rank."""
        self._reported_size: int | None = None
        self._former_steps: int | None = None
        """The most steps of any process that is no longer a rank."""

    @property
    def _launcher(self) -> RankRecord:
        assert self.launcher is not None  # since __init__
        return self.launcher

    @property
    def was_restarted(self) -> bool:
        """Whether the launcher has restarted its ranks by itself."""
        return bool(self._former_steps)

    def __iter__(self) -> Iterator[RankRecord]:
        return iter([self._records[rank] for rank in sorted(self._records)])

    def __getitem__(self, rank: int) -> RankRecord:
        return self._launcher if rank == LAUNCHER else super().__getitem__(rank)

    def get(self, rank: int) -> RankRecord | None:
        """The record of a rank or of `LAUNCHER`; None without one."""
        return self.launcher if rank == LAUNCHER else super().get(rank)

    @property
    def world_size(self) -> int | None:
        """The reported world size, or the number of unnumbered ranks; None before the first."""
        return self._reported_size or len(self._numbered) or None

    def started(self, rank: int, local_rank: int, pid: int) -> RankRecord:
        """Record that a process has started."""
        if rank != LAUNCHER:
            return super().started(rank, local_rank, pid)
        self._launcher.process = procs.identify(pid)
        return self._launcher

    def of_pid(self, pid: int) -> RankRecord | None:
        """The launcher if the process is that, else the rank."""
        return self._launcher if pid == self._launcher.pid else self.rank_of_pid(pid)

    def alive(self) -> list[RankRecord]:
        """The launcher, while it is alive."""
        return [self._launcher] if self._launcher.alive else []

    def receive(self, message: ProbeMessage, attempt: int | None) -> RankRecord | None:
        """Pass a probe's message to its rank, which the message may be the first to reveal."""
        if message.attempt != attempt:
            return None
        record = self.rank_of_pid(message.pid)
        if (
            record is None
            or record.rank_source == ASSUMED
            or message.rank not in (None, record.rank)
        ):
            record = self._discover(message)
        if record is None:
            return None
        record.receive(message)
        if message.rank == record.rank:
            record.rank_source = "probe"
            self._numbered.discard(message.pid)
        if message.rank is not None and message.world_size:
            self._reported_size = message.world_size
            self._forget_dead_above(message.world_size)
        return record

    def remember(self) -> DiscoveredRanks:
        """The data that a restarted supervisor's table needs besides the records."""
        return DiscoveredRanks(
            numbered=sorted(self._numbered),
            reported_size=self._reported_size,
            former_steps=self._former_steps,
        )

    def recall(self, memory: DiscoveredRanks) -> None:
        """Restore the result of `remember`, once the records are restored."""
        self._numbered = {pid for pid in memory.numbered if pid in self._rank_of_pid}
        self._reported_size = memory.reported_size
        self._former_steps = memory.former_steps

    def most_steps(self) -> int | None:
        """The most steps of any rank, including ranks that the launcher has replaced."""
        known = (super().most_steps(), self._former_steps)
        return max((steps for steps in known if steps is not None), default=None)

    def assume_rank(self) -> None:
        """Let the command's process be rank 0, until a probe reports."""
        process = self._launcher.process
        if not self._records and process is not None:
            self._add(0, process.pid, 0, ASSUMED)

    def _discover(self, message: ProbeMessage) -> RankRecord | None:
        """The rank that a process is or reports for; None if it belongs to no rank."""
        for record in [one for one in self if one.rank_source == ASSUMED]:
            self._leave(record.pid or 0)
        living = [one for one in self if not one.life.exited and procs.is_alive(one.process)]
        if message.rank is None or message.rank < 0:
            return self._number(message, living)
        holder = next((one for one in living if one.rank == message.rank), None)
        if holder is not None and holder.pid not in self._numbered:
            if tree.descends_from(message.pid, holder.pid or 0):
                return None if holder.steps else holder
            if not tree.descends_from(holder.pid or 0, message.pid):
                return None
        return self._replace(message, message.rank)

    def _number(self, message: ProbeMessage, living: Sequence[RankRecord]) -> RankRecord | None:
        """The same for a process that does not know its rank."""
        for one in living:
            if tree.descends_from(message.pid, one.pid or 0):
                return None if one.steps else one
        if any(one.pid not in self._numbered for one in living):
            return None
        taken = {one.rank for one in living}
        rank = next(number for number in range(len(taken) + 1) if number not in taken)
        record = self._replace(message, rank)
        record.local_rank = rank
        self._numbered.add(message.pid)
        return record

    def _replace(self, message: ProbeMessage, rank: int) -> RankRecord:
        """Make a process this rank, in place of any other."""
        self._leave(message.pid)
        local = rank if message.local_rank is None else message.local_rank
        return self._add(rank, message.pid, local, "probe")

    def _add(self, rank: int, pid: int, local_rank: int, source: str) -> RankRecord:
        record = RankRecord(rank, local_rank, self._started_s, self._job)
        record.process = procs.identify(pid)
        record.started_boottime_s = max(self._started_s, _started_s(record.process))
        record.rank_source = source
        before = self._records.get(rank)
        if before is not None and before.pid is not None:
            self._leave(before.pid)
        self._records[rank] = record
        self._rank_of_pid[pid] = rank
        self.new.append(record)
        return record

    def _forget_dead_above(self, size: int) -> None:
        """Forget dead ranks that a launcher leaves behind when it restarts with fewer ranks."""
        for record in [one for one in self if one.rank >= size and one.life.exited]:
            if record.pid is not None:
                self._leave(record.pid)

    def _leave(self, pid: int) -> None:
        self._numbered.discard(pid)
        rank = self._rank_of_pid.pop(pid, None)
        record = None if rank is None else self._records.pop(rank, None)
        if record is not None and record.has_reported:
            self._former_steps = max(self._former_steps or 0, record.steps or 0)


def table_of(
    spec: JobSpec, started_boottime_s: float, job: Callable[[], JobState] = JobState
) -> OwnRanks:
    """An empty table for a new attempt of this node."""
    if spec.is_command:
        return CommandRanks(started_boottime_s, job)
    rendezvous = job().rendezvous
    if rendezvous is None and spec.membership is not None:
        rendezvous = spec.membership.rendezvous
    first_rank = 0 if rendezvous is None else rendezvous.first_rank
    return OwnRanks(spec.nproc, started_boottime_s, first_rank, job)


def _started_s(process: ProcessId) -> float:
    """CLOCK_BOOTTIME of a process's start; 0 if unknown."""
    return (process.start_ticks or 0) / _TICKS_PER_S
