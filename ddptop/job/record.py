"""The record of one job, as every screen and command shows it."""

from __future__ import annotations

import datetime as dt

import msgspec

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.foreign.types import ForeignJob, ForeignView
from ddptop_runner.job import registry
from ddptop_runner.job.registry import JobView
from ddptop_runner.model.run_step import abreast
from ddptop_runner.model.snapshot import NodeSnapshot, Pause
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import LIVE_STATES, JobState


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job at the time it was read: ddptop's own, foreign, in Slurm's queue, or replayed.

    Everything was read when the record was made; nothing here reads files or processes.
    """

    name: str
    job_id: str
    state: JobState
    """Verified against the processes."""
    host: str
    """The host on which it was launched."""
    user: str
    """Its owner; empty if unknown."""
    command: str
    """What the user typed, on one line."""
    launcher: str
    """`ddptop`, or what started its ranks."""
    world_size: int | None
    """Requested number of ranks on all hosts; None if unknown, or if a command decides itself."""
    created_at: dt.datetime
    ended_at: dt.datetime | None
    snapshot: NodeSnapshot
    """The latest figures; without ranks until `has_snapshot`."""
    has_snapshot: bool = True
    """Whether the supervisor has written a snapshot."""
    read_at: dt.datetime
    snapshot_age_s: float | None
    """Seconds since the snapshot was written, when the record was made."""
    guarded: bool | None = None
    """Whether its guardian is alive; None if unknown, or if it has none."""
    needs_guardian: bool = False
    """Whether this user's ddptop should adopt it: it is alive, and its guardian has ended."""
    on_other_host: bool = False
    """Whether its processes may be on another host or in another container, out of sight."""
    is_abandoned: bool = False
    """Whether it ran on another host or in another container, and nothing is left of it."""
    in_slurm_queue: bool = False
    """Whether Slurm will start it again."""
    output: str | None = None
    """Where a foreign job's output goes and, if it is unreadable, why."""
    stopping: str | None = None
    """Which signals this viewer is sending to a foreign job, and when."""
    ended_by: str | None = None
    """The last signal that this viewer sent before a foreign job ended."""
    run_folder: RunFolder | None = None
    launch_spec: JobSpec | None = None
    foreign: ForeignJob | None = None
    """The processes of a job that ddptop did not start."""
    members: tuple[Job, ...] = ()
    """The jobs of a sweep, which itself has neither processes nor a run folder."""

    @property
    def group(self) -> str | None:
        """The sweep that it belongs to."""
        return None if self.launch_spec is None else self.launch_spec.group

    @property
    def is_live(self) -> bool:
        """Whether processes of the job exist or should exist."""
        return self.state in LIVE_STATES

    @property
    def is_foreign(self) -> bool:
        """Whether ddptop did not start it."""
        return self.foreign is not None

    @property
    def has_history(self) -> bool:
        """Whether ddptop has recorded it: its attempts, metrics, logs, and evidence."""
        return self.run_folder is not None

    @property
    def can_restart(self) -> bool:
        """Whether ddptop can start it again."""
        return self.launch_spec is not None

    @property
    def left_in_queue(self) -> bool:
        """Whether it waited when the machine, or all of its processes, ended."""
        return self.state == "lost" and self.can_restart and self.spec.is_queued

    @property
    def folder(self) -> RunFolder:
        """The run folder of a job that has a history."""
        assert self.run_folder is not None
        return self.run_folder

    @property
    def spec(self) -> JobSpec:
        """How a job that ddptop started was launched."""
        assert self.launch_spec is not None
        return self.launch_spec

    @property
    def pause(self) -> Pause | None:
        """A live job's pause; None while there are steps, and if unknown."""
        return registry.pause_of(self)

    def elapsed_s(self, now: dt.datetime) -> float:
        """How long the job has run, or ran, without the time between an end and a restart."""
        return registry.elapsed_s(self, now)


def own_job(view: JobView) -> Job:
    """Read everything about a job that ddptop started."""
    return Job(
        name=view.job,
        job_id=view.spec.job_id,
        state=view.state,
        host=view.host,
        user=view.user,
        command=view.command,
        launcher=view.launcher,
        world_size=view.world_size,
        created_at=view.created_at,
        ended_at=view.ended_at,
        snapshot=abreast(view.snapshot or registry.empty_snapshot(view)),
        has_snapshot=view.snapshot is not None,
        read_at=view.read_at,
        snapshot_age_s=view.snapshot_age_s,
        guarded=view.guarded,
        needs_guardian=view.needs_guardian,
        on_other_host=view.on_other_host,
        is_abandoned=view.is_abandoned,
        in_slurm_queue=view.in_slurm_queue,
        run_folder=view.folder,
        launch_spec=view.spec,
    )


def foreign_job(view: ForeignView, stopping: str | None = None, ended_by: str | None = None) -> Job:
    """A job that ddptop did not start, with the signals that this viewer sends or sent."""
    job = view.foreign
    return Job(
        name=view.job,
        job_id=view.snapshot.job_id,
        state=view.state,
        host=view.snapshot.host,
        user=job.user,
        command=job.command,
        launcher=job.launcher,
        world_size=job.world_size,
        created_at=job.started_at,
        ended_at=view.snapshot.ended_at,
        snapshot=view.snapshot,
        read_at=view.read_at,
        snapshot_age_s=0.0,
        output=view.output,
        stopping=stopping if view.is_live else None,
        ended_by=None if view.is_live else ended_by,
        foreign=job,
    )


def past_job(job: Job, snapshot: NodeSnapshot, at: dt.datetime) -> Job:
    """The job as its history shows it at a time; whether it had a guardian then is unknown."""
    return msgspec.structs.replace(
        job,
        state=snapshot.state,
        ended_at=snapshot.ts if snapshot.state == "lost" else snapshot.ended_at,
        snapshot=abreast(snapshot),
        has_snapshot=True,
        read_at=at,
        snapshot_age_s=0.0,
        guarded=None,
        needs_guardian=False,
        on_other_host=False,
        is_abandoned=False,
        in_slurm_queue=False,
    )


def own_view(job: Job) -> JobView:
    """What the engine's commands take for a job that ddptop started."""
    return JobView(
        folder=job.folder,
        spec=job.spec,
        snapshot=job.snapshot if job.has_snapshot else None,
        read_at=job.read_at,
        in_slurm_queue=job.in_slurm_queue,
    )
