"""Finds a command's launcher, and its ranks without a probe, in its process tree.

They are recognized like those of foreign jobs, but only among the command's own processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.foreign.process_table import ProcessTable
from ddptop_runner.foreign.recognize import find_jobs
from ddptop_runner.foreign.types import ForeignJob, ForeignRank, ProcessFacts
from ddptop_runner.host import procs

EVERY_S = 2.0
PATIENCE_S = 15.0
"""A rank with a probe first reports within this time; until then, nothing else counts."""
VAGUE_LAUNCHERS = (None, "python")
"""Launchers, according to a command's words, that its process tree may specify better."""
JOB_ID = "DDPTOP_JOB_ID"


@dataclass(frozen=True)
class Sight:
    """What the process tree shows."""

    launcher: str | None = None
    """What started the ranks; None if unknown."""
    world_size: int | None = None
    ranks: tuple[ForeignRank, ...] = ()
    is_of_several: bool = False
    """Whether several jobs train in the tree, so that none counts."""

    def or_printing(self, pid: int) -> Sight:
        """The sight, or that process as rank 0 without training: any program may print."""
        if self.ranks or self.is_of_several:
            return self
        rank = ForeignRank(0, 0, pid, procs.start_ticks(pid) or 0, "single")
        return dataclasses.replace(self, ranks=(rank,))

    @property
    def sure(self) -> Sight:
        """The sight without a rank that is a single process, which may yet start its ranks."""
        ranks = tuple(rank for rank in self.ranks if rank.evidence != "single")
        return self if ranks else dataclasses.replace(self, world_size=None, ranks=())


class TreeLook:
    """Scans a command's processes repeatedly.

    Args:
        pids: returns all of them, the command's own first.
    """

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._table = ProcessTable(only=pids)
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another scan."""
        return now_s >= self._next_s

    def look(self, now_s: float) -> Sight:
        """Scan the tree."""
        self._next_s = now_s + EVERY_S
        facts = [_as_foreign(process) for process in self._table.scan()]
        jobs, _ = find_jobs(facts, {}, boot_unix_s=0.0)
        return sight_of(jobs)


def _as_foreign(process: ProcessFacts) -> ProcessFacts:
    """The process without its mark as ddptop's, since what matters is who started the ranks."""
    if not process.environ or JOB_ID not in process.environ:
        return process
    environ = {name: value for name, value in process.environ.items() if name != JOB_ID}
    return msgspec.structs.replace(process, environ=environ)


def sight_of(jobs: Sequence[ForeignJob]) -> Sight:
    """The job that trains; of several, none counts, because each numbers its own ranks."""
    trained = [job for job in jobs if job.ranks]
    if len(trained) != 1:
        return Sight(is_of_several=len(trained) > 1)
    (job,) = trained
    return Sight(job.launcher, job.world_size, job.ranks)
