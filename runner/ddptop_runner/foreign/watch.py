"""Watches foreign jobs over time and produces views for all screens.

Combines the current scan with the results of earlier ones. Memory use is bounded, however long it
watches.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.foreign.census import find_again
from ddptop_runner.foreign.job_record import Curves, JobRecord
from ddptop_runner.foreign.output import Source
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignView
from ddptop_runner.host.tree import UsageMeter
from ddptop_runner.model.snapshot import Event, GpuSample, NodeSnapshot
from ddptop_runner.store.history_reader import Series

MAX_READ = 16
"""Number of jobs whose output is read."""


Mark = Sequence[tuple[Source, int]]
"""How far an output was read: its sources, each with a number of lines."""


@dataclass(frozen=True)
class NewLines:
    """What was written to an output since a mark."""

    lines: tuple[str, ...] = ()
    """Without control sequences."""
    partial: str = ""
    """The unfinished last line, such as a progress bar."""
    is_reset: bool = False
    """Whether these are the first lines: anything shown before is unrelated."""
    mark: Mark = ()


class ForeignBook:
    """The foreign jobs of this host, scan by scan. Used by one thread."""

    def __init__(self, clock: Callable[[], float] = boottime_s) -> None:
        """`clock` returns seconds and is monotonic."""
        self._clock = clock
        self._records: dict[str, JobRecord] = {}
        self._meter = UsageMeter[int]()

    def update(
        self,
        census: Census,
        gpus: Sequence[GpuSample],
        now: dt.datetime,
        *,
        follow: str | None = None,
    ) -> list[ForeignView]:
        """All foreign jobs as views, newest first; call it once per scan.

        Args:
            census: the latest.
            gpus: the latest device samples; [] without devices.
            now: the wall clock.
            follow: the job that stays in the list as `lost`, with `ended_at`, once its processes
                are gone.
        """
        now_s = self._clock()
        self._match(census, now, follow)
        alive = [record for record in self._records.values() if record.ended_at is None]
        trees = {rank.pid: (rank.pid, *rank.helpers) for one in alive for rank in one.foreign.ranks}
        usages = self._meter.look(trees, now_s)
        for record in _to_read(self._records.values(), follow):
            if record.ended_at in (None, now):  # later output is not the job's
                with contextlib.suppress(Exception):  # one job's data must not hide the others
                    record.read_output(now, now_s)
        views = [record.view(gpus, usages, now, now_s) for record in self._records.values()]
        return sorted(views, key=lambda view: view.created_at, reverse=True)

    def chart(
        self, job: str, since: float, until: float, columns: int, *, by_step: bool = False
    ) -> tuple[dict[int, Series], dict[str, Series]]:
        """(losses by rank, other values by name), each like `HistoryReader.rank_series`.

        By time, includes only values written while the job was watched and the last loss before;
        the times of older lines are unknown.

        Args:
            job: its name; an unknown job has no series.
            since: Unix time or step; 0 means the first value.
            until: Unix time or step, inclusive.
            columns: of each series, 2 or more.
            by_step: whether `t` of the points is a step rather than a time. Steps are those that
                the output prints, counted on across epochs.
        """
        curves = self._curves(job, by_step)
        return ({}, {}) if curves is None else curves.series(since, until, columns)

    def span(self, job: str, *, by_step: bool = False) -> tuple[float, float] | None:
        """Unix times or steps of the first and last loss or scalar seen; None without any."""
        curves = self._curves(job, by_step)
        return None if curves is None else curves.span()

    def is_whole(self, job: str) -> bool:
        """Whether everything that it printed was read."""
        record = self._records.get(job)
        return record is not None and record.output.is_whole

    def _curves(self, job: str, by_step: bool) -> Curves | None:
        record = self._records.get(job)
        if record is None:
            return None
        return record.by_step if by_step else record.by_time

    def events(self, job: str) -> list[Event]:
        """What happened while it was watched, latest first."""
        record = self._records.get(job)
        return [] if record is None else list(reversed(record.events))

    def lines(self, job: str, rank: int | None = None, since: Mark = ()) -> NewLines:
        """New lines of an output since a mark; without one, its last lines.

        Args:
            job: its name.
            rank: whose output; None for the whole job's. A rank without its own output has the
                job's.
            since: the mark in the previous result for this output.
        """
        record = self._records.get(job)
        if record is None:
            return NewLines()
        sources = record.output.sources_of(rank)
        mark = [(source, source.count) for source in sources]
        is_reset = [source for source, _ in since] != sources
        new: list[str] = []
        for source, count in [(source, 0) for source in sources] if is_reset else since:
            missed = min(source.count - count, len(source.lines))
            new += list(source.lines)[len(source.lines) - missed :]
        partial = next((source.partial for source in sources if source.partial), "")
        return NewLines(tuple(new), partial, is_reset, mark)

    def close(self) -> None:
        """Close all files."""
        for record in self._records.values():
            record.output.close()
        self._records.clear()

    def _match(self, census: Census, now: dt.datetime, follow: str | None) -> None:
        """Match the census with the known jobs; a job keeps its first name."""
        left = {job.name: job for job in census.jobs}
        for name, record in list(self._records.items()):
            job = left.get(name)
            if job is None or not _has_the_same_rank(job, record.foreign):
                job = find_again(record.foreign, census)
            if job is not None:
                left.pop(job.name, None)
                record.update(msgspec.structs.replace(job, name=name), now)
            elif name == follow:
                record.lost(now)
            else:
                self._records.pop(name).output.close()
        for job in left.values():
            if job.name not in self._records:
                self._records[job.name] = JobRecord(job, now)


def _to_read(records: Iterable[JobRecord], follow: str | None) -> list[JobRecord]:
    """The jobs whose output is read: the followed one, then the user's own, then the newest."""

    def order(record: JobRecord) -> tuple[bool, bool, float]:
        started_s = record.foreign.started_at.timestamp()
        return record.name != follow, record.foreign.uid != os.geteuid(), -started_s

    return sorted(records, key=order)[:MAX_READ]


def _has_the_same_rank(one: ForeignJob, other: ForeignJob) -> bool:
    ranks = {(rank.pid, rank.start_ticks) for rank in one.ranks}
    return any((rank.pid, rank.start_ticks) in ranks for rank in other.ranks)


def read_outputs(census: Census, now: dt.datetime) -> dict[str, NodeSnapshot]:
    """By job, a snapshot from the end of its output; of many jobs, only the user's own and newest.

    Terminals are not captured, because their contents may be from another program.
    """
    found, now_s = {}, boottime_s()
    for record in _to_read([JobRecord(job, now, captures=False) for job in census.jobs], None):
        with contextlib.suppress(Exception):  # one job's data must not hide the others
            record.read_output(now, now_s)
            found[record.name] = record.view([], {}, now, now_s).snapshot
        record.output.close()
    return found
