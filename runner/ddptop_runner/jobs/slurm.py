"""Submits jobs to Slurm."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import run_folder, shared_file_system, state_home
from ddptop_runner.launch.gpus.choice import parse_gpus
from ddptop_runner.launch.program import name_for
from ddptop_runner.launch.request import (
    LaunchRequest,
    folder_of,
    overrides_of,
    require_probe,
    require_script,
    require_text,
)
from ddptop_runner.launch.slurm import Batch, submitted
from ddptop_runner.model.spec import check_name

SUBMIT_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class SlurmPlan:
    """A job to be submitted."""

    name: str
    python: str
    cwd: str
    nodes: tuple[int, int]
    gpus_per_node: int | None
    options: tuple[str, ...]
    exports: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def batch(self, command: Sequence[str]) -> Batch:
        """The batch script for it.

        Args:
            command: what the batch step runs.
        """
        return Batch(
            name=self.name,
            nodes=self.nodes,
            cwd=self.cwd,
            command=tuple(command),
            exports=self.exports,
            gpus_per_node=self.gpus_per_node,
            options=self.options,
        )


def gpus_per_node(text: str | None) -> int | None:
    """How many devices --gpus asks for on each node; None: those that sbatch's options ask for.

    Raises:
        UsageError: it names devices, which Slurm chooses.
    """
    if text is None or text in ("all", "none"):
        return None
    parse_gpus(text)
    count = text.partition("auto:")[2]
    if not count.isdigit():
        raise UsageError(
            f"--gpus {text} names devices, but Slurm chooses them",
            "use --gpus auto:N for N devices on each node",
        )
    return int(count)


def require_slurm(request: LaunchRequest) -> None:
    """Refuse what a job in Slurm cannot have.

    Raises:
        UsageError: naming it, and what to use instead.
    """
    if request.kind == "command" or request.launcher is not None:
        what = f"--launcher {request.launcher}" if request.launcher else "a command"
        raise UsageError(
            f"--slurm starts the ranks itself, not {what}", "pass a SCRIPT or -m MODULE"
        )
    if request.hosts:
        raise UsageError("--slurm chooses the machines, not --hosts", "remove one of them")
    if request.wait_gpus:
        raise UsageError("--wait-gpus has no effect with --slurm, which queues jobs", "remove it")
    if request.nproc is not None and request.nproc < 1:
        raise UsageError(
            f"--nproc {request.nproc}: a node needs at least one rank", "use 1 or more"
        )
    if request.hang_timeout_s is not None:
        require_probe("--hang-timeout", probe=request.probe)
    if request.on_nan != "alert":
        require_probe(f"--on-nan {request.on_nan}", probe=request.probe)


def plan(
    request: LaunchRequest,
    env: Mapping[str, str],
    options: tuple[str, ...],
) -> SlurmPlan:
    """Check a request on the login node.

    Args:
        request: what was asked.
        env: the shell's variables.
        options: of sbatch.

    Raises:
        UsageError: naming what cannot be done and what to do instead.
    """
    require_slurm(request)
    gpus = gpus_per_node(request.gpus)
    require_text([request.target, *request.args, *options, request.cwd or "", request.python or ""])
    overrides_of(request.env)
    cwd = folder_of(request.cwd)
    if request.kind == "script":
        require_script(cwd, request.target)
    python = interpreters.choose(request.python, env)
    interpreters.require_torch(interpreters.inspect(python))
    if not request.is_dry and shutil.which("sbatch", path=env.get("PATH")) is None:
        raise UsageError("sbatch is not on PATH", "log in to a Slurm login node, or omit --slurm")
    name = name_for(request) if request.name is None else check_name(request.name)
    if request.name is not None and run_folder(name).path.exists():
        raise UsageError(
            f"the name {name!r} is in use",
            f"choose another name, or remove that job: ddptop rm {name}",
        )
    notes = []
    if shared_file_system(state_home()) is None:
        notes.append(
            f"run folders are in {state_home()}, a local disk: unless the nodes share it, set"
            " DDPTOP_HOME to a directory that they do"
        )
    home = env.get("DDPTOP_HOME")
    return SlurmPlan(
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
    """Submit a batch script; Slurm's id of the job.

    Args:
        script: it.
        options: of sbatch, which come before the shell's variables when given as arguments.
        name: of the job.

    Raises:
        DdptopError: when Slurm refuses.
    """
    argv = ["sbatch", "--parsable", *options]
    try:
        done = subprocess.run(
            argv,
            input=script,
            capture_output=True,
            text=True,
            timeout=SUBMIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DdptopError(
            f"sbatch did not respond within {SUBMIT_TIMEOUT_S:g} s",
            "check with squeue whether the job was submitted",
        ) from error
    except OSError as error:
        raise DdptopError(f"sbatch cannot be run ({error.strerror})", "check PATH") from error
    job = submitted(done.stdout)
    if done.returncode or job is None:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        line = (said[-1] if said else f"exit status {done.returncode}").strip()
        raise DdptopError(
            f"Slurm refused {name}: {line.removeprefix('sbatch: error: ')}",
            "see ddptop launch --slurm --dry-run for the script",
        )
    return job
