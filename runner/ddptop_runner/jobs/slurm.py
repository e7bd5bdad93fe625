"""Submits jobs to Slurm, and prepares those that run inside an allocation."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ddptop_runner.base import interpreters, programs
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import (
    RunFolder,
    create_local_dir,
    local_dir_reason,
    shared_file_system,
    state_home,
)
from ddptop_runner.base.units import whole
from ddptop_runner.job.registry import JobView, all_jobs
from ddptop_runner.jobs.launch import require_free, write_moved
from ddptop_runner.launch.gpus.choice import parse_gpus
from ddptop_runner.launch.program import name_for
from ddptop_runner.launch.request import (
    HostRequest,
    LaunchPlan,
    LaunchRequest,
    folder_of,
    overrides_of,
    require_script,
    require_text,
    require_valid,
)
from ddptop_runner.launch.slurm import Allocation, Batch, refusal, submitted
from ddptop_runner.model.spec import check_name
from ddptop_runner.node.guardian_start import start_guardian

SUBMIT_TIMEOUT_S = 60.0


def gpus_per_node(text: str | None) -> int | None:
    """The devices per node that --gpus requests; None if that is left to sbatch's options.

    Raises:
        UsageError: the text names devices, but Slurm chooses them.
    """
    if text is None or text in ("all", "none"):
        return None
    parse_gpus(text)
    count = whole(text.partition("auto:")[2])
    if count is None:
        raise UsageError(
            f"--gpus {text} names devices, but Slurm chooses them",
            "use --gpus auto:N for N devices on each node",
        )
    return count


def require_slurm(request: LaunchRequest) -> None:
    """Refuse options that do not work with Slurm.

    Raises:
        UsageError: names the option, and what to use instead.
    """
    if request.kind == "command":
        raise UsageError(
            "--slurm starts the ranks itself, not a command", "pass a SCRIPT or -m MODULE"
        )
    if request.hosts:
        raise UsageError("--slurm chooses the machines, not --hosts", "remove one of them")
    for option in (option for option, given in request.waits.items() if given):
        raise UsageError(f"{option} has no effect with --slurm, which queues jobs", "remove it")
    require_valid(request)


def plan(
    request: LaunchRequest,
    env: Mapping[str, str],
    options: tuple[str, ...],
) -> Batch:
    """Check a request on the login node; returns the job to submit, without its command.

    Args:
        request: the request.
        env: the shell's variables.
        options: sbatch's options.

    Raises:
        UsageError: names what cannot be done, and what to do instead.
    """
    require_slurm(request)
    gpus = gpus_per_node(request.gpus)
    require_text(options)
    overrides_of(request.env)
    cwd = folder_of(request.cwd)
    if request.kind == "script":
        require_script(cwd, request.target)
    python = interpreters.choose(request.python, env)
    notes = interpreters.require_torch(interpreters.inspect(python))
    if not request.is_dry and shutil.which("sbatch", path=env.get("PATH")) is None:
        raise UsageError("sbatch is not on PATH", "log in to a Slurm login node, or omit --slurm")
    name = name_for(request) if request.name is None else check_name(request.name)
    array = any(one.partition("=")[0] in ("-a", "--array") for one in options)
    if request.name is not None and not array:
        require_free(name)
    if shared_file_system(state_home()) is None:
        notes.append(
            f"run folders are in {state_home()}, a local disk: unless the nodes share it, set"
            " DDPTOP_HOME to a directory that they do"
        )
    home = env.get("DDPTOP_HOME")
    return Batch(
        name=name,
        python=python,
        cwd=str(cwd),
        nodes=request.nodes or (1, 1),
        gpus_per_node=gpus,
        options=options,
        exports=(("DDPTOP_HOME", home),) if home else (),
        notes=tuple(notes),
    )


def submit(script: str, options: Sequence[str], name: str) -> str:
    """Submit a batch script; returns Slurm's job ID.

    Args:
        script: the script.
        options: sbatch's options; as arguments, they override the shell's SBATCH_ variables.
        name: the job's name.

    Raises:
        DdptopError: Slurm refused the job.
    """
    argv = ["sbatch", "--parsable", *options, f"--job-name={name}"]  # overrides SBATCH_JOB_NAME
    try:
        done = programs.run(argv, SUBMIT_TIMEOUT_S, data=script.encode())
    except subprocess.TimeoutExpired as error:
        raise DdptopError(
            f"sbatch did not respond within {SUBMIT_TIMEOUT_S:g} s",
            "check with squeue whether the job was submitted",
        ) from error
    except OSError as error:
        raise DdptopError(f"sbatch cannot be run ({error.strerror})", "check PATH") from error
    job = submitted(done.stdout)
    if done.returncode or job is None:
        why = refusal(done.stderr) or f"sbatch exited with status {done.returncode}"
        raise DdptopError(
            f"Slurm refused {name}: {why}", "see ddptop launch --slurm --dry-run for the script"
        )
    return job


def nodes_in(node_list: str) -> tuple[str, ...]:
    """The nodes of a list such as `n[1-2],login`, in order.

    Raises:
        DdptopError: Slurm cannot read it.
    """
    if re.fullmatch(r"[A-Za-z0-9_.-]*", node_list):
        return (node_list,) if node_list else ()
    try:
        done = programs.run(["scontrol", "show", "hostnames", "--", node_list], SUBMIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DdptopError(f"scontrol cannot be run ({error})", "check PATH") from error
    if done.returncode or not done.stdout.strip():
        raise DdptopError(f"scontrol cannot read the node list {node_list[:60]!r}")
    return tuple(done.stdout.split())


# -- inside an allocation --------------------------------------------------------------------------


def in_allocation(
    request: LaunchRequest, found: Allocation, env: Mapping[str, str]
) -> LaunchRequest:
    """Add the machines of this process's allocation to the request.

    If the allocation is this node only, the job is one on a single machine, without links.

    Raises:
        UsageError: names what cannot be done, and what to do instead.
    """
    require_slurm(request)
    if found.in_step and env.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        raise UsageError(
            "srun started several tasks of this command, but --slurm starts the nodes itself",
            "run ddptop launch --slurm once, without srun",
        )
    gpus_per_node(request.gpus)
    nodes = nodes_in(found.node_list)
    fewest, most = request.nodes or (len(nodes),) * 2
    if not nodes or fewest > len(nodes):
        raise UsageError(
            f"--nodes {fewest}, but Slurm job {found.job} has {len(nodes)}",
            f"use --nodes {len(nodes)} or fewer, or a larger allocation",
        )
    if found.on_node and found.gpus_on_node is None:
        if request.nproc is None or request.gpus not in (None, "none"):
            raise UsageError(
                f"the allocation of Slurm job {found.job} has no GPUs",
                "request them with --gpus-per-node=N of sbatch, or pass --nproc N without --gpus"
                " to train on CPUs",
            )
        request = replace(request, gpus="none")  # the node's GPUs may be another job's
    nodes = nodes[:most]
    if request.name is not None and found.array_task is not None:
        request = replace(request, name=check_name(f"{request.name}-{found.array_task}"))
    request = replace(request, slurm_job=found.job)
    if nodes == (env.get("SLURMD_NODENAME"),):
        return replace(request, nodes=None)
    hosts = tuple(HostRequest(host) for host in nodes)
    return replace(request, hosts=hosts, nodes=(min(fewest, len(nodes)), len(nodes)))


def to_resume(found: Allocation) -> JobView | None:
    """The job that this allocation ran before Slurm requeued it; None if there is none."""
    if not found.restarts:
        return None
    return next((view for view in all_jobs() if view.spec.slurm_job == found.job), None)


def resume(view: JobView, plan: LaunchPlan) -> None:
    """Hand over a requeued job's next attempt to a guardian, which the caller must hold.

    Args:
        view: the job, all of whose processes Slurm has ended.
        plan: the plan, made as for a new job, because the nodes may differ.
    """
    folder = RunFolder(view.folder.path)
    old = view.spec
    spec = replace(plan.spec, job=old.job, job_id=old.job_id, created_at=old.created_at)
    if local_dir_reason(folder):
        create_local_dir(folder)
    write_moved(folder, spec, old.host)
    last = view.snapshot.attempt if view.snapshot and view.snapshot.attempt is not None else -1
    job_env = {**plan.job_env, "DDPTOP_JOB_ID": old.job_id}
    start_guardian(folder, spec, job_env, (), attempt=last + 1, waits=False)
