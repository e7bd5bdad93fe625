"""Keeps the state of one foreign job between scans, and builds its views."""

from __future__ import annotations

import datetime as dt
import math
import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.devices.report import without_metrics
from ddptop_runner.foreign.environment import whole_number
from ddptop_runner.foreign.output import JobOutput, Source
from ddptop_runner.foreign.types import ForeignJob, ForeignRank, ForeignView, ProcessFacts
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

MAX_ENTRIES = 1024
"""Limit for the list: CUDA ends it at the first unknown entry, but another user wrote it."""


def ordered_devices(
    visible: str | None, gpus: Sequence[GpuSample], *, pci_order: bool
) -> list[GpuSample] | None:
    """The devices that the process may use, in its own order; None if that is not certain.

    Numbers follow CUDA's order, which is the machine's only if all devices are of the same model:
    otherwise the fastest comes first. CUDA ends the list at the first unknown entry.

    Args:
        visible: the process's CUDA_VISIBLE_DEVICES; None if unset.
        gpus: all devices of the machine.
        pci_order: whether the process's CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    whole = [gpu for gpu in gpus if gpu.parent_uuid is None]
    alike = pci_order or len({gpu.name for gpu in whole}) <= 1
    if visible is None:
        return whole if alike else None
    found: list[GpuSample] = []
    by_index = {gpu.index: gpu for gpu in whole}
    for entry in (part.strip() for part in visible.split(",", MAX_ENTRIES)[:MAX_ENTRIES]):
        if entry.isascii() and entry.isdigit():
            if not alike:
                return None
            index = whole_number(entry)
            gpu = None if index is None else by_index.get(index)
        else:
            named = [g for g in gpus if entry and g.uuid and g.uuid.startswith(entry)]
            gpu = named[0] if len(named) == 1 else None
        if gpu is None or gpu in found:
            break
        found.append(gpu)
    return found


def cuda_index(order: Sequence[GpuSample] | None, rank: RankSample) -> int | None:
    """The i in `cuda:i` for the rank's device; None if not certain."""
    places = enumerate(order or ())
    return next((i for i, one in places if one.index == rank.gpu and one.uuid in rank.gpus), None)


BLOCKED_LOOKS = 3
"""Number of consecutive scans that must find a process in uninterruptible sleep ..."""
BLOCKED_S = 2.0
"""... and for how long; a disk access takes milliseconds."""
IDLE_S = 30.0
"""Time without any CPU use after which a process is shown as idle."""


@dataclass(frozen=True)
class Seen:
    """One process and its helpers in one scan, and what earlier scans found."""

    usage: RankUsage
    at_s: float
    busy_at_s: float
    """When it last used CPU time."""
    blocked_since_s: float | None = None
    blocked_looks: int = 0
    """Number of consecutive scans, including this one, that found it in uninterruptible sleep."""
    wait_channel: str | None = None
    """The kernel function in which it sleeps, if readable."""


def state_of(seen: Seen) -> tuple[RankState, str | None]:
    """(state, reason in words or None) of a rank's process."""
    letter = seen.usage.state_letter
    if letter in "ZX":
        return "zombie", "exited, but not yet reaped by its parent"
    if letter == "T":
        return "paused", "paused by a signal (SIGSTOP or Ctrl-Z); send SIGCONT to resume it"
    if letter == "t":
        return "paused", "stopped in a debugger"
    blocked_s = 0.0 if seen.blocked_since_s is None else seen.at_s - seen.blocked_since_s
    if seen.blocked_looks >= BLOCKED_LOOKS and blocked_s >= BLOCKED_S:
        inside = f" in {seen.wait_channel}" if seen.wait_channel else ""
        return "blocked", (
            f"in uninterruptible sleep{inside} for {blocked_s:.0f} s: waiting for a disk, "
            "network file system, or driver; signals have no effect"
        )
    idle_s = seen.at_s - seen.busy_at_s
    if idle_s >= IDLE_S:
        return "running", f"no CPU time used for {idle_s:.0f} s"
    return "running", None


class StateWatch:
    """Watches processes over repeated scans; a process missing from a scan is forgotten."""

    def __init__(self) -> None:
        self._meter = UsageMeter[int]()
        self._seen: dict[int, Seen] = {}

    def look(
        self, processes: Mapping[int, tuple[int, Iterable[int]]], now_s: float
    ) -> dict[int, Seen]:
        """The observation of each process, by pid, without those that are gone.

        Args:
            processes: {pid: (start ticks, pids of its helpers)}.
            now_s: a monotonic clock.
        """
        trees = {pid: (pid, *helpers) for pid, (_, helpers) in processes.items()}
        self._seen = {
            pid: _see(pid, usage, self._seen.get(pid), now_s)
            for pid, usage in self._meter.look(trees, now_s).items()
            if usage.start_ticks == processes[pid][0]
        }
        return self._seen


def _see(pid: int, usage: RankUsage, before: Seen | None, now_s: float) -> Seen:
    if before is not None and before.usage.start_ticks != usage.start_ticks:
        before = None
    busy_at_s = now_s if before is None or usage.cpu_percent else before.busy_at_s
    if usage.state_letter != "D":
        return Seen(usage, now_s, busy_at_s)
    since_s, looks = now_s, 0
    if before is not None and before.blocked_since_s is not None:
        since_s, looks = before.blocked_since_s, before.blocked_looks
    return Seen(usage, now_s, busy_at_s, since_s, looks + 1, procs.wait_channel(pid))


MAX_POINTS = 16_384
"""For all ranks of a job together, and for all its scalars: 4 MB each."""
LEAST_POINTS = 512
"""Each series may have this many, regardless of the number of ranks."""
MAX_SERIES = 4096


@dataclass(frozen=True)
class _Bucket:
    """The values of one series in one interval."""

    low: float = math.inf
    total: float = 0.0
    high: float = -math.inf
    count: int = 0
    last: float = math.nan
    is_bad: bool = False
    """Whether a value was NaN or infinite; such values are not kept otherwise."""

    def and_then(self, later: _Bucket) -> _Bucket:
        return _Bucket(
            min(self.low, later.low),
            self.total + later.total,
            max(self.high, later.high),
            self.count + later.count,
            later.last if later.count else self.last,
            self.is_bad or later.is_bad,
        )


def _joined(buckets: Iterable[tuple[int, _Bucket]], width_s: int) -> dict[int, _Bucket]:
    """The values in buckets of that width, by start."""
    found: dict[int, _Bucket] = {}
    for t, bucket in buckets:
        start = t // width_s * width_s
        known = found.get(start)
        found[start] = bucket if known is None else known.and_then(bucket)
    return found


K = TypeVar("K", int, str)


class ValueHistory(Generic[K]):
    """Values by rank or name, in buckets of a common width, which grows with their number.

    The buckets are of time, in Unix seconds, or of steps.
    """

    def __init__(self, most: int = MAX_SERIES) -> None:
        """`most` limits the number of series."""
        self._most = most
        self._width_s = 1
        self._series: dict[K, dict[int, _Bucket]] = {}
        self._span: tuple[float, float] | None = None

    def add(self, of: K, at_s: float, value: float) -> None:
        """Add a value seen at that Unix time; NaN and infinity are marked as such."""
        if of not in self._series and len(self._series) >= self._most:
            return
        buckets = self._series.setdefault(of, {})
        is_bad = not math.isfinite(value)
        one = _Bucket(is_bad=True) if is_bad else _Bucket(value, value, value, 1, value)
        t = float(int(at_s))
        self._span = (
            (t, t) if self._span is None else (min(t, self._span[0]), max(t, self._span[1]))
        )
        start = int(at_s) // self._width_s * self._width_s
        buckets[start] = buckets[start].and_then(one) if start in buckets else one
        if len(buckets) > max(LEAST_POINTS, MAX_POINTS // len(self._series)):
            self._width_s *= 2
            for known, theirs in self._series.items():
                self._series[known] = _joined(theirs.items(), self._width_s)

    def forget(self, since: float) -> None:
        """Forget the values from there on."""
        for buckets in self._series.values():
            for start in [start for start in buckets if start >= since]:
                del buckets[start]
        starts = [start for buckets in self._series.values() for start in buckets]
        self._span = (float(min(starts)), float(max(starts))) if starts else None

    def span(self) -> tuple[float, float] | None:
        """The times or steps of the first and last values."""
        return self._span

    def series(self, since_s: float, until_s: float, columns: int) -> dict[K, Series]:
        """At most `columns` points for each, like `HistoryReader.rank_series`."""
        if self._span is None:
            return {}
        since, until = int(max(since_s, self._span[0])), int(min(until_s, self._span[1]))
        if since > until:
            return {}
        width_s = bucket_width(since, until, max(2, columns), self._width_s)
        found = {}
        for of, buckets in sorted(self._series.items()):
            some = [
                (t, bucket)
                for t, bucket in sorted(buckets.items())
                if since < t + self._width_s and t <= until
            ]
            if some:
                found[of] = _series(_joined(some, width_s), width_s)
        return found

    def points(self) -> int:
        """The number of points."""
        return sum(map(len, self._series.values()))


def _series(buckets: Mapping[int, _Bucket], width_s: int) -> Series:
    known = {t: bucket for t, bucket in buckets.items() if bucket.count}
    return Series(
        bucket_s=width_s,
        t=list(known),
        min=[bucket.low for bucket in known.values()],
        mean=[bucket.total / bucket.count for bucket in known.values()],
        max=[bucket.high for bucket in known.values()],
        last=[bucket.last for bucket in known.values()],
        attempt=[None] * len(known),
        nonfinite_t=[t for t, bucket in buckets.items() if bucket.is_bad],
    )


def _loss(reading: Reading) -> float | None:
    return None if reading.kind == "val" else reading.loss


def _scalars(reading: Reading) -> list[tuple[str, float]]:
    """A reading's scalars by name, including the validation loss."""
    named = [one for one in reading.scalars if one[0].isprintable()]
    if reading.kind == "val" and reading.loss is not None:
        named.append((VALIDATION_LOSS, reading.loss))
    return named


class JobLog:
    """What the outputs of a job said: the progress of its ranks, and its values by step."""

    def __init__(self) -> None:
        self.ranks: dict[int, TextProgress] = {}
        self.losses = ValueHistory[int]()
        self.scalars = ValueHistory[str](MOST_SCALARS)
        """Named values other than the loss."""
        self._ends: dict[int, tuple[int, int]] = {}
        """By rank, (how far its steps are ahead of those printed, the last step)."""

    def add(self, rank: int, reading: Reading, at: dt.datetime | None, source: Source) -> None:
        """Fold in a reading of a rank that has an entry in `ranks`; see `TextProgress.add`."""
        progress = self.ranks[rank]
        progress.add(reading, at, id(source))
        loss, scalars = _loss(reading), _scalars(reading)
        step = self._step(rank, progress) if loss is not None or scalars else None
        if step is None:
            return
        if loss is not None:
            self.losses.add(rank, step, loss)
        for name, value in scalars:
            self.scalars.add(name, step, value)

    def _step(self, rank: int, progress: TextProgress) -> int | None:
        """Where on the axis of steps the rank is; None if it is unknown.

        If a counter of the run goes back, the steps from there on are being repeated; if any other
        does or it starts over, the axis continues.
        """
        if (position := progress.position) is None:
            return None
        ahead, end = self._ends.get(rank, (0, position))
        if ahead + position < end:
            every = progress.every or 1
            if progress.counts_run and position > 2 * every:
                ahead = 0
                self.losses.forget(position)
                self.scalars.forget(position)
            else:
                ahead = end + every - position
        self._ends[rank] = ahead, ahead + position
        return ahead + position


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
        self.losses = ValueHistory[int]()
        """By time, as far as the times are known."""
        self.scalars = ValueHistory[str](MOST_SCALARS)
        """Named values other than the loss that it prints or logs to files, by time."""
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        """Oldest first."""
        self.ended_at: dt.datetime | None = None
        self.log = JobLog()
        self._whole: JobLog | None = None
        """Replaces `log` once the output has been read from its beginning."""
        self._watch = JobWatch()
        self._seq = 0
        self._looks = 0
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
                self.log.ranks.pop(number, None)
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

    def read_output(
        self, now: dt.datetime, now_s: float, budget: int, may_capture: bool = True
    ) -> int:
        """Fold in new output; returns the number of bytes read."""
        found, used, _ = self.output.read(now_s, budget, may_capture)
        for known in self.log.ranks.values():
            known.begin_look()
        backlog: dict[int, float | None] = {}
        old_scalars: dict[str, float] = {}
        for source, reading, fresh in found:
            rank = self.output.rank_of(source, reading, self.foreign)
            if rank is None:
                continue
            if rank not in self.log.ranks:
                self.log.ranks[rank] = TextProgress(self._announced(), source.is_whole)
            self.log.add(rank, reading, now if fresh else None, source)
            loss = _loss(reading)
            if not fresh:
                backlog[rank] = backlog.get(rank) if loss is None else loss
                old_scalars.update(_scalars(reading))
                continue
            if loss is not None:
                self.losses.add(rank, now.timestamp(), loss)
            for name, value in _scalars(reading):
                self.scalars.add(name, now.timestamp(), value)
        written_at = self.output.written_at
        if backlog and written_at is not None:  # the time of the last one is known
            at_s = min(written_at, now.timestamp())
            for rank, loss in backlog.items():
                self.log.ranks[rank].written_last(utc_from_unix(at_s))
                if loss is not None:
                    self.losses.add(rank, at_s, loss)
            for name, value in old_scalars.items():
                self.scalars.add(name, at_s, value)
        return used

    def reread_output(self, now: dt.datetime) -> None:
        """Read the output from its beginning, a part per call, unless that was done.

        What was known from its end until then is replaced.
        """
        if self._whole is None:
            if not self.output.may_reread:
                return
            self._whole = JobLog()
        found, is_done = self.output.reread()
        for source, reading in found:
            rank = self.output.rank_of(source, reading, self.foreign)
            if rank is not None:
                if rank not in self._whole.ranks:
                    self._whole.ranks[rank] = TextProgress(self._announced(), from_start=True)
                self._whole.add(rank, reading, None, source)
        if is_done:
            self.log, self._whole = self._whole, None
            at_s = min(self.output.written_at or now.timestamp(), now.timestamp())
            for progress in self.log.ranks.values():
                progress.written_last(utc_from_unix(at_s))

    def _announced(self) -> CommandHints:
        """Hints on the length of training from its command line."""
        try:
            words = shlex.split(self.foreign.command)
        except ValueError:  # truncated within a quoted word
            words = self.foreign.command.split()
        hints = of_command(words)
        return hints._replace(resumes=hints.resumes or _restarts(self.foreign) > 0)

    def look_at_files(self, now: dt.datetime) -> None:
        """Read its log files, which are searched for once if its output reports no loss."""
        job = self.foreign
        known = {rank for rank, one in self.log.ranks.items() if one.loss_state is not None}
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
            if reading.loss is not None and reading.kind != "val":
                self.losses.add(rank, at.timestamp(), reading.loss)
            for name, value in _scalars(reading):
                self.scalars.add(name, at.timestamp(), value)

    def close(self) -> None:
        """Close all files."""
        self.output.close()
        if self._files is not None:
            self._files.close()

    # -- views ---------------------------------------------------------------------------------

    def view(
        self,
        gpus: Sequence[GpuSample],
        seen: Mapping[int, Seen],
        facts: Mapping[int, ProcessFacts],
        now: dt.datetime,
        now_s: float,
    ) -> ForeignView:
        """The job as shown; call once per scan."""
        try:
            snapshot = (
                self._ended(now) if self.ended_at else self._alive(gpus, seen, facts, now, now_s)
            )
            words = self.output.words()
        except Exception as error:  # one job's data must not hide the others
            self.log.ranks.clear()
            snapshot = self._snapshot([], [], now)
            words = f"unknown: its state cannot be read ({type(error).__name__})"
        self._last = snapshot
        return ForeignView(self.foreign, snapshot, now, words)

    def _alive(
        self,
        gpus: Sequence[GpuSample],
        seen: Mapping[int, Seen],
        facts: Mapping[int, ProcessFacts],
        now: dt.datetime,
        now_s: float,
    ) -> NodeSnapshot:
        self._looks += 1
        ranks = [self._sample(rank, seen.get(rank.pid), now) for rank in self.foreign.ranks]
        ranks, held = self._on_devices(ranks, gpus, facts)
        snapshot = self._snapshot(ranks, held, now)
        alerts, new = self._watch.update(
            snapshot,
            now_s,
            given=any(rank.visible_devices for rank in self.foreign.ranks),
        )
        for alert in new:
            self._emit(now, "alert", alert.message)
        return msgspec.structs.replace(snapshot, alerts=alerts)

    def _sample(self, rank: ForeignRank, seen: Seen | None, now: dt.datetime) -> RankSample:
        state, reason = state_of(seen) if seen is not None else ("unknown", GONE)
        sample = RankSample(
            rank=rank.rank,
            local_rank=rank.local_rank,
            host=procs.host_name(),
            pid=rank.pid,
            state=state,
            state_reason=reason,
            cpu_percent=None if seen is None else seen.usage.cpu_percent,
            rss_bytes=None if seen is None else seen.usage.rss_bytes,
        )
        return self._with_log(sample, now)

    def _with_log(self, sample: RankSample, now: dt.datetime) -> RankSample:
        """The rank with the values from its output, or else from its files."""
        in_files = None if self._files is None else self._files.ranks.get(sample.rank)
        progress = self.log.ranks.get(sample.rank)
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
        self,
        ranks: list[RankSample],
        gpus: Sequence[GpuSample],
        facts: Mapping[int, ProcessFacts],
    ) -> tuple[list[RankSample], list[GpuSample]]:
        """(ranks with their devices, the job's devices)."""
        pids = set(self.foreign.pids)
        held = [gpu for gpu in gpus if any(p.pid in pids for p in gpu.processes or ())]
        orders = {
            rank.rank: ordered_devices(
                rank.visible_devices, gpus, pci_order=_counts_by_pci(facts.get(rank.pid))
            )
            for rank in self.foreign.ranks
        }
        given = {
            gpu.uuid
            for rank in self.foreign.ranks
            if rank.visible_devices is not None
            for gpu in orders[rank.rank] or ()
        }
        of_job = [gpu for gpu in gpus if gpu in held or (held and gpu.uuid in given)]
        pids_by_rank = {r.rank: (r.pid, *r.helpers) for r in self.foreign.ranks}
        joined, labeled = rank_devices.join(ranks, of_job, pids_by_rank, [], self.name, pids)
        placed = [
            msgspec.structs.replace(rank, cuda_device=cuda_index(orders[rank.rank], rank))
            for rank in joined
        ]
        return placed, labeled

    def _snapshot(
        self, ranks: list[RankSample], gpus: list[GpuSample], now: dt.datetime
    ) -> NodeSnapshot:
        sources = list(self.log.ranks.values())
        steps = [rank.step for rank in ranks if rank.step is not None]
        progress = combine.of_job(one.progress(now) for one in sources)
        return NodeSnapshot(
            job=self.name,
            job_id=f"{self.name}@{self.foreign.root_start_ticks}",
            host=procs.host_name(),
            seq=self._looks,
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
        """The last snapshot, with every rank ended."""
        last = self._last if self._last is not None else self._snapshot([], [], now)
        reason = "exited; exit status unknown"
        progress = last.progress
        if progress is not None:
            progress = combine.ended(progress)
        ranks = [
            msgspec.structs.replace(
                self._with_log(rank, now),
                state="unknown",
                state_reason=reason,
                cpu_percent=None,
                rss_bytes=None,
                steps_per_s=None,
                gpu_util_percent=None,
                gpu_mem_used_bytes=None,
                gpu_power_w=None,
            )
            for rank in last.ranks
        ]
        return msgspec.structs.replace(
            last,
            ts=now,
            state="lost",
            ended_at=self.ended_at,
            ranks=ranks,
            gpus=[without_metrics(gpu) for gpu in last.gpus],
            imbalance=Imbalance(),
            alerts=[],
            eta_s=None,
            progress=progress,
        )


def _counts_by_pci(facts: ProcessFacts | None) -> bool:
    environ = facts.environ if facts is not None else None
    return environ is not None and environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def _same(one: ForeignRank, other: ForeignRank) -> bool:
    return (one.pid, one.start_ticks) == (other.pid, other.start_ticks)


def _attempt(job: ForeignJob) -> int | None:
    counts = [rank.restart_count for rank in job.ranks if rank.restart_count is not None]
    return max(counts, default=None)


def _restarts(job: ForeignJob) -> int:
    return _attempt(job) or 0
