"""Defines the JSON of `ls`, `ps`, and `status`. Scripts rely on these names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ddptop_runner.foreign.types import Unreadable
from ddptop_runner.job import registry
from ddptop_runner.job.registry import JobView, elapsed_s, pause_of
from ddptop_runner.launch.slurm import SlurmJob
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import (
    SCHEMA,
    Alert,
    Cause,
    Checkpoint,
    GpuSample,
    Imbalance,
    LauncherSample,
    NodeSnapshot,
    NodeStatus,
    Pause,
    Progress,
    RankSample,
    Resume,
)
from ddptop_runner.model.spec import GitState
from ddptop_runner.model.words import Base, JobState, LossState, StepCounts
from ddptop_runner.reading.progress.combine import of_snapshot

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import Census, ForeignView


class RankRow(Base, frozen=True, kw_only=True):
    """One rank in a list of jobs."""

    rank: int
    pid: int | None
    """Process ID on its host."""
    gpu: int | None
    """Machine index (PCI order) of its device."""
    host: str | msgspec.UnsetType = msgspec.UNSET
    """Host where the rank runs; this key is present only if the job runs on several hosts."""


class JobFacts(Base, frozen=True, kw_only=True):
    """The fields shared by all lists and statuses."""

    job: str
    """Name of the job."""
    state: JobState
    host: str
    """Host where the job runs."""
    command: str
    """Command that was launched, on one line."""
    world_size: int | None
    """Number of ranks on all hosts."""
    attempt: int | None
    """Current or last attempt, from 0."""
    step: int | None
    """Step of the slowest rank; see `step_counts`."""
    total_steps: int | None
    """Total steps in the whole run, if known."""
    eta_s: float | None
    """Estimated time until the run ends."""
    started_at: dt.datetime
    """When the job was launched."""
    policy: str | None = None
    """Latest restart policy decision and its reason."""
    restart_at: dt.datetime | None = None
    """When the next attempt starts; None unless a restart is pending."""
    set_aside: list[int] = []
    """Machine indices of failed devices that the job continues without."""
    progress: Progress | None = None
    """Progress toward a known total; None if no total is known."""
    step_counts: StepCounts | None = None
    """What `step` counts: `run`, or `attempt` or `epoch` when the step of the whole run is
    unknown."""
    attempt_step: int | None = None
    """Steps taken by the slowest rank in this attempt."""
    pause: Pause | None = None
    """Set while a live job is not taking steps; None otherwise, or if unknown."""
    ended_at: dt.datetime | None = None
    """None while the job is live."""
    elapsed_s: float | None = None
    """How long the job has run, or ran, without the time between an end and a relaunch."""
    cause: Cause | None = None
    """Why the job failed; None if it did not."""
    loss_state: LossState | None = None
    """State of the ranks' last losses: `nan` or `inf` if any loss is."""
    note: str | None = None
    """Text given to `launch --note`."""
    git: GitState | None = None
    """Commit that it was launched from; None without a git repository."""
    group: str | None = None
    """Name of the sweep that it was launched with; None without `--array`."""
    array: dict[str, str] | None = None
    """The job's value of each `--array`; None without `--array`."""


class JobRow(JobFacts, frozen=True, kw_only=True):
    """One job in a list."""

    launcher: str
    """What starts the ranks: torchrun, accelerate, deepspeed, horovod, mpirun, mp.spawn, or
    python."""
    ranks: list[RankRow]
    head: str | None = None
    """For this machine's part of a job whose head is elsewhere: the head's host."""


class DamagedRow(Base, frozen=True, kw_only=True):
    """A run folder that cannot be read as a job."""

    job: str
    """Name of the folder; pass it to `rm` to delete it."""
    reason: str
    """What is wrong, and how to fix it."""


class JobList(Base, frozen=True, kw_only=True):
    """What `ls --json` prints."""

    schema: int = SCHEMA
    jobs: list[JobRow]
    damaged: list[DamagedRow] | msgspec.UnsetType = msgspec.UNSET
    """Run folders that cannot be read; this key is present only if there are any."""
    slurm: list[SlurmJob] | msgspec.UnsetType | None = msgspec.UNSET
    """Your jobs in Slurm's queue, at most 15 s old; null if squeue failed. This key is present only
    on machines with Slurm."""


class ForeignRow(JobRow, frozen=True, kw_only=True):
    """One job that ddptop did not start."""

    user: str
    """Owner of the processes."""
    root_pid: int
    """Process ID of the launcher, or of the only process."""
    notes: list[str]
    """What could not be inspected, and the consequences."""


class ForeignList(Base, frozen=True, kw_only=True):
    """What `ps --json` prints."""

    schema: int = SCHEMA
    jobs: list[ForeignRow]
    unreadable: list[Unreadable]


class JobStatus(JobFacts, frozen=True, kw_only=True):
    """What `status --json` prints."""

    schema: int = SCHEMA
    restarts_used: int
    """Restarts used from the budget (`--max-restarts`)."""
    restarts_left: int
    """Restarts left in the budget; progress refills it."""
    exit_code: int | None
    """The job's exit status; None while it is live."""
    guarded: bool | None
    """Whether the guardian is alive; None if that cannot be determined."""
    snapshot_age_s: float | None
    """Age of the values below; they are refreshed about once a second while the job is live."""
    ranks: list[RankSample]
    """One entry per rank."""
    gpus: list[GpuSample]
    """The job's devices."""
    imbalance: Imbalance
    """How unevenly the ranks or devices are loaded."""
    alerts: list[Alert]
    """Current problems; empty if there are none."""
    checkpoint: Checkpoint | None
    """Last detected checkpoint."""
    restarts_refilled: str | None
    """Progress that last refilled the restart budget."""
    previous_cause: Cause | None
    """Why the previous attempt failed; None if it did not."""
    resume: Resume | None
    """What came back when the attempt resumed; None for the first one, or if unknown."""
    launcher: LauncherSample | None
    """Process for the launched command; None if ddptop starts the ranks itself."""
    nodes: list[NodeStatus] = []
    """The machines of a job on several; empty on one."""


def job_row(view: JobView) -> JobRow:
    """A job as a row of a list."""
    ranks = [] if view.snapshot is None else view.snapshot.ranks
    several = len({rank.host for rank in ranks}) > 1
    return JobRow(
        **_facts(view, JobRow),
        launcher=view.launcher,
        head=None if view.spec.membership is None else view.spec.membership.head,
        ranks=[
            RankRow(
                rank=rank.rank,
                pid=rank.pid,
                gpu=rank.gpu,
                host=rank.host if several else msgspec.UNSET,
            )
            for rank in ranks
        ],
    )


def foreign_list(census: Census, views: Mapping[str, ForeignView]) -> ForeignList:
    """The jobs of a census as a list.

    Args:
        census: the processes.
        views: by job name, what was seen of each job.
    """
    return ForeignList(
        jobs=[_foreign_row(views[job.name], census) for job in census.jobs],
        unreadable=list(census.unreadable),
    )


def _foreign_row(view: ForeignView, census: Census) -> ForeignRow:
    job, snapshot = view.foreign, view.snapshot
    facts = [census.facts[rank.pid] for rank in job.ranks if rank.pid in census.facts]
    has_ended = bool(job.ranks) and all(one.is_zombie for one in facts)
    return ForeignRow(
        job=job.name,
        state="lost" if has_ended else snapshot.state,
        host=snapshot.host,
        command=job.command,
        launcher=job.launcher,
        world_size=job.world_size,
        attempt=snapshot.attempt,
        started_at=job.started_at,
        elapsed_s=max(0.0, (view.read_at - job.started_at).total_seconds()),
        loss_state=loss_state(snapshot.ranks),
        ranks=[RankRow(rank=rank.rank, pid=rank.pid, gpu=rank.gpu) for rank in snapshot.ranks],
        user=job.user,
        root_pid=job.root_pid,
        notes=list(job.notes),
        **_steps(snapshot, is_live=True),
    )


def job_status(view: JobView) -> JobStatus:
    """A job's full status."""
    return JobStatus(
        **_facts(view, JobStatus),
        guarded=view.guarded,
        snapshot_age_s=view.snapshot_age_s,
    )


def _facts(view: JobView, kind: type[JobRow | JobStatus]) -> dict[str, Any]:
    """What a row or a status takes from a job, by field name."""
    snapshot = view.snapshot or registry.empty_snapshot(view)
    own = {"schema"} if kind is JobStatus else {"schema", "ranks", "launcher"}
    names = {*kind.__struct_fields__} & {*NodeSnapshot.__struct_fields__} - own
    return {
        **{name: getattr(snapshot, name) for name in names},
        "job": view.job,
        "state": view.state,
        "host": view.spec.host,
        "command": view.command,
        "restart_at": snapshot.restart_at if view.is_live else None,
        **_course(view),
        **_steps(view.snapshot, is_live=view.is_live),
    }


def _course(view: JobView) -> dict[str, Any]:
    """How long a job has run, whether it pauses, and how it ended, by field name of `JobFacts`."""
    snapshot = view.snapshot
    return {
        "ended_at": view.ended_at,
        "elapsed_s": elapsed_s(view, view.read_at),
        "pause": pause_of(view),
        "cause": None if snapshot is None else snapshot.cause,
        "loss_state": None if snapshot is None else loss_state(snapshot.ranks),
        "note": view.spec.note,
        "git": view.spec.git,
        "group": view.spec.group,
        "array": None if view.spec.group is None else view.spec.array,
    }


def loss_state(ranks: Sequence[RankSample]) -> LossState | None:
    """The worst state of the ranks' last losses; None if none is known."""
    states = {rank.loss_state for rank in ranks}
    worst: tuple[LossState, ...] = ("nan", "inf", "ok")
    return next((state for state in worst if state in states), None)


def _steps(snapshot: NodeSnapshot | None, *, is_live: bool) -> dict[str, Any]:
    """A job's progress, by field name of `JobFacts`."""
    run = run_step.of_snapshot(snapshot)
    return {
        "step": None if run is None else run.step,
        "step_counts": None if run is None else run.counts,
        "attempt_step": None if snapshot is None else snapshot.step,
        "total_steps": None if snapshot is None else snapshot.total_steps,
        "eta_s": snapshot.eta_s if snapshot is not None and is_live else None,
        "progress": None if snapshot is None else of_snapshot(snapshot, is_live),
    }
