"""Sweeps: several jobs shown as one, and which of them has the lowest loss. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ddptop.job.progress import median_loss, validation_losses
from ddptop.job.record import Job
from ddptop_runner.base import units
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.words import LIVE_STATES, JobState

STATES: tuple[JobState, ...] = (
    *("hung", "restarting", "running", "starting", "stopping", "queued"),
    *("failed", "lost", "stopped", "finished"),
)
"""A sweep has the first of these states that one of its jobs has."""


def grouped(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, with those of each sweep as one, in the place of its first."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.group or job.job_id, []).append(job)
    return [of[0] if of[0].group is None else _as_one(of[0].group, of) for of in found.values()]


def _as_one(name: str, jobs: Sequence[Job]) -> Job:
    members = tuple(sorted(jobs, key=lambda job: job.created_at))
    first = members[0]
    state = next(state for state in STATES if any(job.state == state for job in members))
    running = [job for job in members if job.is_live and job.state != "queued"]
    ended = [job.ended_at for job in members if job.ended_at is not None]
    ended_at = max(ended, default=None) if state not in LIVE_STATES else None
    return Job(
        name=name,
        job_id=f"{name}@",
        state=state,
        host=first.host,
        user=first.user,
        command=" ".join([first.spec.target, *_arrays(members)]),
        launcher=first.launcher,
        world_size=sum(job.world_size or 0 for job in running) or None,
        created_at=first.created_at,
        ended_at=ended_at,
        snapshot=NodeSnapshot(
            job=name,
            job_id=f"{name}@",
            host=first.host,
            seq=0,
            ts=first.read_at,
            state=state,
            started_at=first.created_at,
            ended_at=ended_at,
            gpus=[gpu for job in running for gpu in job.snapshot.gpus],
        ),
        read_at=first.read_at,
        snapshot_age_s=None,
        members=members,
    )


def _arrays(members: Sequence[Job]) -> list[str]:
    """`lr=1e-3,1e-4` for each array."""
    return [
        f"{name}={','.join(dict.fromkeys(job.spec.array.get(name, '') for job in members))}"
        for name in members[0].spec.array
    ]


def short_name(job: Job) -> str:
    """A job's name without that of its sweep: `lr1e-3-seed1`."""
    return job.name if job.group is None else job.name.removeprefix(f"{job.group}-")


def sweep_of(jobs: Iterable[Job]) -> str | None:
    """The sweep that all of these jobs belong to."""
    groups = {job.group for job in jobs}
    return groups.pop() if len(groups) == 1 else None


def labels(jobs: Sequence[Job]) -> list[str]:
    """Names for a chart: without that of the sweep if all jobs are of one."""
    sweep = sweep_of(jobs)
    return [job.name if sweep is None else short_name(job) for job in jobs]


def counts(group: Job) -> str:
    """`2 running, 3 queued, 1 failed`."""
    found = Counter(job.state for job in group.members)
    return ", ".join(f"{found[state]} {state}" for state in STATES if found[state])


def validation_loss(job: Job) -> float | None:
    """The latest value of its first validation loss."""
    return next(iter(validation_losses(job.snapshot).values()), None)


def by_loss(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, the lowest validation loss first, then those that only have a loss."""

    def order(job: Job) -> tuple[bool, float, bool, float]:
        validation, loss = validation_loss(job), _loss(job)
        return validation is None, validation or 0.0, loss is None, loss or 0.0

    return sorted(jobs, key=order)


def best_in_words(group: Job) -> str:
    """`best: seed2 (validation loss 0.31)`; empty without two jobs that have such a loss."""
    first, *others = by_loss(group.members)
    for what, of in (("validation loss", validation_loss), ("loss", _loss)):
        best = of(first)
        if best is not None and any(of(job) is not None for job in others):
            return f"best: {short_name(first)} ({what} {units.loss(best)})"
    return ""


def _loss(job: Job) -> float | None:
    return median_loss(job.snapshot)[0]
