"""`ddptop launch --slurm`: submits a batch job, or uses the allocation that it runs in."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ddptop.commands.launch import become_attach, describe, prepare
from ddptop.output import info, is_terminal, put
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.job.registry import is_there
from ddptop_runner.jobs import launch as launcher
from ddptop_runner.jobs import slurm, slurm_holder
from ddptop_runner.jobs.slurm_holder import (
    NOT_WORTH_REQUEUEING,
    read_requeues,
    why_no_requeue,
    write_requeues,
)
from ddptop_runner.jobs.slurm_queue import forget_queue, read_queue
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.launch.slurm import Allocation, Batch, allocation, batch_script, check_sbatch

LEFT_OUT = {"--slurm": 0, "--dry-run": 0, "-d": 0, "--detach": 0, "--name": 1, "--python": 1}
"""Options that the batch step does not get as typed, and how many values follow each."""


def run(
    request: LaunchRequest,
    options: Mapping[str, Any],
    sbatch: Sequence[str],
    typed_options: Sequence[str],
) -> int:
    """Submit the job and print its name; in an allocation, start it."""
    check_sbatch(sbatch)
    found = allocation(os.environ)
    if found is not None:
        if sbatch:
            raise UsageError(
                f"{sbatch[0]}: this shell is in Slurm job {found.job}, whose resources are fixed",
                "remove the sbatch options, or submit from outside the allocation",
            )
        return use(request, found, options)
    plan = slurm.plan(request, os.environ, tuple(sbatch))
    if not options["dry_run"]:
        plan = replace(plan, name=unqueued_name(plan.name, is_derived=request.name is None))
    command = own_command("ddptop", *step_arguments(request, plan, typed_options))
    script = batch_script(replace(plan, command=tuple(command)))
    job = None if options["dry_run"] else slurm.submit(script, sbatch, plan.name)
    for note in plan.notes:
        info(f"ddptop: {note}")
    if job is None:
        put(script.rstrip("\n"))
        return 0
    forget_queue()
    info(f"ddptop: submitted Slurm job {job}; once it runs: ddptop attach {plan.name}")
    put(plan.name)
    return 0


def unqueued_name(name: str, *, is_derived: bool) -> str:
    """The name of a new job, which neither a job queued in Slurm nor a run folder has.

    A derived name gets the first free suffix.

    Raises:
        UsageError: a queued job has the name that the user gave.
    """
    forget_queue()
    queue = read_queue()
    jobs = [] if queue is None or queue.jobs is None else queue.jobs
    ids = {one.name: one.id for one in jobs}
    if is_derived:
        names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
        return next(one for one in names if one not in ids and not is_there(one))
    if name in ids:
        raise UsageError(
            f"the name {name!r} is in use by Slurm job {ids[name]}",
            f"choose another name, or cancel that job: scancel {ids[name]}",
        )
    return name


def use(request: LaunchRequest, found: Allocation, options: Mapping[str, Any]) -> int:
    """Start the job in the allocation that this process runs in.

    In the batch step, whose end is the end of the allocation, this process becomes the job's
    holder.
    """
    given = request.gpus
    request = slurm.in_allocation(request, found, os.environ)
    if found.is_batch:  # the holder starts it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    before = slurm.to_resume(found) if found.is_batch else None
    if before is not None:
        request = replace(request, name=None)
        counts = read_requeues(before.folder, found.job)
        if counts.count < found.restarts:  # preempted, or requeued by the user
            counts = replace(counts, count=found.restarts)
            write_requeues(before.folder, counts)
        if (why := why_no_requeue(counts, options["max_requeues"])) is not None:
            info(f"ddptop: {before.job} is not continued: {why}")
            return NOT_WORTH_REQUEUEING
    try:
        plan = prepare(request)
    except DdptopError as error:
        if before is None or options["dry_run"]:
            raise
        info(f"ddptop: {error}")
        holder = slurm_holder.JobHolder(before.folder, found, options["max_requeues"])
        return holder.give_back(before)
    if given is None and request.gpus == "none":
        note = f"the allocation of Slurm job {found.job} has no GPUs; the job trains on CPUs"
        plan = replace(plan, notes=(*plan.notes, note))
    if options["dry_run"]:
        put(describe(plan))
        return 0
    for note in plan.notes:
        info(f"ddptop: {note}")
    if before is not None:
        slurm.resume(before, plan)
        folder = before.folder
    else:
        view, trouble = launcher.start(plan, waits=False)
        folder = view.folder
        if trouble:
            info(f"ddptop: {trouble}")
    argv = slurm_holder.job_argv(folder, options["max_requeues"])
    put(folder.job)
    if found.is_batch:
        sys.stdout.flush()
        os.execv(argv[0], argv)
    slurm_holder.start_detached(folder, argv)
    if is_terminal() and not options["detach"]:
        become_attach(folder.job)
    return 0


def step_arguments(request: LaunchRequest, plan: Batch, typed_options: Sequence[str]) -> list[str]:
    """The command line of the batch step: as typed, with values from this shell filled in."""
    kept = []
    words = iter(typed_options)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in LEFT_OUT:
            kept.append(word)
        elif LEFT_OUT[name] and not equals:
            next(words, None)
    target = ["-m", request.target] if request.kind == "module" else [request.target]
    settled = ["--name", plan.name, "--python", plan.python]
    return ["launch", "--slurm", *settled, *kept, *target, *request.args]
