"""Watches foreign jobs over time and produces views for all screens.

Combines the current scan with the results of earlier ones. Memory use is bounded, however long it
watches.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import shlex
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.base.clock import boottime_s, utc_from_unix
from ddptop_runner.foreign.census import find_again, has_same_rank
from ddptop_runner.foreign.output import JobOutput, Source
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignRank, ForeignView
from ddptop_runner.host import procs
from ddptop_runner.host.tree import RankUsage, UsageMeter
from ddptop_runner.judge.balance import imbalance, rank_devices
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import Event, GpuSample, Imbalance, NodeSnapshot, RankSample
from ddptop_runner.model.words import RankState
from ddptop_runner.reading.progress import combine
from ddptop_runner.reading.progress.from_text import (
    VALIDATION_LOSS,
    CommandHints,
    TextProgress,
    of_command,
)
from ddptop_runner.reading.progress.rank_view import fill
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.store.history_reader import Series, append, bucket_width

BLOCKED_S = 5.0
"""How long a process must be in uninterruptible sleep; a disk access takes milliseconds."""


def state_of(state_letter: str, blocked_s: float) -> tuple[RankState, str | None]:
    """(state, reason in words or None) of a process.

    Args:
        state_letter: as in ps(1).
        blocked_s: how long each scan has found it in uninterruptible sleep.
    """
    if state_letter in "ZX":
        return "zombie", "exited, but not yet reaped by its parent"
    if state_letter == "T":
        return "paused", "paused by a signal (SIGSTOP or Ctrl-Z); send SIGCONT to resume it"
    if state_letter == "t":
        return "paused", "stopped in a debugger"
    if blocked_s >= BLOCKED_S:
        return "blocked", (
            f"in uninterruptible sleep for {blocked_s:.0f} s: waiting for a disk, "
            "network file system, or driver; signals have no effect"
        )
    return "running", None


MAX_POINTS = 16_384
"""Values kept of all series along one axis together."""


class Curves:
    """The latest losses by rank, and other values by name, along one axis: time or step."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, int | str, float]] = deque(maxlen=MAX_POINTS)

    def add(self, rank: int, at: float, reading: Reading) -> None:
        """Add the values of a reading, including its validation loss."""
        self._points += [(int(at), name, value) for name, value in reading.scalars]
        if reading.loss is not None and reading.kind == "val":
            self._points.append((int(at), VALIDATION_LOSS, reading.loss))
        elif reading.loss is not None:
            self.add_loss(rank, at, reading.loss)

    def add_loss(self, rank: int, at: float, loss: float) -> None:
        """Add a loss, which may be NaN or infinite."""
        self._points.append((int(at), rank, loss))

    def span(self) -> tuple[float, float] | None:
        """The first and last time or step; None without values."""
        times = [point[0] for point in self._points]
        return (float(min(times)), float(max(times))) if times else None

    def series(
        self, since: float, until: float, columns: int
    ) -> tuple[dict[int, Series], dict[str, Series]]:
        """(losses by rank, other values by name), each like `HistoryReader.series`.

        Args:
            since: Unix time or step; 0 means the first value.
            until: Unix time or step, inclusive.
            columns: maximum number of points of each series; 2 or more.
        """
        times = [at for at, _, _ in self._points if since <= at <= until]
        if not times:
            return {}, {}
        width = bucket_width(min(times), max(times), max(2, columns), 1)
        buckets: dict[int | str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for at, of, value in self._points:
            if since <= at <= until:
                buckets[of][at // width * width].append(value)
        series = {of: _series(buckets[of], width) for of in buckets}
        ranks = sorted(of for of in series if isinstance(of, int))
        names = sorted(of for of in series if isinstance(of, str))
        return {rank: series[rank] for rank in ranks}, {name: series[name] for name in names}


def _series(buckets: Mapping[int, Sequence[float]], width: int) -> Series:
    found = Series(bucket_s=width)
    columns = (found.t, found.min, found.mean, found.max, found.last, found.attempt)
    for t, values in sorted(buckets.items()):
        known = [one for one in values if math.isfinite(one)]
        if known:
            mean = sum(known) / len(known)
            append(columns, (t, min(known), mean, max(known), known[-1], None))
        if len(known) < len(values):
            found.nonfinite_t.append(t)
    return found


KEPT_EVENTS = 300
GONE = "exited since the last scan"


class JobRecord:
    """One job, from the first scan that found it."""

    def __init__(self, job: ForeignJob, now: dt.datetime, *, captures: bool = True) -> None:
        """`captures`: whether tmux panes are read."""
        self.name = job.name
        self.foreign = job
        self.output = JobOutput(captures)
        self._blocked_since: dict[int, float] = {}
        """By pid, since which scan it has been in uninterruptible sleep."""
        self._printed: dict[int, TextProgress] = {}
        """By rank, the progress according to its output."""
        self.by_time = Curves()
        """As far as the times are known."""
        self.by_step = Curves()
        """By the steps that it prints, counted on across epochs."""
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        """Oldest first."""
        self.ended_at: dt.datetime | None = None
        self._watch = JobWatch()
        self._seq = 0
        self._scans = 0
        self._last: NodeSnapshot | None = None
        ranks = "1 rank" if len(job.ranks) == 1 else f"{len(job.ranks)} ranks"
        self._emit(now, "watched", f"{job.launcher} job with {ranks} on this host")

    # -- changes -------------------------------------------------------------------------------

    def update(self, job: ForeignJob, now: dt.datetime) -> None:
        """Update the job from a later census."""
        before = {rank.rank: rank for rank in self.foreign.ranks}
        after = {rank.rank: rank for rank in job.ranks}
        self.ended_at = None
        restarted = _restarts(job) - _restarts(self.foreign)
        if restarted > 0:
            message = f"the ranks were restarted (restart {_restarts(job)})"
            self._emit(now, "group_restart", message)
        for number, rank in before.items():
            if number not in after or not _same(rank, after[number]):
                message = f"pid {rank.pid} exited; exit status unknown"
                self._emit(now, "rank_exited", message, rank)
        for number, rank in after.items():
            if number not in before or not _same(rank, before[number]):
                self._emit(now, "rank_started", f"pid {rank.pid}", rank)
                self._printed.pop(number, None)
        self.foreign = job

    def lost(self, now: dt.datetime) -> None:
        """Record that no process of the job is left."""
        if self.ended_at is None:
            self.ended_at = now
            self._emit(now, "lost", "all processes exited; exit status unknown")

    def _emit(
        self, now: dt.datetime, kind: str, message: str, rank: ForeignRank | None = None
    ) -> None:
        self._seq += 1
        self.events.append(
            Event(
                ts=now,
                seq=self._seq,
                type=kind,
                attempt=_attempt(self.foreign),
                rank=None if rank is None else rank.rank,
                pid=None if rank is None else rank.pid,
                message=message,
            )
        )

    # -- output ----------------------------------------------------------------------------------

    def read_output(self, now: dt.datetime, now_s: float) -> None:
        """Find the job's outputs, and fold in what is new."""
        if self.ended_at is None:
            self.output.find(self.foreign, now_s)
        for known in self._printed.values():
            known.begin_look()
        earlier = set()
        for source, reading, is_new in self.output.read(now_s):
            rank = self.output.rank_of(source, reading, self.foreign)
            if rank is None:
                continue
            if rank not in self._printed:
                self._printed[rank] = TextProgress(self._announced(), source.is_whole)
            progress = self._printed[rank]
            progress.add(reading, now if is_new else None, id(source))
            if progress.position is not None:
                self.by_step.add(rank, progress.position, reading)
            if is_new:
                self.by_time.add(rank, now.timestamp(), reading)
            else:
                earlier.add(rank)
        written_at = self.output.written_at
        if written_at is not None:  # the time of the last one is known
            at = utc_from_unix(min(written_at, now.timestamp()))
            for rank in earlier:
                progress = self._printed[rank]
                progress.written_last(at)
                if progress.loss is not None:
                    self.by_time.add_loss(rank, at.timestamp(), progress.loss)

    def _announced(self) -> CommandHints:
        """Hints on the length of training from its command line."""
        try:
            words = shlex.split(self.foreign.command)
        except ValueError:  # truncated within a quoted word
            words = self.foreign.command.split()
        hints = of_command(words)
        return hints._replace(resumes=hints.resumes or _restarts(self.foreign) > 0)

    # -- views ---------------------------------------------------------------------------------

    def view(
        self,
        gpus: Sequence[GpuSample],
        usages: Mapping[int, RankUsage],
        now: dt.datetime,
        now_s: float,
    ) -> ForeignView:
        """The job as shown; call once per scan."""
        try:
            snapshot = self._ended(now) if self.ended_at else self._alive(gpus, usages, now, now_s)
            words = self.output.words()
        except Exception as error:  # one job's data must not hide the others
            self._printed.clear()
            snapshot = self._snapshot([], [], now)
            words = f"unknown: its state cannot be read ({type(error).__name__})"
        if self._last is None or any(rank.rss_bytes is not None for rank in snapshot.ranks):
            self._last = snapshot
        return ForeignView(self.foreign, snapshot, now, words)

    def _alive(
        self,
        gpus: Sequence[GpuSample],
        usages: Mapping[int, RankUsage],
        now: dt.datetime,
        now_s: float,
    ) -> NodeSnapshot:
        self._scans += 1
        self._blocked_since = {
            rank.pid: self._blocked_since.get(rank.pid, now_s)
            for rank in self.foreign.ranks
            if rank.pid in usages and usages[rank.pid].state_letter == "D"
        }
        ranks = [
            self._sample(rank, usages.get(rank.pid), now, now_s) for rank in self.foreign.ranks
        ]
        pids = set(self.foreign.pids)
        held = [gpu for gpu in gpus if any(p.pid in pids for p in gpu.processes or ())]
        pids_by_rank = {one.rank: (one.pid, *one.helpers) for one in self.foreign.ranks}
        # how CUDA numbers the devices is unknown, because it depends on settings of the process
        ranks, held = rank_devices.join(ranks, held, pids_by_rank, [], self.name, pids)
        snapshot = self._snapshot(ranks, held, now)
        alerts, new = self._watch.update(snapshot, now_s, given=False)
        for alert in new:
            self._emit(now, "alert", alert.message)
        return msgspec.structs.replace(snapshot, alerts=alerts)

    def _sample(
        self, rank: ForeignRank, usage: RankUsage | None, now: dt.datetime, now_s: float
    ) -> RankSample:
        state: RankState = "unknown"
        reason: str | None = GONE
        if usage is not None and usage.start_ticks == rank.start_ticks:
            blocked_s = now_s - self._blocked_since.get(rank.pid, now_s)
            state, reason = state_of(usage.state_letter, blocked_s)
        else:
            usage = None
        sample = RankSample(
            rank=rank.rank,
            local_rank=rank.local_rank,
            host=procs.host_name(),
            pid=rank.pid,
            state=state,
            state_reason=reason,
            cpu_percent=None if usage is None else usage.cpu_percent,
            rss_bytes=None if usage is None else usage.rss_bytes,
        )
        return self._with_output(sample, now)

    def _with_output(self, sample: RankSample, now: dt.datetime) -> RankSample:
        """The rank with the values from its output."""
        progress = self._printed.get(sample.rank)
        filled = fill(sample, progress, None, now)
        if filled.step is None:
            return filled
        run = filled.global_step
        if run is None and progress is not None and filled.step == progress.step:
            run = progress.run_step
        counts = None if run is not None else "epoch"
        return msgspec.structs.replace(filled, run_step=run, step_counts=counts)

    def _snapshot(
        self, ranks: list[RankSample], gpus: list[GpuSample], now: dt.datetime
    ) -> NodeSnapshot:
        sources = list(self._printed.values())
        steps = [rank.step for rank in ranks if rank.step is not None]
        progress = combine.of_job(one.progress(now) for one in sources)
        return NodeSnapshot(
            job=self.name,
            job_id=f"{self.name}@{self.foreign.root_start_ticks}",
            host=procs.host_name(),
            seq=self._scans,
            ts=now,
            boot_id=procs.boot_id(),
            pid_ns=procs.pid_namespace(),
            state="running" if ranks else "starting",
            attempt=_attempt(self.foreign),
            restarts_used=max(0, _restarts(self.foreign)),
            world_size=self.foreign.world_size,
            started_at=self.foreign.started_at,
            step=min(steps, default=None),
            run_step=run_step.of_job(ranks, _attempt(self.foreign)),
            total_steps=combine.total_steps(progress),
            eta_s=None if progress is None else progress.eta_s,
            progress=progress,
            ranks=ranks,
            gpus=gpus,
            imbalance=imbalance.of_job(ranks, gpus),
            source="nvml" if gpus else None,
        )

    def _ended(self, now: dt.datetime) -> NodeSnapshot:
        """The last figures, with every rank ended."""
        last = self._last if self._last is not None else self._snapshot([], [], now)
        progress = None if last.progress is None else combine.ended(last.progress)
        reason = "exited; exit status unknown"
        ranks = [
            msgspec.structs.replace(
                self._with_output(rank, now), state="unknown", state_reason=reason
            )
            for rank in last.ranks
        ]
        return msgspec.structs.replace(
            last,
            ts=now,
            state="lost",
            ended_at=self.ended_at,
            ranks=ranks,
            imbalance=Imbalance(),
            alerts=[],
            eta_s=None,
            progress=progress,
        )


def _same(one: ForeignRank, other: ForeignRank) -> bool:
    return (one.pid, one.start_ticks) == (other.pid, other.start_ticks)


def _attempt(job: ForeignJob) -> int | None:
    counts = [rank.restart_count for rank in job.ranks if rank.restart_count is not None]
    return max(counts, default=None)


def _restarts(job: ForeignJob) -> int:
    return _attempt(job) or 0


MAX_READ = 16
"""Number of jobs whose output is read."""
READ_S = 0.5
"""Once a scan has read for this long, the remaining jobs wait for the next one."""


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
        self._matched: tuple[Census | None, str | None] = None, None
        """The arguments of the last match."""
        self._meter = UsageMeter[int]()

    def update(
        self,
        census: Census,
        gpus: Sequence[GpuSample],
        now: dt.datetime,
        *,
        follow: str | None = None,
    ) -> list[ForeignView]:
        """All foreign jobs as views, newest first.

        Args:
            census: the latest; the same object as in the last call if no process has changed.
            gpus: the latest device samples; [] without devices.
            now: the wall clock.
            follow: the job that stays in the list as `lost`, with `ended_at`, once its processes
                are gone.
        """
        now_s = self._clock()
        if census is not self._matched[0] or follow != self._matched[1]:
            self._matched = census, follow
            self._match(census, now, follow)
        alive = [record for record in self._records.values() if record.ended_at is None]
        trees = {rank.pid: (rank.pid, *rank.helpers) for one in alive for rank in one.foreign.ranks}
        usages = self._meter.look(trees, now_s)
        read_until_s = self._clock() + READ_S
        for record in _to_read(self._records.values(), follow):
            if self._clock() > read_until_s:
                break
            if record.ended_at in (None, now):  # later output is not the job's
                with contextlib.suppress(Exception):  # one job's data must not hide the others
                    record.read_output(now, now_s)
        views = [record.view(gpus, usages, now, now_s) for record in self._records.values()]
        return sorted(views, key=lambda view: view.foreign.started_at, reverse=True)

    def curves(self, job: str, *, by_step: bool = False) -> Curves:
        """Its losses and other values by time, or by step; an unknown job has none.

        By time, there are only values written while the job was watched and the last loss before;
        the times of older lines are unknown. Steps are those that the output prints, counted on
        across epochs.
        """
        record = self._records.get(job)
        if record is None:
            return Curves()
        return record.by_step if by_step else record.by_time

    def is_whole(self, job: str) -> bool:
        """Whether everything that it printed was read."""
        record = self._records.get(job)
        return record is not None and record.output.is_whole

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
            if job is None or not has_same_rank(job, record.foreign):
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


def read_outputs(
    census: Census, gpus: Sequence[GpuSample], now: dt.datetime
) -> dict[str, ForeignView]:
    """Each job, with what the end of its output shows, which is read for at most MAX_READ jobs.

    Terminals are not captured, because their contents may be from another program.
    """
    records, now_s = [JobRecord(job, now, captures=False) for job in census.jobs], boottime_s()
    for record in _to_read(records, None):
        with contextlib.suppress(Exception):  # one job's data must not hide the others
            record.read_output(now, now_s)
        record.output.close()
    return {record.name: record.view(gpus, {}, now, now_s) for record in records}
