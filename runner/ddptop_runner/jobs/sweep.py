"""Launches the jobs of `--array` as one group."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ddptop_runner.base.errors import DdptopError, LaunchInterruptedError, UsageError
from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.registry import JobView, group_of
from ddptop_runner.jobs import launch
from ddptop_runner.launch.array import ArrayJob, expand
from ddptop_runner.launch.program import name_for
from ddptop_runner.launch.request import LaunchPlan, LaunchRequest, require_text
from ddptop_runner.model.spec import check_name


def prepare(
    request: LaunchRequest,
    arrays: Mapping[str, Sequence[str]],
    parallel: int | None,
    env: Mapping[str, str],
) -> list[LaunchPlan]:
    """Check all jobs of a sweep and decide everything; changes nothing.

    Raises:
        UsageError: one of the jobs cannot be launched as requested.
    """
    if request.hosts:
        raise UsageError("--array works on one machine only, not with --hosts", "remove one")
    group = _group_name(request)
    jobs = expand(arrays, group, request.args)
    for job in jobs:
        launch.require_free(job.name)
        require_text(job.args)
    request = replace(request, may_wait=not request.force, parallel=parallel)
    first = replace(request, name=jobs[0].name, args=jobs[0].args)
    plan = launch.prepare(first, env)
    return [_plan_of(job, plan, group, place) for place, job in enumerate(jobs)]


def _plan_of(job: ArrayJob, first: LaunchPlan, group: str, place: int) -> LaunchPlan:
    """The plan of one of the jobs; they are queued in their order."""
    job_id = f"{job.name}@{os.urandom(8).hex()}"
    later = dt.timedelta(milliseconds=place)  # leaves room for `queue move --before`
    choice, queue = first.choice, first.spec.queue
    if queue is not None and choice.waits:
        choice = choice.queued(since=queue.since + later)
    spec = replace(
        first.spec,
        job=job.name,
        job_id=job_id,
        created_at=first.spec.created_at + later,
        args=list(job.args),
        queue=choice.queue,
        group=group,
        array=job.values,
    )
    job_env = {**first.job_env, "DDPTOP_JOB_ID": job_id}
    return replace(first, spec=spec, choice=choice, job_env=job_env)


def _group_name(request: LaunchRequest) -> str:
    """The requested name, or the first free one derived from the script.

    Raises:
        UsageError: the requested one is invalid or in use.
    """
    if request.name is not None:
        name = check_name(request.name)
        if _is_used(name):
            raise UsageError(
                f"the name {name!r} is in use", f"choose another name, or run ddptop rm {name}"
            )
        return name
    base = name_for(request)
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, 10_000))
    return next(name for name in names if not _is_used(name))


def _is_used(name: str) -> bool:
    return os.path.lexists(run_folder(name).path) or bool(group_of(name))


def start(plans: Sequence[LaunchPlan]) -> tuple[list[JobView], list[str]]:
    """Start the jobs in order; returns them, and notes on what was not as planned.

    Raises:
        DdptopError: one did not start; says how many did, and how to stop them.
    """
    started: list[JobView] = []
    notes: dict[str | None, None] = {}
    try:
        for plan in plans:
            view, note = launch.start(plan)
            started.append(view)
            if not view.spec.is_queued:  # each would name other jobs
                notes[note] = None
    except (DdptopError, KeyboardInterrupt) as error:
        if not started:
            raise
        group, why = plans[0].spec.group, "interrupted"
        kind: type[DdptopError] = LaunchInterruptedError
        if isinstance(error, DdptopError):
            kind, why = DdptopError, error.message
        raise kind(
            f"only {len(started)} of {len(plans)} jobs of {group} were launched: {why}",
            f"to stop them, run ddptop stop {group}",
        ) from error
    return started, [note for note in notes if note]
