"""`ddptop watch slurm:ID`: what runs on a node of a Slurm job, through a step in its allocation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError, NoSuchJobError, UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.jobs.slurm import nodes_in
from ddptop_runner.jobs.slurm_queue import TIMEOUT_S
from ddptop_runner.launch.slurm import link_argv, step_environment, step_problem

_TARGET = re.compile(r"slurm:([0-9]{1,10})(?:@([A-Za-z0-9_.-]+))?")


def run_there(target: str, *, readonly: bool, ascii_only: bool | None, terminal: bool) -> int:
    """Show that node until the user quits; return the exit status.

    Raises:
        UsageError: the target is invalid, or there is no terminal.
        NoSuchJobError: there is no such job, or it is not running.
        DdptopError: Slurm refused the step.
    """
    found = _TARGET.fullmatch(target)
    if found is None:
        raise UsageError(f"{target!r} is not slurm:ID or slurm:ID@NODE", "list IDs with squeue")
    if shutil.which("srun") is None or shutil.which("squeue") is None:
        raise UsageError("srun and squeue are not on PATH", "log in to a Slurm login node")
    nodes = nodes_of(found[1])
    node = found[2] or nodes[0]
    if node not in nodes:
        raise UsageError(f"Slurm job {found[1]} does not run on {node}", f"it runs on {nodes[0]}")
    if not terminal:
        raise UsageError("watch needs a terminal", "use ddptop ls in scripts")
    words = ["--readonly"] if readonly else []
    words += [] if ascii_only is None else ["--ascii" if ascii_only else "--no-ascii"]
    argv = link_argv(found[1], node, own_command("ddptop", *words))
    argv.insert(1, "--pty")
    done = programs.run(argv, None, env=step_environment(os.environ), is_interactive=True)
    problem = step_problem(done.stderr)
    if done.returncode and problem is not None:
        raise DdptopError(f"Slurm job {found[1]} cannot be watched on {node}: {problem}")
    return done.returncode


def nodes_of(job: str) -> tuple[str, ...]:
    """Return the nodes of a running job.

    Raises:
        NoSuchJobError: there is no such job, or it is not running.
        DdptopError: squeue did not answer.
    """
    argv = ["squeue", "--noheader", f"--jobs={job}", "--states=RUNNING", "--format=%N"]
    try:
        done = programs.run(argv, 5 * TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        raise DdptopError("squeue did not respond", "check `sinfo`") from None
    nodes = nodes_in(done.stdout.strip().partition("\n")[0])
    if not nodes:
        raise NoSuchJobError(f"no running Slurm job {job}", "list jobs with `ddptop ls`")
    return nodes
