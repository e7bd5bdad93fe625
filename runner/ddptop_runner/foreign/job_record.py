"""The state kept for one foreign job between two scans."""

from __future__ import annotations

import datetime as dt
import shlex
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.devices.report import without_figures
from ddptop_runner.foreign.job_files import JobFiles
from ddptop_runner.foreign.job_output import Heard, JobOutput
from ddptop_runner.foreign.loss_history import LossHistory
from ddptop_runner.foreign.states import Seen, state_of
from ddptop_runner.foreign.types import ForeignJob, ForeignRank, ProcessFacts
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.foreign.visible import cuda_index, ordered_devices
from ddptop_runner.host import procs
from ddptop_runner.judge.balance import imbalance, rank_devices
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model import run_step
from ddptop_runner.model.devices import GpuSample
from ddptop_runner.model.snapshot import Event, Imbalance, NodeSnapshot, RankSample
from ddptop_runner.reading.progress import combine
from ddptop_runner.reading.progress.fill import fill
from ddptop_runner.reading.progress.from_text import TextProgress
from ddptop_runner.reading.progress.said import Said, of_command

KEPT_EVENTS = 300


class JobRecord:
    """One job, from its first look on."""

    def __init__(self, job: ForeignJob, output: JobOutput, now: dt.datetime) -> None:
        self.name = job.name
        self.foreign = job
        self.output = output
        self.files = JobFiles()
        self.losses = LossHistory()
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        """Oldest first."""
        self.ended_at: dt.datetime | None = None
        self._progress: dict[int, TextProgress] = {}
        self._watch = JobWatch()
        self._grew_s: float | None = None
        self._seq = 0
        self._looks = 0
        self._last: NodeSnapshot | None = None
        ranks = "1 rank" if len(job.ranks) == 1 else f"{len(job.ranks)} ranks"
        self._tell(now, "watched", f"{job.launcher} job with {ranks} on this host")

    # -- what changed --------------------------------------------------------------------------

    def update(self, job: ForeignJob, now: dt.datetime) -> None:
        """The job as a later census has it."""
        before = {rank.rank: rank for rank in self.foreign.ranks}
        after = {rank.rank: rank for rank in job.ranks}
        self.ended_at = None
        restarted = _restarts(job) - _restarts(self.foreign)
        if restarted > 0:
            message = f"the ranks were restarted (restart {_restarts(job)})"
            self._tell(now, "group_restart", message)
        for number, rank in before.items():
            if number not in after or not _same(rank, after[number]):
                message = f"pid {rank.pid} exited; exit status unknown"
                self._tell(now, "rank_exited", message, rank)
        for number, rank in after.items():
            if number not in before or not _same(rank, before[number]):
                self._tell(now, "rank_started", f"pid {rank.pid}", rank)
                self._progress.pop(number, None)
        self.foreign = job

    def lost(self, now: dt.datetime) -> None:
        """No process of the job is there any more."""
        if self.ended_at is None:
            self.ended_at = now
            self._tell(now, "lost", "all processes exited; exit status unknown")

    def _tell(
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

    # -- what it printed -----------------------------------------------------------------------

    def hear(self, heard: Sequence[Heard], grew: bool, now: dt.datetime, now_s: float) -> None:
        """Fold in what was read of its outputs in this look."""
        if grew:
            self._grew_s = now_s
        for known in self._progress.values():
            known.begin_look()
        backlog: dict[int, float | None] = {}
        for one in heard:
            rank = self._rank_of(one)
            if rank is None or self.output.is_copy(one, rank):
                continue
            reading = one.reading
            progress = self._progress.get(rank)
            if progress is None:
                progress = self._progress[rank] = TextProgress(self._said())
            progress.hear(reading, now if one.fresh else None, one.source)
            loss = None if reading.kind == "val" else reading.loss
            if not one.fresh:
                backlog[rank] = backlog.get(rank) if loss is None else loss
            elif loss is not None:
                self.losses.add(rank, now.timestamp(), loss)
        written_at = self.output.written_at
        if backlog and written_at is not None:  # of the last of them the time is known
            at_s = min(written_at, now.timestamp())
            for rank, loss in backlog.items():
                self._progress[rank].written_last(utc_from_unix(at_s))
                if loss is not None:
                    self.losses.add(rank, at_s, loss)

    def _said(self) -> Said:
        """What its command line tells of how long it trains."""
        try:
            words = shlex.split(self.foreign.command)
        except ValueError:  # cut within a quoted word
            words = self.foreign.command.split()
        said = of_command(words)
        return said._replace(resumes=said.resumes or _restarts(self.foreign) > 0)

    def look_at_files(self, now: dt.datetime, now_s: float) -> None:
        """What it logs to files, for ranks whose output tells no loss."""
        told = {rank for rank, known in self._progress.items() if known.loss_state is not None}
        for rank, at, reading in self.files.look(self.foreign, not told, now, now_s):
            if rank not in told and reading.loss is not None and reading.kind != "val":
                self.losses.add(rank, at.timestamp(), reading.loss)

    def close(self) -> None:
        """Let go of every file."""
        self.output.close()
        self.files.close()

    def _rank_of(self, heard: Heard) -> int | None:
        """Whose reading it is; None when it is of a rank of another host."""
        if len(heard.ranks) == 1:
            return heard.ranks[0]
        here = [rank.rank for rank in self.foreign.ranks]
        reading = heard.reading
        if reading.rank is not None and len(here) > 1:
            return reading.rank if reading.rank in here else None
        if reading.local_rank is not None:
            by_local = {rank.local_rank: rank.rank for rank in self.foreign.ranks}
            return by_local.get(reading.local_rank)
        writers = heard.ranks or tuple(here)
        if not writers:
            return None
        if len(here) > 1:
            self.output.shared_default = True
        return min(writers)

    # -- what it looks like --------------------------------------------------------------------

    def view(
        self,
        gpus: Sequence[GpuSample],
        seen: Mapping[int, Seen],
        facts: Mapping[int, ProcessFacts],
        now: dt.datetime,
        now_s: float,
    ) -> ForeignView:
        """The job as it is shown; call it once for each look."""
        try:
            snapshot = (
                self._ended(now) if self.ended_at else self._alive(gpus, seen, facts, now, now_s)
            )
            words = self.output.words()
        except Exception as error:  # what one job shows is not to hide the others
            self._progress.clear()
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
            progress_at_s=self._grew_s,
        )
        stuck = self._watch.stuck
        if stuck.stuck_ranks:
            ranks = [
                self._with_state(rank, seen, stuck.reason)
                if rank.rank in stuck.stuck_ranks
                else rank
                for rank in ranks
            ]
        for alert in new:
            self._tell(now, "alert", alert.message)
        return msgspec.structs.replace(snapshot, ranks=ranks, alerts=alerts)

    def _sample(self, rank: ForeignRank, seen: Seen | None, now: dt.datetime) -> RankSample:
        sample = RankSample(
            rank=rank.rank,
            local_rank=rank.local_rank,
            host=procs.host_name(),
            pid=rank.pid,
            state="unknown",
            state_reason="exited since the last scan",
        )
        if seen is not None:
            state, reason = state_of(seen)
            sample = msgspec.structs.replace(
                sample,
                state=state,
                state_reason=reason,
                cpu_percent=seen.cpu_percent,
                rss_bytes=seen.rss_bytes,
            )
        return self._with_log(sample, now)

    def _with_log(self, sample: RankSample, now: dt.datetime) -> RankSample:
        """The rank with what its log told, or else its files."""
        told = self._with_text(sample, now)
        return (
            fill(told, None, self.files.of_rank(sample.rank), now) if not told.loss_state else told
        )

    def _with_text(self, sample: RankSample, now: dt.datetime) -> RankSample:
        progress = self._progress.get(sample.rank)
        if progress is None:
            return sample
        rate = progress.steps_per_s(now)
        metrics: dict[str, float | None] = {}
        if progress.epoch is not None:
            metrics["epoch"] = progress.epoch
        if progress.validation_loss is not None:
            metrics["validation loss"] = progress.validation_loss
        return msgspec.structs.replace(
            sample,
            step=progress.step,
            step_source=None if progress.step is None else "log",
            global_step=progress.step if progress.counts_run else None,
            run_step=progress.step if progress.counts_run else None,
            step_counts=None if progress.counts_run or progress.step is None else "epoch",
            loss=progress.loss,
            loss_step=progress.loss_step,
            loss_state=progress.loss_state,
            loss_source="log" if progress.loss_state is not None else None,
            loss_min=progress.loss_min,
            loss_max=progress.loss_max,
            steps_per_s=rate,
            step_time_s=1 / rate if rate else None,
            last_progress_at=progress.last_at,
            metrics=metrics,
        )

    def _with_state(
        self, sample: RankSample, seen: Mapping[int, Seen], reason: str | None
    ) -> RankSample:
        one = seen.get(sample.pid or 0)
        if one is None:
            return sample
        state, words = state_of(one, reason or "GPU busy without progress")
        return msgspec.structs.replace(sample, state=state, state_reason=words)

    def _on_devices(
        self,
        ranks: list[RankSample],
        gpus: Sequence[GpuSample],
        facts: Mapping[int, ProcessFacts],
    ) -> tuple[list[RankSample], list[GpuSample]]:
        """Ranks with their devices, and the devices that are the job's."""
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
        joined, labelled = rank_devices.join(ranks, of_job, pids_by_rank, [], self.name, pids)
        by_index = {gpu.index: gpu for gpu in gpus}
        found = []
        for sample, rank in zip(joined, self.foreign.ranks, strict=True):
            gpu = by_index.get(sample.gpu) if sample.gpu is not None else None
            if gpu is None:
                found.append(sample)
                continue
            alone = sum(other.gpu == sample.gpu for other in joined) == 1
            found.append(
                msgspec.structs.replace(
                    sample,
                    cuda_device=cuda_index(orders[rank.rank], gpu),
                    gpu_power_w=gpu.power_w if alone else None,
                )
            )
        return found, labelled

    def _snapshot(
        self, ranks: list[RankSample], gpus: list[GpuSample], now: dt.datetime
    ) -> NodeSnapshot:
        told = list(self._progress.values())
        steps = [rank.step for rank in ranks if rank.step is not None]
        progress = combine.of_job(one.progress(now) for one in told)
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
        """The last look with nobody alive in it."""
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
            gpus=[without_figures(gpu) for gpu in last.gpus],
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
