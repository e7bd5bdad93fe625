"""Defines what `compare --json` and `story --json` print.

Every key is always present; null means unknown.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.job.attempts import Attempt, Ending
from ddptop.job.compare import Comparison, Run, losses_at_common_steps
from ddptop.job.record import Job
from ddptop_runner.model.snapshot import SCHEMA, Cause
from ddptop_runner.model.words import Base, JobState, LossState, StepCounts


class ComparedJob(Base, frozen=True, kw_only=True):
    """A compared job."""

    job: str
    state: JobState
    host: str
    command: str
    python: str
    """Interpreter that runs the script."""
    cwd: str
    """Working directory."""
    world_size: int | None
    gpus: list[int]
    """Machine indices of the job's devices; empty if it runs on the CPU."""
    started_at: dt.datetime
    ended_at: dt.datetime | None
    elapsed_s: float | None
    """Time the job has been live, across all attempts."""
    restarts: int | None
    step: int | None
    step_counts: StepCounts | None
    """What `step` counts: `run`, or `attempt` or `epoch` when the step of the whole run is
    unknown."""
    total_steps: int | None
    steps_per_s: float | None
    """Across all attempts, counting only the time spent training."""
    step_time_s: float | None
    """1 / `steps_per_s`."""
    loss: float | None
    """Last finite loss (median across ranks)."""
    loss_state: LossState | None
    """Also `nan` if the loss is infinite; the history does not distinguish the two."""
    loss_bad_since_step: int | None
    """First step after which every loss is NaN or infinite; null if the loss is finite."""
    best_loss: float | None
    """Lowest loss in the run."""
    best_loss_step: int | None
    """Step with the lowest loss."""
    best_loss_after_s: float | None
    """Time from launch to the lowest loss."""
    loss_at_common: float | None
    """Loss at `common_step`, or at `common_s` if that is null."""
    validation_loss_at_common: float | None
    """Validation loss at the last evaluation that all jobs reached; null unless all have one."""


class Given(Base, frozen=True, kw_only=True):
    """An option or setting that differs between the jobs."""

    what: str
    """Name of the option or setting."""
    values: list[str | None]
    """Values in job order; null for jobs without it."""


class LossesAtStep(Base, frozen=True, kw_only=True):
    """The loss of every job at the same step."""

    step: int
    values: list[float | None]
    """Losses in job order."""


class ComparisonReport(Base, frozen=True, kw_only=True):
    """What `compare --json` prints."""

    schema: int = SCHEMA
    jobs: list[ComparedJob]
    common_step: int | None
    """Last step that all jobs reached; null if any job's steps are unknown."""
    common_s: float | None
    """Longest elapsed time that all jobs reached."""
    better: str | None
    """Job with the lowest `compared_by`, even if the difference may be noise."""
    better_by: float | None
    """Relative difference from the next lowest loss; 0.1 is 10%."""
    better_noise: float | None
    """Relative difference that may be noise."""
    compared_by: str
    """`loss`, or the name of a validation loss that all jobs have."""
    differences: list[Given]
    """Options and settings that differ."""
    losses: list[LossesAtStep]
    """Losses at steps that all jobs reached."""


def report(comparison: Comparison) -> ComparisonReport:
    """Convert a comparison to what `compare --json` prints."""
    by, validation = comparison.decisive, comparison.validation
    validated = [None for _ in comparison.runs] if validation is None else validation.losses
    return ComparisonReport(
        jobs=list(map(_job, comparison.runs, comparison.loss.losses, validated)),
        common_step=comparison.loss.step,
        common_s=comparison.loss.after_s,
        better=None if by.best is None else comparison.runs[by.best].job,
        better_by=by.best_by,
        better_noise=None if by.best is None else by.noise,
        compared_by=by.name,
        differences=[
            Given(what=one.what, values=list(one.values)) for one in comparison.differences
        ],
        losses=[
            LossesAtStep(step=step, values=list(values))
            for step, values in losses_at_common_steps(comparison)
        ],
    )


def _job(
    run: Run, loss_at_common: float | None, validation_loss_at_common: float | None
) -> ComparedJob:
    view, curve = run.view, run.curve
    best, bad = curve.best(), curve.bad_since
    finite, step_time_s = curve.last, curve.step_time_s()
    state: LossState | None = "nan" if bad is not None else "ok" if finite is not None else None
    return ComparedJob(
        job=run.job,
        state=view.state,
        host=view.host,
        command=view.command,
        python=view.spec.python,
        cwd=view.spec.cwd,
        world_size=run.ranks,
        gpus=[device.index for device in view.spec.devices or ()],
        started_at=view.created_at,
        ended_at=view.ended_at,
        elapsed_s=view.elapsed_s(view.read_at),
        restarts=run.restarts,
        step=None if run.step is None else run.step.step,
        step_counts=None if run.step is None else run.step.counts,
        total_steps=run.total_steps,
        steps_per_s=None if step_time_s is None else 1 / step_time_s,
        step_time_s=step_time_s,
        loss=finite,
        loss_state=state,
        loss_bad_since_step=None if bad is None else bad.step,
        best_loss=None if best is None else best.loss,
        best_loss_step=None if best is None else best.step,
        best_loss_after_s=None if best is None else best.at_s,
        loss_at_common=loss_at_common,
        validation_loss_at_common=validation_loss_at_common,
    )


class AttemptRow(Base, frozen=True, kw_only=True):
    """One attempt of a job."""

    attempt: int
    """From 0."""
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    """Null while it is live, or if unknown."""
    ran_s: float | None
    """How long it has run, or ran."""
    ending: Ending
    """How it ended. `lives`: it has not; `again`: a user restarted all ranks; `lost`: its processes
    exited without an exit status; `unknown`: another attempt followed for an unknown reason."""
    steps: int | None
    """Steps taken by its slowest rank."""
    cause: Cause | None
    """Why it failed; null if it did not."""
    aftermath: list[str]
    """What ddptop did about its end, one sentence each."""


class StoryReport(Base, frozen=True, kw_only=True):
    """What `story --json` prints."""

    schema: int = SCHEMA
    job: str
    state: JobState
    attempts: list[AttemptRow]
    """The first attempt comes first."""


def story_report(view: Job, attempts: Sequence[Attempt]) -> StoryReport:
    """Convert a job's attempts, latest first, to what `story --json` prints."""
    rows = [
        AttemptRow(
            attempt=one.number,
            started_at=one.started_at,
            ended_at=one.ended_at,
            ran_s=one.ran_s(view.read_at),
            ending=one.ending,
            steps=one.steps,
            cause=one.cause,
            aftermath=list(one.aftermath),
        )
        for one in reversed(attempts)
    ]
    return StoryReport(job=view.name, state=view.state, attempts=rows)
