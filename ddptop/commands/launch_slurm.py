"""`ddptop launch --slurm`: submits a batch job, or uses the allocation that it runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ddptop.output import put, say
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.jobs import slurm
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.launch.slurm import allocation, batch_script, check_sbatch

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
                "remove the sbatch options, or submit from outside of the allocation",
            )
        raise UsageError("an allocation cannot be used yet", "submit from a login node")
    plan = slurm.plan(request, os.environ, tuple(sbatch))
    script = batch_script(
        plan.batch(own_command("ddptop", *step_arguments(request, plan, typed_options)))
    )
    for note in plan.notes:
        say(f"ddptop: {note}")
    if options["dry_run"]:
        put(script.rstrip("\n"))
        return 0
    job = slurm.submit(script, sbatch, plan.name)
    say(f"ddptop: submitted Slurm job {job}; once it runs: ddptop attach {plan.name}")
    put(plan.name)
    return 0


def step_arguments(
    request: LaunchRequest, plan: slurm.SlurmPlan, typed_options: Sequence[str]
) -> list[str]:
    """The command line of the batch step: as typed, with what depends on this shell settled."""
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
