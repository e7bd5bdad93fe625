"""The JSON of `ls`, `ps` and `status`: outside scripts rely on these names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec

from ddptop_runner import procs, run_step
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignRank
from ddptop_runner.model import (
    SCHEMA,
    Alert,
    Base,
    Cause,
    Checkpoint,
    GpuSample,
    Imbalance,
    LauncherSample,
    NodeSnapshot,
    Pause,
    Progress,
    RankSample,
)
from ddptop_runner.model_words import JobState, StepCounts
from ddptop_runner.progress.combine import of_snapshot
from ddptop_runner.registry import JobView, pause_of


class RankRow(Base, frozen=True, kw_only=True):
    """One rank in a list of jobs."""

    rank: int
    pid: int | None
    gpu: int | None


class JobRow(Base, frozen=True, kw_only=True):
    """One job in a list."""

    job: str
    state: JobState
    host: str
    command: str
    launcher: str
    world_size: int | None
    attempt: int | None
    step: int | None
    total_steps: int | None
    eta_s: float | None
    started_at: dt.datetime
    ranks: list[RankRow]
    policy: str | None = None
    """Why the restart policy did what it did last, in words."""
    restart_at: dt.datetime | None = None
    """When the next attempt begins; null when none is waited for."""
    set_aside: list[int] = []
    """The job's devices that it goes on without."""
    progress: Progress | None = None
    """How far it is; null where nothing said a total."""
    step_counts: StepCounts | None = None
    """What `step` counts: run, or attempt or epoch where nothing tells the step of the run."""
    attempt_step: int | None = None
    """The slowest rank's own steps in this attempt."""
    pause: Pause | None = None
    """That a live job takes no step; null while steps come, and where that is not known."""


class DamagedRow(Base, frozen=True, kw_only=True):
    """A run folder that cannot be shown as a job."""

    job: str
    """The folder's name, by which `rm` deletes it."""
    reason: str
    """Why, and what to do."""


class JobList(Base, frozen=True, kw_only=True):
    """What `ls --json` prints."""

    schema: int = SCHEMA
    jobs: list[JobRow]
    damaged: list[DamagedRow] | msgspec.UnsetType = msgspec.UNSET
    """Run folders that cannot be shown; the key is there only where there are some."""


class ForeignRow(JobRow, frozen=True, kw_only=True):
    """One job that ddptop did not start."""

    user: str
    root_pid: int
    """The launcher, or the only process."""
    notes: list[str]
    """What could not be seen, and what follows from it."""


class UnreadableRow(Base, frozen=True, kw_only=True):
    """One process that may be training, and that this user may not look into."""

    pid: int
    user: str | None
    command: str | None
    gpus: list[str]
    """UUIDs of the devices that it holds."""
    reason: str


class ForeignList(Base, frozen=True, kw_only=True):
    """What `ps --json` prints."""

    schema: int = SCHEMA
    jobs: list[ForeignRow]
    unreadable: list[UnreadableRow]


class JobStatus(Base, frozen=True, kw_only=True):
    """What `status --json` prints."""

    schema: int = SCHEMA
    job: str
    state: JobState
    host: str
    command: str
    attempt: int | None
    restarts_used: int
    restarts_left: int
    world_size: int | None
    started_at: dt.datetime
    ended_at: dt.datetime | None
    exit_code: int | None
    cause: Cause | None
    guarded: bool | None
    snapshot_age_s: float | None
    step: int | None
    total_steps: int | None
    eta_s: float | None
    ranks: list[RankSample]
    gpus: list[GpuSample]
    imbalance: Imbalance
    alerts: list[Alert]
    checkpoint: Checkpoint | None
    """The last one that was seen being written."""
    policy: str | None
    """Why the restart policy did what it did last, in words."""
    restart_at: dt.datetime | None
    """When the next attempt begins; null when none is waited for."""
    restarts_refilled: str | None
    """The progress that filled the budget of restarts again last, in words."""
    set_aside: list[int]
    """The job's devices that it goes on without."""
    previous_cause: Cause | None
    """Why the attempt before this one failed; null where it did not."""
    launcher: LauncherSample | None
    """The process that a command started; null of a job whose ranks ddptop starts itself."""
    progress: Progress | None
    """How far it is; null where nothing said a total."""
    step_counts: StepCounts | None
    """What `step` counts: run, or attempt or epoch where nothing tells the step of the run."""
    attempt_step: int | None
    """The slowest rank's own steps in this attempt."""
    pause: Pause | None
    """That a live job takes no step; null while steps come, and where that is not known."""


def job_row(view: JobView) -> JobRow:
    """A job as one row of a list."""
    snapshot, run = view.snapshot, run_step.of_snapshot(view.snapshot)
    return JobRow(
        job=view.job,
        state=view.state,
        host=view.spec.host,
        command=view.command,
        launcher=view.launcher,
        world_size=view.world_size if snapshot is None else snapshot.world_size,
        attempt=None if snapshot is None else snapshot.attempt,
        step=None if run is None else run.step,
        step_counts=None if run is None else run.counts,
        attempt_step=None if snapshot is None else snapshot.step,
        total_steps=None if snapshot is None else snapshot.total_steps,
        eta_s=snapshot.eta_s if snapshot is not None and view.is_live else None,
        started_at=view.spec.created_at if snapshot is None else snapshot.started_at,
        ranks=[]
        if snapshot is None
        else [RankRow(rank=rank.rank, pid=rank.pid, gpu=rank.gpu) for rank in snapshot.ranks],
        policy=None if snapshot is None else snapshot.policy,
        restart_at=snapshot.restart_at if snapshot is not None and view.is_live else None,
        set_aside=[] if snapshot is None else snapshot.set_aside,
        progress=None if snapshot is None else of_snapshot(snapshot, view.is_live),
        pause=pause_of(view),
    )


def foreign_list(
    census: Census, gpus: Sequence[GpuSample], seen: Mapping[str, NodeSnapshot] | None = None
) -> ForeignList:
    """A census as a list.

    Args:
        census: the processes.
        gpus: the sample that it was taken with.
        seen: by job, what its output told, where it was looked at.
    """
    told = seen or {}
    index_of = {gpu.uuid: gpu.index for gpu in gpus if gpu.uuid is not None}
    return ForeignList(
        jobs=[_foreign_row(job, census, index_of, told.get(job.name)) for job in census.jobs],
        unreadable=[
            UnreadableRow(
                pid=one.pid,
                user=one.user,
                command=one.command,
                gpus=list(one.devices),
                reason=one.reason,
            )
            for one in census.unreadable
        ],
    )


def _foreign_row(
    job: ForeignJob, census: Census, index_of: Mapping[str, int], told: NodeSnapshot | None
) -> ForeignRow:
    states = [census.facts[rank.pid].state for rank in job.ranks if rank.pid in census.facts]
    run = run_step.of_snapshot(told)
    restarts = [rank.restart_count for rank in job.ranks if rank.restart_count is not None]
    return ForeignRow(
        job=job.name,
        state=_foreign_state(job, states),
        host=procs.host_name(),
        command=job.command,
        launcher=job.launcher,
        world_size=job.world_size,
        attempt=max(restarts, default=None),
        step=None if run is None else run.step,
        step_counts=None if run is None else run.counts,
        attempt_step=None if told is None else told.step,
        total_steps=None if told is None else told.total_steps,
        eta_s=None if told is None else told.eta_s,
        progress=None if told is None else told.progress,
        started_at=job.started_at,
        ranks=[
            RankRow(rank=rank.rank, pid=rank.pid, gpu=_own_device(rank, job, index_of))
            for rank in job.ranks
        ],
        user=job.user,
        root_pid=job.root_pid,
        notes=list(job.notes),
    )


def _foreign_state(job: ForeignJob, rank_states: Sequence[str]) -> JobState:
    if not job.ranks:
        return "starting"
    return "running" if any(state not in "ZX" for state in rank_states) else "lost"


def _own_device(rank: ForeignRank, job: ForeignJob, index_of: Mapping[str, int]) -> int | None:
    """The device that the rank computes on, as far as that is certain.

    The only one that it holds; or, with one rank per device, the one in its place: the others hold
    a stray context of it.
    """
    held = sorted(index_of[uuid] for uuid in rank.devices if uuid in index_of)
    if len(held) == 1:
        return held[0]
    of_all = sorted(
        {index_of[uuid] for one in job.ranks for uuid in one.devices if uuid in index_of}
    )
    if len(of_all) == len(job.ranks) > 1 and of_all[job.ranks.index(rank)] in held:
        return of_all[job.ranks.index(rank)]
    return None


def job_status(view: JobView) -> JobStatus:
    """A job in full."""
    spec, snapshot = view.spec, view.snapshot
    run = run_step.of_snapshot(snapshot)
    if snapshot is None:
        return JobStatus(
            job=view.job,
            state=view.state,
            host=spec.host,
            command=view.command,
            attempt=None,
            restarts_used=0,
            restarts_left=spec.max_restarts,
            world_size=view.world_size,
            started_at=spec.created_at,
            ended_at=view.ended_at,
            exit_code=None,
            cause=None,
            guarded=view.guarded,
            snapshot_age_s=None,
            step=None,
            step_counts=None,
            attempt_step=None,
            total_steps=None,
            eta_s=None,
            ranks=[],
            gpus=[],
            imbalance=Imbalance(),
            alerts=[],
            checkpoint=None,
            policy=None,
            restart_at=None,
            restarts_refilled=None,
            set_aside=[],
            previous_cause=None,
            launcher=None,
            progress=None,
            pause=None,
        )
    return JobStatus(
        job=view.job,
        state=view.state,
        host=spec.host,
        command=view.command,
        attempt=snapshot.attempt,
        restarts_used=snapshot.restarts_used,
        restarts_left=snapshot.restarts_left,
        world_size=snapshot.world_size,
        started_at=snapshot.started_at,
        ended_at=view.ended_at,
        exit_code=snapshot.exit_code,
        cause=snapshot.cause,
        guarded=view.guarded,
        snapshot_age_s=view.snapshot_age_s,
        step=None if run is None else run.step,
        step_counts=None if run is None else run.counts,
        attempt_step=snapshot.step,
        total_steps=snapshot.total_steps,
        eta_s=snapshot.eta_s if view.is_live else None,
        ranks=snapshot.ranks,
        gpus=snapshot.gpus,
        imbalance=snapshot.imbalance,
        alerts=snapshot.alerts,
        checkpoint=snapshot.checkpoint,
        policy=snapshot.policy,
        restart_at=snapshot.restart_at if view.is_live else None,
        restarts_refilled=snapshot.restarts_refilled,
        set_aside=snapshot.set_aside,
        previous_cause=snapshot.previous_cause,
        launcher=snapshot.launcher,
        progress=of_snapshot(snapshot, view.is_live),
        pause=pause_of(view),
    )
