"""`ddptop compare`: the losses of several jobs on one axis, and what differs between them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ddptop.job.compare import (
    MOST_COMPARED,
    Comparison,
    Difference,
    LossesAtStep,
    Run,
    companions,
    compare,
    losses_at_common_steps,
)
from ddptop.job.groups import by_loss
from ddptop.job.record import own_job
from ddptop.output import info, is_terminal, put_json
from ddptop_runner.base.errors import NoSuchJobError, UsageError
from ddptop_runner.job.registry import JobView, all_jobs, group_of, resolve
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.model.spec import GitState
from ddptop_runner.model.words import Base, JobState, LossState, StepCounts

GATES = {
    "loss": "loss_at_common",
    "validation_loss": "validation_loss_at_common",
    "best_loss": "best_loss",
    "step_time": "step_time_s",
    "steps_per_s": "steps_per_s",
    "elapsed": "elapsed_s",
}
"""What `--fail-if` compares, by name: fields of `ComparedJob`."""


class Gate(NamedTuple):
    """A condition of `--fail-if` on the second job, relative to the first."""

    name: str
    is_above: bool
    """Whether values above the limit fail; otherwise, those below it."""
    percent: float

    def verdict(self, first: float | None, second: float | None) -> tuple[bool, str]:
        """Whether the gate fails, and a sentence; an unknown value fails."""
        if first is None or second is None or not first:
            return True, f"{self.name}: unknown"
        change = 100 * (second - first) / abs(first)
        is_met = change > self.percent if self.is_above else change < self.percent
        limit = f"{'>' if self.is_above else '<'} {self.percent:+g}%"
        outcome = "fails" if is_met else "passes"
        return (
            is_met,
            f"{self.name}: {first:.4g} to {second:.4g} ({change:+.1f}%, {limit} {outcome})",
        )


def parse_gate(text: str) -> Gate:
    """The condition `NAME > +N%` or `NAME < -N%`.

    Raises:
        UsageError: it is malformed, or names nothing that is compared.
    """
    found = re.fullmatch(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", text)
    if found is None:
        raise UsageError(f"--fail-if {text!r} is not valid", "use one like 'step_time > +5%'")
    name, sign, percent = found.groups()
    if name not in GATES:
        raise UsageError(f"--fail-if cannot compare {name!r}", f"use {', '.join(GATES)}")
    return Gate(name, sign == ">", float(percent))


def find(names: Sequence[str]) -> list[JobView]:
    """Return the jobs with these names, or of the sweep with that name, the best first.

    Raises:
        NoSuchJobError: one does not exist.
        UsageError: a name is ambiguous, one job is named twice, or there are too many.
    """
    if len(names) == 1 and (sweep := group_of(names[0])):
        own = {view.job: view for view in sweep}
        return [own[job.name] for job in by_loss(map(own_job, sweep))][:MOST_COMPARED]
    if len(names) > MOST_COMPARED:
        raise UsageError(f"cannot compare {len(names)} jobs", f"list at most {MOST_COMPARED}")
    views = [resolve(name) for name in names]
    jobs = [view.job for view in views]
    if twice := next((job for job in jobs if jobs.count(job) > 1), None):
        raise UsageError(f"{twice} is listed twice", "list a different job to compare it with")
    return views


def run(names: Sequence[str], as_json: bool, *, fail_if: Sequence[str] = (), **screen: Any) -> int:
    """Show jobs side by side until the user quits, or print the comparison.

    Given one job, the screen offers the others; as JSON, it is compared with the newest job of the
    same script, or otherwise with the newest job.

    Returns:
        1 if a condition of `fail_if` holds for the second job, otherwise 0.

    Raises:
        NoSuchJobError: a job does not exist, or there is none to compare it with.
        UsageError: a name is ambiguous, or there is no terminal.
        DdptopError: a history cannot be read.
    """
    gates = list(map(parse_gate, fail_if))
    views = find(names)
    if gates and len(views) != 2:
        raise UsageError("--fail-if compares two jobs", "name the baseline first")
    if as_json or gates:
        found = _report(views)
        if as_json:
            put_json(found)
        return _judge(found, gates)
    if not is_terminal():
        given = " ".join(view.job for view in views)
        raise UsageError(
            "compare needs a terminal", f"use ddptop compare {given} --json in scripts"
        )
    from ddptop.commands import attach
    from ddptop.tui.messages import ScreenWanted

    wanted = ScreenWanted("compare", tuple(view.job for view in views))
    return attach.run(None, opening=wanted, **screen)


def _judge(found: ComparisonReport, gates: Sequence[Gate]) -> int:
    status, (first, second, *_) = 0, found.jobs
    for gate in gates:
        field = GATES[gate.name]
        fails, sentence = gate.verdict(getattr(first, field), getattr(second, field))
        info(f"ddptop: {sentence}")
        status |= fails
    return int(status)


def _report(views: list[JobView]) -> ComparisonReport:
    from ddptop.sources.compare import read_run
    from ddptop.sources.history import JobHistory

    jobs = [own_job(view) for view in views]
    if len(jobs) == 1:
        others = companions(map(own_job, all_jobs()), jobs[0].name)
        if not others:
            raise NoSuchJobError(
                f"no other job to compare {jobs[0].name} with",
                "relaunch it with different arguments first",
            )
        jobs.append(others[0])
    runs = [read_run(job, JobHistory(job.folder.history_db)) for job in jobs]
    return report(compare(runs))


# --- JSON: every key is always present; null means unknown ---


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
    git: GitState | None
    """Commit that it was launched from; null without a git repository."""
    note: str | None
    """Text given to `launch --note`."""
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
    differences: tuple[Difference, ...]
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
        differences=comparison.differences,
        losses=losses_at_common_steps(comparison),
    )


def _job(
    run: Run, loss_at_common: float | None, validation_loss_at_common: float | None
) -> ComparedJob:
    view, curve, snapshot = run.view, run.curve, run.view.snapshot
    step = run_step.of_snapshot(snapshot)
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
        git=view.spec.git,
        note=view.spec.note,
        world_size=snapshot.world_size,
        gpus=[device.index for device in view.spec.devices or ()],
        started_at=view.created_at,
        ended_at=view.ended_at,
        elapsed_s=view.elapsed_s(view.read_at),
        restarts=snapshot.attempt,
        step=None if step is None else step.step,
        step_counts=None if step is None else step.counts,
        total_steps=snapshot.total_steps,
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
