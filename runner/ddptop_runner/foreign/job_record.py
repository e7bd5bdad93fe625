"""Keeps the state of one foreign job between scans, and builds its views."""

from __future__ import annotations

import datetime as dt
import math
import shlex
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.foreign.output import JobOutput
from ddptop_runner.foreign.types import ForeignJob, ForeignRank, ForeignView
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
from ddptop_runner.reading.progress.text_watch import RankFiles
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.store.history_reader import Series, bucket_width
from ddptop_runner.store.history_schema import MOST_SCALARS

BLOCKED_S = 5.0
"""How long a process must be in uninterruptible sleep; a disk access takes milliseconds."""


@dataclass(frozen=True)
class ProcessStatus:
    """One process with its helpers in one scan."""

    usage: RankUsage
    blocked_s: float = 0.0
    """Since which scan it was in uninterruptible sleep in all scans."""

    @property
    def state(self) -> tuple[RankState, str | None]:
        """(state, reason in words or None)."""
        letter = self.usage.state_letter
        if letter in "ZX":
            return "zombie", "exited, but not yet reaped by its parent"
        if letter == "T":
            return "paused", "paused by a signal (SIGSTOP or Ctrl-Z); send SIGCONT to resume it"
        if letter == "t":
            return "paused", "stopped in a debugger"
        if self.blocked_s >= BLOCKED_S:
            return "blocked", (
                f"in uninterruptible sleep for {self.blocked_s:.0f} s: waiting for a disk, "
                "network file system, or driver; signals have no effect"
            )
        return "running", None


class StateWatch:
    """Watches processes over repeated scans; a process missing from a scan is forgotten."""

    def __init__(self) -> None:
        self._meter = UsageMeter[int]()
        self._blocked_since: dict[int, float] = {}

    def scan(
        self, processes: Mapping[int, tuple[int, Iterable[int]]], now_s: float
    ) -> dict[int, ProcessStatus]:
        """The status of each process, by pid, without those that are gone.

        Args:
            processes: {pid: (start ticks, pids of its helpers)}.
            now_s: a monotonic clock.
        """
        trees = {pid: (pid, *helpers) for pid, (_, helpers) in processes.items()}
        usages = {
            pid: usage
            for pid, usage in self._meter.look(trees, now_s).items()
            if usage.start_ticks == processes[pid][0]
        }
        self._blocked_since = {
            pid: self._blocked_since.get(pid, now_s)
            for pid, usage in usages.items()
            if usage.state_letter == "D"
        }
        return {
            pid: ProcessStatus(usage, now_s - self._blocked_since.get(pid, now_s))
            for pid, usage in usages.items()
        }


MAX_POINTS = 16_384
"""For all series of a history together; then the oldest are dropped."""
MAX_SERIES = 4096

K = TypeVar("K", int, str)


class ValueHistory(Generic[K]):
    """The latest values by rank or name, each at a Unix time or step."""

    def __init__(self, most: int = MAX_SERIES) -> None:
        """`most` limits the number of series."""
        self._most = most
        self._of: set[K] = set()
        self._points: deque[tuple[int, K, float]] = deque(maxlen=MAX_POINTS)

    def add(self, of: K, at: float, value: float) -> None:
        """Add a value, which may be NaN or infinite."""
        if of in self._of or len(self._of) < self._most:
            self._of.add(of)
            self._points.append((int(at), of, value))

    def span(self) -> tuple[float, float] | None:
        """The times or steps of the first and last values."""
        if not self._points:
            return None
        return float(min(self._points)[0]), float(max(self._points)[0])

    def series(self, since: float, until: float, columns: int) -> dict[K, Series]:
        """At most `columns` points for each, like `HistoryReader.rank_series`."""
        if (span := self.span()) is None:
            return {}
        first, last = int(max(since, span[0])), int(min(until, span[1]))
        if first > last:
            return {}
        width = bucket_width(first, last, max(2, columns), 1)
        buckets: dict[K, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for at, of, value in self._points:
            if first <= at <= last:
                buckets[of][at // width * width].append(value)
        return {of: _series(dict(sorted(buckets[of].items())), width) for of in sorted(buckets)}


def _series(buckets: Mapping[int, Sequence[float]], width: int) -> Series:
    finite = {t: [one for one in values if math.isfinite(one)] for t, values in buckets.items()}
    known = {t: values for t, values in finite.items() if values}
    return Series(
        bucket_s=width,
        t=list(known),
        min=[min(values) for values in known.values()],
        mean=[sum(values) / len(values) for values in known.values()],
        max=[max(values) for values in known.values()],
        last=[values[-1] for values in known.values()],
        attempt=[None] * len(known),
        nonfinite_t=[t for t, values in buckets.items() if len(values) > len(finite[t])],
    )


class Curves:
    """The losses and other named values of a job along one axis: time or step."""

    def __init__(self) -> None:
        self.losses = ValueHistory[int]()
        self.scalars = ValueHistory[str](MOST_SCALARS)

    def add(self, rank: int, at: float, reading: Reading) -> None:
        """Add the values of a reading, including its validation loss."""
        if reading.loss is not None:
            if reading.kind == "val":
                self.scalars.add(VALIDATION_LOSS, at, reading.loss)
            else:
                self.losses.add(rank, at, reading.loss)
        for name, value in reading.scalars:
            if name.isprintable():
                self.scalars.add(name, at, value)

    def span(self) -> tuple[float, float] | None:
        """The first and last time or step; None without values."""
        known = [span for span in (self.losses.span(), self.scalars.span()) if span is not None]
        return (min(s[0] for s in known), max(s[1] for s in known)) if known else None


KEPT_EVENTS = 300
FILES_AFTER_S = 5.0
"""A job whose output has a loss by then does not need files."""
FILES_EVERY_S = 10.0
GONE = "exited since the last scan"


class JobRecord:
    """One job, from the first scan that found it."""

    def __init__(self, job: ForeignJob, output: JobOutput, now: dt.datetime) -> None:
        self.name = job.name
        self.foreign = job
        self.output = output
        self._watched_since = now
        self._files: RankFiles | None = None
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

    # -- output and files ----------------------------------------------------------------------

    def follow(self) -> None:
        """Read its output closely from now on: again, with more of its end, and with its lines."""
        if not self.output.is_followed:
            self.output.follow()
            self._printed.clear()
            self.by_step = Curves()

    def read_output(
        self, now: dt.datetime, now_s: float, budget: int, may_capture: bool = True
    ) -> int:
        """Fold in new output; returns the number of bytes read."""
        found, used = self.output.read(now_s, budget, may_capture)
        for known in self._printed.values():
            known.begin_look()
        earlier = set()
        for source, reading, is_new in found:
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
                    self.by_time.losses.add(rank, at.timestamp(), progress.loss)
        return used

    def _announced(self) -> CommandHints:
        """Hints on the length of training from its command line."""
        try:
            words = shlex.split(self.foreign.command)
        except ValueError:  # truncated within a quoted word
            words = self.foreign.command.split()
        hints = of_command(words)
        return hints._replace(resumes=hints.resumes or _restarts(self.foreign) > 0)

    def read_files(self, now: dt.datetime) -> None:
        """Read its log files, which are searched for once if its output reports no loss."""
        job = self.foreign
        known = {rank for rank, one in self._printed.items() if one.loss_state is not None}
        if self._files is None:
            watched_s = (now - self._watched_since).total_seconds()
            if not job.ranks or watched_s < FILES_AFTER_S:
                return
            folder = f"/proc/{job.ranks[0].pid}/cwd"
            self._files = RankFiles(folder, job.started_at.timestamp(), FILES_EVERY_S)
        pids = {rank.rank: (rank.pid, *rank.helpers) for rank in job.ranks}
        for rank, at, reading in self._files.look(pids, job.pids, now):
            if rank in known:
                reading = msgspec.structs.replace(reading, loss=None)
            self.by_time.add(rank, at.timestamp(), reading)

    def close(self) -> None:
        """Close all files."""
        self.output.close()
        if self._files is not None:
            self._files.close()

    # -- views ---------------------------------------------------------------------------------

    def view(
        self,
        gpus: Sequence[GpuSample],
        statuses: Mapping[int, ProcessStatus],
        now: dt.datetime,
        now_s: float,
    ) -> ForeignView:
        """The job as shown; call once per scan."""
        try:
            snapshot = (
                self._ended(now) if self.ended_at else self._alive(gpus, statuses, now, now_s)
            )
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
        statuses: Mapping[int, ProcessStatus],
        now: dt.datetime,
        now_s: float,
    ) -> NodeSnapshot:
        self._scans += 1
        ranks = [self._sample(rank, statuses.get(rank.pid), now) for rank in self.foreign.ranks]
        ranks, held = self._on_devices(ranks, gpus)
        snapshot = self._snapshot(ranks, held, now)
        alerts, new = self._watch.update(snapshot, now_s, given=False)
        for alert in new:
            self._emit(now, "alert", alert.message)
        return msgspec.structs.replace(snapshot, alerts=alerts)

    def _sample(
        self, rank: ForeignRank, status: ProcessStatus | None, now: dt.datetime
    ) -> RankSample:
        state, reason = status.state if status is not None else ("unknown", GONE)
        sample = RankSample(
            rank=rank.rank,
            local_rank=rank.local_rank,
            host=procs.host_name(),
            pid=rank.pid,
            state=state,
            state_reason=reason,
            cpu_percent=None if status is None else status.usage.cpu_percent,
            rss_bytes=None if status is None else status.usage.rss_bytes,
        )
        return self._with_log(sample, now)

    def _with_log(self, sample: RankSample, now: dt.datetime) -> RankSample:
        """The rank with the values from its output, or else from its files."""
        in_files = None if self._files is None else self._files.ranks.get(sample.rank)
        progress = self._printed.get(sample.rank)
        if progress is not None and progress.loss_state is not None:
            filled = fill(sample, progress, None, now, scalars=in_files)
        else:
            filled = fill(sample, progress, in_files, now)
        if filled.step is None:
            return filled
        run = filled.global_step
        if run is None and progress is not None and filled.step == progress.step:
            run = progress.run_step
        counts = None if run is not None else "epoch"
        return msgspec.structs.replace(filled, run_step=run, step_counts=counts)

    def _on_devices(
        self, ranks: list[RankSample], gpus: Sequence[GpuSample]
    ) -> tuple[list[RankSample], list[GpuSample]]:
        """(ranks with their devices, the job's devices)."""
        pids = set(self.foreign.pids)
        held = [gpu for gpu in gpus if any(p.pid in pids for p in gpu.processes or ())]
        pids_by_rank = {r.rank: (r.pid, *r.helpers) for r in self.foreign.ranks}
        joined, labeled = rank_devices.join(ranks, held, pids_by_rank, [], self.name, pids)
        # how CUDA numbers the devices depends on settings of the process
        return [msgspec.structs.replace(rank, cuda_device=None) for rank in joined], labeled

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
            msgspec.structs.replace(self._with_log(rank, now), state="unknown", state_reason=reason)
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
