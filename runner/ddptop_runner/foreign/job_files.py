"""The files that one foreign job logs to, for losses that its output does not contain."""

from __future__ import annotations

import datetime as dt

from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.reading.progress.from_text import TextProgress
from ddptop_runner.reading.progress.owners import rank_of, written_at
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_files.watch import TraceWatch

AFTER_S = 5.0
"""A job whose output tells a loss by then needs no files."""
EVERY_S = 10.0


class JobFiles:
    """Looks into a job's working folder once that is needed. Close it."""

    def __init__(self) -> None:
        self._watch: TraceWatch | None = None
        self._since_s: float | None = None
        self._ranks: dict[int, TextProgress] = {}

    def of_rank(self, rank: int) -> TextProgress | None:
        """What files tell of a rank."""
        return self._ranks.get(rank)

    def look(
        self, job: ForeignJob, needed: bool, now: dt.datetime, now_s: float
    ) -> list[tuple[int, dt.datetime, Reading]]:
        """What is new, as (rank, when it was written, what it says).

        Args:
            job: as the last census has it.
            needed: whether a rank has no loss yet; once looked for, files are read on.
            now: the wall clock.
            now_s: a clock that only goes forward.
        """
        if self._since_s is None:
            self._since_s = now_s
        if self._watch is None:
            if not needed or not job.ranks or now_s < self._since_s + AFTER_S:
                return []
            self._watch = TraceWatch(EVERY_S)
            self._watch.find(f"/proc/{job.ranks[0].pid}/cwd", job.started_at.timestamp())
        for known in self._ranks.values():
            known.begin_look()
        pids = {rank.rank: (rank.pid, *rank.helpers) for rank in job.ranks}
        found = []
        for file, reading in self._watch.read_files():
            rank = rank_of(file, pids, job.pids)
            if rank is None:
                continue
            at = written_at(reading, now)
            self._ranks.setdefault(rank, TextProgress()).hear(reading, at)
            found.append((rank, at, reading))
        return found

    def close(self) -> None:
        """Stop looking."""
        if self._watch is not None:
            self._watch.close()
