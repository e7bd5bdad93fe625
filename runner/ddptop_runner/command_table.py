"""The ranks of a job that is a command: nobody here numbers them, they appear as they are heard.

The command is the launcher: the attempt lives as long as it does. Which process is which rank is
decided by `launched.meeting`, from what the probes say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ddptop_runner import procs
from ddptop_runner.diagnose import RankExit
from ddptop_runner.launched import meeting
from ddptop_runner.launched.meeting import Met, Newcomer
from ddptop_runner.model import LAUNCHER, ProcessId
from ddptop_runner.probe_message import ProbeMessage
from ddptop_runner.rank_record import RankRecord
from ddptop_runner.rank_table import RankTable
from ddptop_runner.spec import JobSpec

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CommandTable(RankTable):
    """The launcher's record, and one for each rank that was met."""

    def __init__(self, started_boottime_s: float) -> None:
        super().__init__(0, started_boottime_s)
        self.launcher = RankRecord(LAUNCHER, 0, started_boottime_s)
        self._numbered: set[int] = set()
        """Pids of ranks that know no rank themselves."""
        self._told_size: int | None = None

    @property
    def _launcher(self) -> RankRecord:
        assert self.launcher is not None  # since __init__
        return self.launcher

    def __iter__(self) -> Iterator[RankRecord]:
        return iter([self._records[rank] for rank in sorted(self._records)])

    def __getitem__(self, rank: int) -> RankRecord:
        return self._launcher if rank == LAUNCHER else super().__getitem__(rank)

    def get(self, rank: int) -> RankRecord | None:
        """The record of a rank, or of `model.LAUNCHER`; None where there is none."""
        return self.launcher if rank == LAUNCHER else super().get(rank)

    @property
    def world_size(self) -> int | None:
        """As the ranks say, or as many as know no rank; None before the first is met."""
        return self._told_size or len(self._numbered) or None

    def started(self, rank: int, local_rank: int, pid: int) -> RankRecord:
        """A process exists; its record knows it from now on."""
        if rank != LAUNCHER:
            return super().started(rank, local_rank, pid)
        self._launcher.process = procs.identify(pid)
        return self._launcher

    def of_pid(self, pid: int) -> RankRecord | None:
        """The launcher, where the process is that, else the rank."""
        return self._launcher if pid == self._launcher.pid else self.rank_of_pid(pid)

    def alive(self) -> list[RankRecord]:
        """The launcher, while it lives."""
        return [self._launcher] if self._launcher.alive else []

    def exits(self) -> list[RankExit]:
        """The launcher's end, once it is known."""
        return [] if self._launcher.exit is None else [self._launcher.exit]

    def hear(self, message: ProbeMessage, attempt: int | None) -> RankRecord | None:
        """Give a probe's message to its rank, which it may be the first to tell of."""
        if message.attempt != attempt:
            return None
        record = self.rank_of_pid(message.pid)
        if record is None or message.rank not in (None, record.rank):
            record = self._meet(message)
        if record is None:
            return None
        record.hear(message)
        if message.rank is not None and message.world_size:
            self._told_size = message.world_size
        return record

    def _meet(self, message: ProbeMessage) -> RankRecord | None:
        met = [_met(record, record.pid in self._numbered) for record in self._records.values()]
        new = Newcomer(message.pid, message.rank, procs.start_ticks(message.pid) or 0)
        seating = meeting.seat(new, met, procs.descends_from)
        if seating is None:
            return None
        if not seating.takes:
            return self._records[seating.rank]
        self._leave(message.pid)
        moving = [(self._records.pop(self._rank_of_pid[pid]), rank) for pid, rank in seating.moved]
        for moved, rank in moving:
            moved.rank = moved.local_rank = rank
            self._seat(moved)
        record = RankRecord(seating.rank, seating.rank, self._started_s)
        record.process = procs.identify(message.pid)
        record.started_boottime_s = max(self._started_s, _started_s(record.process))
        record.rank_source = "probe"
        if message.local_rank is not None and not seating.numbered:
            record.local_rank = message.local_rank
        self._seat(record)
        if seating.numbered:
            self._numbered.add(message.pid)
        self.new.append(record)
        return record

    def _seat(self, record: RankRecord) -> None:
        """The record is its rank's from now on; whoever was it is forgotten."""
        before = self._records.get(record.rank)
        if before is not None and before.pid is not None:
            self._leave(before.pid)
        self._records[record.rank] = record
        if record.pid is not None:
            self._rank_of_pid[record.pid] = record.rank

    def _leave(self, pid: int) -> None:
        self._numbered.discard(pid)
        rank = self._rank_of_pid.pop(pid, None)
        if rank is not None:
            self._records.pop(rank, None)


def table_of(spec: JobSpec, started_boottime_s: float) -> RankTable:
    """An empty table for an attempt that begins."""
    if spec.is_command:
        return CommandTable(started_boottime_s)
    return RankTable(spec.nproc, started_boottime_s)


def _met(record: RankRecord, numbered: bool) -> Met:
    process = record.process
    return Met(
        rank=record.rank,
        pid=record.pid or 0,
        alive=record.exit is None and procs.is_alive(process),
        stepped=bool(record.steps),
        numbered=numbered,
        start_ticks=0 if process is None else process.start_ticks or 0,
    )


def _started_s(process: ProcessId) -> float:
    """CLOCK_BOOTTIME at which a process was started; 0 where that is not known."""
    return (process.start_ticks or 0) / _TICKS_PER_S
