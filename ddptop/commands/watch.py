"""`ddptop watch`: training that ddptop did not start, also on a node of a Slurm job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any

from ddptop.commands import attach
from ddptop.output import is_terminal
from ddptop_runner.base import programs
from ddptop_runner.base.errors import DdptopError, NoSuchJobError, UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.base.units import whole
from ddptop_runner.devices.report import sample_once
from ddptop_runner.foreign.census import HostCensus, resolve
from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView, all_jobs
from ddptop_runner.job.registry import resolve as resolve_own
from ddptop_runner.jobs.slurm import nodes_in
from ddptop_runner.jobs.slurm_queue import TIMEOUT_S
from ddptop_runner.launch.slurm import link_argv, step_environment, step_problem


def find(target: str) -> JobView | ForeignJob:
    """Return the job with this PID or name; ddptop's own jobs come before foreign ones.

    Raises:
        NoSuchJobError: no job has this pid or name.
        UsageError: several jobs match.
    """
    if (own := _own(target)) is not None:
        return own
    return resolve(target, HostCensus().scan(sample_once().gpus))


def _own(target: str) -> JobView | None:
    """Ddptop's own job with this process, name, or prefix; digits are not taken as a prefix."""
    if (pid := whole(target)) is not None:
        live = (view for view in all_jobs() if view.is_live and not view.on_other_host)
        found = next((view for view in live if pid in procs.pids_of_job(view.spec.job_id)), None)
        if found is not None:
            return found
    try:
        named = resolve_own(target)
    except NoSuchJobError:
        return None
    return named if named.job == target or not target.isdigit() else None


def run(target: str, **screen: Any) -> int:
    """Show the job until the user quits; return the exit status.

    Raises:
        NoSuchJobError: no job has this pid or name.
        UsageError: several jobs match, or there is no terminal.
    """
    found = find(target)
    if not is_terminal():
        raise UsageError("watch needs a terminal", "use ddptop ps in scripts")
    if isinstance(found, JobView):
        return attach.run(found.job, **screen)
    return attach.run(None, watched=found, **screen)


_TARGET = re.compile(r"slurm:([0-9]{1,10})(?:@([A-Za-z0-9_.-]+))?")


def run_there(target: str, **screen: Any) -> int:
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
    if not is_terminal():
        raise UsageError("watch needs a terminal", "use ddptop ls in scripts")
    argv = link_argv(found[1], node, own_command("ddptop", *attach.words_of(**screen)))
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
