"""Plans launches with `--hosts`: queries all hosts at once, and judges them together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.units import plural
from ddptop_runner.devices.words import names_of
from ddptop_runner.host import handover
from ddptop_runner.jobs.launch import checked, name_of_job, plan_of
from ddptop_runner.launch import preflight
from ddptop_runner.launch.device_check import Findings
from ddptop_runner.launch.gpus.choice import DeviceChoice
from ddptop_runner.launch.program import Program, starting_ranks
from ddptop_runner.launch.readiness import Judged, Wanted
from ddptop_runner.launch.request import LaunchPlan, LaunchRequest, fewest_nodes, script_of
from ddptop_runner.launch.survey import Survey
from ddptop_runner.model.spec import NodeSpec, Placement


def prepare(
    request: LaunchRequest,
    env: Mapping[str, str],
    show: Callable[[Judged], None],
    show_check: Callable[[Findings], None],
) -> LaunchPlan:
    """Query all hosts, and decide everything; starts no job.

    Args:
        request: the request.
        env: the launching shell's variables.
        show: called with the result of the survey, even if it is a refusal.
        show_check: called with the findings of `--check`.

    Raises:
        UsageError: names what cannot be done, and what to do instead.
    """
    cwd, overrides = checked(request)
    name_of_job(request)  # refuse a bad name before querying hosts
    fewest = fewest_nodes(request.nodes, len(request.hosts))
    python = _python(request, env)
    wanted = _wanted(request, cwd, python)
    with Survey(request.hosts, request.slurm_job) as survey:
        judged = survey.collect(wanted, request.gpus, overrides)
        show(judged)
        if judged.refusals:  # `show` got all of them
            raise UsageError(str(judged.refusals[-1]))
        if request.check:
            found = survey.check(judged, {**handover.carried(env), **overrides})
            show_check(found)
            if found.broken:
                raise UsageError(found.broken[-1], "leave it out of --hosts until it is repaired")
    by: Literal["ssh", "slurm"] = "ssh" if request.slurm_job is None else "slurm"
    placement = Placement(
        by=by,
        nodes=judged.nodes,
        min_nodes=fewest,
        slurm_job=request.slurm_job,
        force=request.force,
    )
    if request.node_timeout_s is not None:
        placement = replace(placement, node_timeout_s=request.node_timeout_s)
    if request.orphan_timeout_s is not None:
        placement = replace(placement, orphan_timeout_s=request.orphan_timeout_s)
    program = _program(request, cwd, python, judged.nodes)
    plan = plan_of(request, env, cwd, overrides, DeviceChoice(None), program, placement)
    plan.job_env.update({**handover.carried(env), **plan.job_env})
    return plan


def _python(request: LaunchRequest, env: Mapping[str, str]) -> str:
    """The interpreter for all hosts; it need not exist on this one."""
    asked = request.python
    if asked is not None and Path(asked).is_absolute() and shutil.which(asked) is None:
        return asked
    return interpreters.choose(asked, env)


def _wanted(request: LaunchRequest, cwd: Path, python: str) -> Wanted:
    script = script_of(request.kind, request.target, cwd)
    return Wanted(
        target=request.target,
        kind=request.kind,
        cwd=str(cwd),
        python=python,
        nproc=request.nproc,
        force=request.force,
        script_digest=None if script is None else preflight.digest_of(script),
        files=None if script is None else preflight.digests(cwd),
    )


def _program(request: LaunchRequest, cwd: Path, python: str, nodes: list[NodeSpec]) -> Program:
    ranks = sum(node.nproc for node in nodes)
    spawning = starting_ranks(request, cwd)
    notes = () if spawning is None else (f"{spawning}, so each rank would start more",)
    return Program(request.kind, request.target, request.args, python, ranks, notes=notes)


def node_in_words(node: NodeSpec) -> str:
    """`b: 2 ranks on GPUs 0-1, at 10.0.0.2`."""
    devices = names_of(node.devices) if node.devices else "CPU"
    return f"{node.host}: {plural(node.nproc, 'rank')} on {devices}, at {node.address}"


def in_words(placement: Placement) -> str:
    """`3 machines (2 are enough): a, b, c`."""
    nodes = placement.nodes
    names = ", ".join(node.host for node in nodes)
    if placement.min_nodes == len(nodes):
        return f"{plural(len(nodes), 'machine')}: {names}"
    enough = "is" if placement.min_nodes == 1 else "are"
    return f"{plural(len(nodes), 'machine')} ({placement.min_nodes} {enough} enough): {names}"
