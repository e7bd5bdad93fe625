"""The ranks of a job that is a command; they appear as their probes report.

The command is the launcher: the attempt lives as long as it does. A process that knows its rank is
that rank, unless another living process already is. If no rank is known, a process that trains
without knowing its rank is a rank too; such ranks are numbered in order of start. If no probe
reports, but the output shows training, the command's own process counts as rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host import procs, tree
from ddptop_runner.job.ranks import DiscoveredRanks, OwnRanks, RankRecord
from ddptop_runner.job.state import JobState
from ddptop_runner.model.diagnose import RankExit
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

    def exits(self) -> list[RankExit]:
        """The launcher's exit, once known."""
        return [] if self._launcher.exit is None else [self._launcher.exit]

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
        for record in [one for one in self if one.rank_source == ASSUMED]:
            self._leave(record.pid or 0)
        ranks = [_known(one, one.pid in self._numbered) for one in self._records.values()]
        new = Newcomer(message.pid, message.rank, procs.start_ticks(message.pid) or 0)
        seating = seat(new, ranks, tree.descends_from)
        if seating is None:
            return None
        if not seating.takes:
            return self._records[seating.rank]
        self._leave(message.pid)
        moving = [(self._records.pop(self._rank_of_pid[pid]), rank) for pid, rank in seating.moved]
        for moved, rank in moving:
            moved.rank = moved.local_rank = rank
            self._seat(moved)
            self.new.append(moved)
        local = seating.rank if seating.numbered else message.local_rank
        record = self._add(
            seating.rank, message.pid, seating.rank if local is None else local, "probe"
        )
        if seating.numbered:
            self._numbered.add(message.pid)
        return record

    def _add(self, rank: int, pid: int, local_rank: int, source: str) -> RankRecord:
        record = RankRecord(rank, local_rank, self._started_s, self._job)
        record.process = procs.identify(pid)
        record.started_boottime_s = max(self._started_s, _started_s(record.process))
        record.rank_source = source
        self._seat(record)
        self.new.append(record)
        return record

    def _seat(self, record: RankRecord) -> None:
        """Make this the record of its rank, in place of any earlier one."""
        before = self._records.get(record.rank)
        if before is not None and before.pid is not None:
            self._leave(before.pid)
        self._records[record.rank] = record
        if record.pid is not None:
            self._rank_of_pid[record.pid] = record.rank

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


def _known(record: RankRecord, numbered: bool) -> KnownRank:
    process = record.process
    return KnownRank(
        rank=record.rank,
        pid=record.pid or 0,
        alive=not record.life.exited and procs.is_alive(process),
        stepped=bool(record.steps),
        numbered=numbered,
        start_ticks=0 if process is None else process.start_ticks or 0,
    )


def _started_s(process: ProcessId) -> float:
    """CLOCK_BOOTTIME of a process's start; 0 if unknown."""
    return (process.start_ticks or 0) / _TICKS_PER_S


Descends = Callable[[int, int], bool]
"""Whether the first process is a descendant of the second."""


@dataclass(frozen=True)
class KnownRank:
    """A process known to be a rank."""

    rank: int
    pid: int
    alive: bool
    stepped: bool
    numbered: bool = False
    """Whether ddptop numbered it, because it knows no rank."""
    start_ticks: int = 0


@dataclass(frozen=True)
class Newcomer:
    """A process, as its probe reports it."""

    pid: int
    rank: int | None
    start_ticks: int = 0


@dataclass(frozen=True)
class Seating:
    """The rank of a newcomer."""

    rank: int
    takes: bool = False
    """Whether it becomes the rank; otherwise, it reports for the process that is."""
    numbered: bool = False
    moved: tuple[tuple[int, int], ...] = ()
    """(pid, new rank) of others that are renumbered."""


def seat(new: Newcomer, ranks: Sequence[KnownRank], descends: Descends) -> Seating | None:
    """The rank that a process is or reports for; None if it belongs to no rank.

    Args:
        new: the process, according to its report.
        ranks: the ranks so far, including dead ones, each once.
        descends: whether one process descends from another.
    """
    own = next((one for one in ranks if one.pid == new.pid), None)
    if own is not None and new.rank in (None, own.rank):
        return Seating(own.rank, numbered=own.numbered and new.rank is None)
    if new.rank is None or new.rank < 0:
        return _seat_by_order(new, ranks, descends)
    holder = next((one for one in ranks if one.rank == new.rank and one.pid != new.pid), None)
    if holder is None or not holder.alive or holder.numbered or descends(holder.pid, new.pid):
        return Seating(new.rank, takes=True)
    if descends(new.pid, holder.pid) and not holder.stepped:
        return Seating(holder.rank)
    return None


def _seat_by_order(new: Newcomer, ranks: Sequence[KnownRank], descends: Descends) -> Seating | None:
    living = [one for one in ranks if one.alive]
    for one in living:
        if descends(new.pid, one.pid):
            return None if one.stepped else Seating(one.rank)
    if any(not one.numbered for one in living):
        return None
    taken = {one.rank for one in living}
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    if all((one.start_ticks, one.pid) < (new.start_ticks, new.pid) for one in living):
        return Seating(free, takes=True, numbered=True)
    in_order = sorted([*((one.start_ticks, one.pid) for one in living), (new.start_ticks, new.pid)])
    numbers = dict(zip((pid for _, pid in in_order), sorted({*taken, free}), strict=True))
    moved = tuple((one.pid, numbers[one.pid]) for one in living if numbers[one.pid] != one.rank)
    return Seating(numbers[new.pid], takes=True, numbered=True, moved=moved)
