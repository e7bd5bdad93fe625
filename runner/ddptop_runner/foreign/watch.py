"""Watches foreign jobs over time and produces views for all screens.

Combines the current scan with the results of earlier ones. Memory use is bounded, however long it
watches.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.foreign.census import find_again
from ddptop_runner.foreign.job_record import Curves, JobRecord, StateWatch
from ddptop_runner.foreign.output import (
    FOLLOWED_BYTES,
    JobOutput,
    Pane,
    Source,
    list_panes,
    sockets,
)
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignView
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import Event, GpuSample, NodeSnapshot
from ddptop_runner.store.history_reader import Series

LISTED_BUDGET_BYTES = 48 * 1024
"""Read per scan for all jobs together that are not followed."""
PANES_EVERY_S = 5.0
"""How long a list of panes is valid."""
MAX_JOBS_ONCE = 16
"""Number of jobs whose output is read by a command that scans once."""


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
        self._states = StateWatch()
        self._followed: str | None = None
        self._turn = 0
        self._panes: dict[tuple[str, ...], tuple[float, dict[str, Pane]]] = {}

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
            follow: the job to follow closely: its output is read in each scan, and it stays in
                the list as `lost`, with `ended_at`, once its processes are gone. Other jobs'
                output is read within a small budget, and their panes rarely.
        """
        now_s = self._clock()
        self._follow(follow)
        self._match(census, now)
        processes = {
            rank.pid: (rank.start_ticks, rank.helpers)
            for record in self._records.values()
            if record.ended_at is None
            for rank in record.foreign.ranks
        }
        statuses = self._states.scan(processes, now_s)
        self._read_outputs(now, now_s)
        views = [record.view(gpus, statuses, now, now_s) for record in self._records.values()]
        return sorted(views, key=lambda view: view.created_at, reverse=True)

    def chart(
        self, job: str, since: float, until: float, columns: int, *, by_step: bool = False
    ) -> dict[int, Series]:
        """Losses by rank, at most `columns` points each, like `HistoryReader.rank_series`.

        By time, includes only losses written while the job was watched and the last one before;
        the times of older lines are unknown.

        Args:
            job: its name; an unknown job has no series.
            since: Unix time or step; 0 means the first value.
            until: Unix time or step, inclusive.
            columns: 2 or more.
            by_step: whether `t` of the points is a step rather than a time. Steps are those that
                the output prints, counted on across epochs.
        """
        curves = self._curves(job, by_step)
        return {} if curves is None else curves.losses.series(since, until, columns)

    def scalars(
        self, job: str, since: float, until: float, columns: int, *, by_step: bool = False
    ) -> dict[str, Series]:
        """Other named values that it prints or logs, over all ranks; see `chart`."""
        curves = self._curves(job, by_step)
        return {} if curves is None else curves.scalars.series(since, until, columns)

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
            job: its name; only the followed job keeps lines.
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
            record.close()
        self._records.clear()

    # -- one scan ------------------------------------------------------------------------------

    def _follow(self, job: str | None) -> None:
        if job == self._followed:
            return
        self._followed = job
        record = self._records.get(job or "")
        if record is not None:
            record.follow()

    def _match(self, census: Census, now: dt.datetime) -> None:
        """Match the census with the known jobs; a job keeps its first name."""
        left = {job.name: job for job in census.jobs}
        for name, record in list(self._records.items()):
            job = left.get(name)
            if job is None or not _has_the_same_rank(job, record.foreign):
                job = find_again(record.foreign, census)
            if job is not None:
                left.pop(job.name, None)
                record.update(msgspec.structs.replace(job, name=name), now)
            elif name == self._followed:
                record.lost(now)
            else:
                self._records.pop(name).close()
        for job in left.values():
            if job.name not in self._records:
                record = JobRecord(job, JobOutput(self._panes_of), now)
                self._records[job.name] = record
                if job.name == self._followed:
                    record.follow()

    def _read_outputs(self, now: dt.datetime, now_s: float) -> None:
        """Read the followed job's output in full, and the others' in turn, within the budget."""
        followed = self._records.get(self._followed or "")
        # once more after it has ended; later output is not the job's
        if followed is not None and followed.ended_at in (None, now):
            with contextlib.suppress(Exception):  # one job's data must not hide the others
                self._read_followed(followed, now, now_s)
        others = [one for one in self._records.values() if one is not followed]
        if not others:
            return
        self._turn = (self._turn + 1) % len(others)
        budget, may_find, may_capture = LISTED_BUDGET_BYTES, True, followed is None
        for record in others[self._turn :] + others[: self._turn]:
            with contextlib.suppress(Exception):  # see above
                if may_find and record.output.due(record.foreign, now_s):
                    may_find = False
                    record.output.find(record.foreign, now_s)
                budget -= record.read_output(now, now_s, budget, may_capture)
                if record.output.has_panes:
                    may_capture = False
            if budget <= 0:
                break

    def _read_followed(self, followed: JobRecord, now: dt.datetime, now_s: float) -> None:
        if followed.ended_at is None and followed.output.due(followed.foreign, now_s):
            followed.output.find(followed.foreign, now_s)
        followed.read_output(now, now_s, FOLLOWED_BYTES)
        followed.read_files(now)

    def _panes_of(self, job: ForeignJob) -> dict[str, Pane]:
        """Panes of this user's servers that may show this job; none for another user's job."""
        if procs.uid_of(job.root_pid) != os.geteuid():
            return {}
        variable = procs.environ_value(job.root_pid, "TMUX")
        found = sockets([variable] if variable else [])
        key = tuple(found)
        now_s = self._clock()
        known = self._panes.get(key)
        if known is None or now_s >= known[0] + PANES_EVERY_S:
            if len(self._panes) > 16:
                self._panes.clear()
            known = self._panes[key] = (now_s, list_panes(found))
        return known[1]


def _has_the_same_rank(one: ForeignJob, other: ForeignJob) -> bool:
    ranks = {(rank.pid, rank.start_ticks) for rank in one.ranks}
    return any((rank.pid, rank.start_ticks) in ranks for rank in other.ranks)


def read_outputs(census: Census, now: dt.datetime) -> dict[str, NodeSnapshot]:
    """By job, a snapshot from the end of its output; if there are many, for the user's own first.

    Terminals are not captured, because their contents may be from another program.
    """
    found = {}
    own_first = sorted(census.jobs, key=lambda job: job.uid != os.geteuid())
    for job in own_first[:MAX_JOBS_ONCE]:
        record = JobRecord(job, JobOutput(lambda _: {}), now)
        with contextlib.suppress(Exception):  # one job's data must not hide the others
            found[job.name] = _snapshot(record, job, now)
        record.close()
    return found


def _snapshot(record: JobRecord, job: ForeignJob, now: dt.datetime) -> NodeSnapshot:
    now_s = boottime_s()
    record.output.find(job, now_s)
    record.read_output(now, now_s, FOLLOWED_BYTES, may_capture=False)
    return record.view([], {}, now, now_s).snapshot
