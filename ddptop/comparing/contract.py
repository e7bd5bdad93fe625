"""A comparison as `compare --json` prints it. Every key is always there, null when unknown."""

from __future__ import annotations

import datetime as dt

from ddptop.comparing.differences import Comparison, losses_at_common_steps
from ddptop.comparing.run import Run
from ddptop_runner.model import SCHEMA, Base
from ddptop_runner.model_words import JobState, LossState, StepCounts


class ComparedJob(Base, frozen=True, kw_only=True):
    """One job of a comparison."""

    job: str
    state: JobState
    host: str
    command: str
    python: str
    cwd: str
    world_size: int | None
    gpus: list[int]
    """Machine indices of the devices that it was given; empty on CPU."""
    started_at: dt.datetime
    ended_at: dt.datetime | None
    elapsed_s: float | None
    restarts: int | None
    step: int | None
    step_counts: StepCounts | None
    """What `step` counts: run, or attempt or epoch where nothing tells the step of the run."""
    total_steps: int | None
    steps_per_s: float | None
    """Of training, over all attempts."""
    step_time_s: float | None
    """1 / `steps_per_s`."""
    loss: float | None
    """The last one that was finite."""
    loss_state: LossState | None
    """`nan` also where it is infinite: the history does not tell the two apart."""
    loss_bad_since_step: int | None
    best_loss: float | None
    best_loss_step: int | None
    best_loss_after_s: float | None
    loss_at_common: float | None


class Given(Base, frozen=True, kw_only=True):
    """Something that was given to the jobs, and is not the same in all of them."""

    what: str
    values: list[str | None]
    """In the jobs' order; null where it was not given."""


class LossesAtStep(Base, frozen=True, kw_only=True):
    """The losses when all jobs had taken so many steps."""

    step: int
    values: list[float | None]


class ComparisonReport(Base, frozen=True, kw_only=True):
    """Several jobs beside each other."""

    schema: int = SCHEMA
    jobs: list[ComparedJob]
    common_step: int | None
    """The last step that all came to; null where steps are not known of all."""
    common_s: float | None
    """The last moment since its start that all came to."""
    better: str | None
    """The job whose loss is least at `common_step`, or without one at `common_s`."""
    better_by: float | None
    """By which share of the next one's loss."""
    differences: list[Given]
    losses: list[LossesAtStep]


def report(comparison: Comparison) -> ComparisonReport:
    """The comparison as scripts get it."""
    best = comparison.best
    return ComparisonReport(
        jobs=[_job(run, comparison.losses[place]) for place, run in enumerate(comparison.runs)],
        common_step=comparison.step,
        common_s=comparison.after_s,
        better=None if best is None else comparison.runs[best].job,
        better_by=comparison.best_by,
        differences=[
            Given(what=one.what, values=list(one.values)) for one in comparison.differences
        ],
        losses=[
            LossesAtStep(step=step, values=list(values))
            for step, values in losses_at_common_steps(comparison)
        ],
    )


def _job(run: Run, loss_at_common: float | None) -> ComparedJob:
    view, curve = run.view, run.curve
    best, bad = curve.best(), curve.bad_since
    finite = next((one.loss for one in reversed(curve.samples) if one.loss is not None), None)
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
        elapsed_s=view.elapsed_s,
        restarts=run.restarts,
        step=None if run.step is None else run.step.step,
        step_counts=None if run.step is None else run.step.counts,
        total_steps=run.total_steps,
        steps_per_s=curve.steps_per_s(),
        step_time_s=curve.step_time_s(),
        loss=finite,
        loss_state=state,
        loss_bad_since_step=None if bad is None else bad.step,
        best_loss=None if best is None else best.loss,
        best_loss_step=None if best is None else best.step,
        best_loss_after_s=None if best is None else best.at_s,
        loss_at_common=loss_at_common,
    )
