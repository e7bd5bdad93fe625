"""Sends requests to a supervisor on another node of a cluster, through a step in its allocation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from ddptop_runner.base import programs
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_command
from ddptop_runner.job.registry import JobView
from ddptop_runner.launch.slurm import link_argv, step_environment
from ddptop_runner.model import protocol as pt
from ddptop_runner.node import control
from ddptop_runner.store.log_clean import one_line

STEP_S = 30.0
"""How long a step may take to start."""


def can_reach(view: JobView) -> bool:
    """Whether the job runs in a Slurm allocation, and this machine can start a step in it."""
    return view.spec.slurm_job is not None and shutil.which("srun") is not None


def head_node(view: JobView) -> str:
    """The Slurm name of the node with the job's head."""
    placement = view.spec.placement
    return view.spec.host if placement is None else placement.nodes[0].host


def request(
    view: JobView, message: pt.SupervisorRequest, kind: type[control.R], timeout_s: float
) -> control.R:
    """As `control.request`, but on the job's head node.

    Raises:
        ControlError: no supervisor replies in time, or it refuses.
    """
    argv = own_command(__spec__.name, str(view.folder.path), str(timeout_s))
    node, job = head_node(view), view.spec.slurm_job or ""
    try:
        done = programs.run(
            link_argv(job, node, argv),
            timeout_s + STEP_S,
            data=pt.line(message),
            env=step_environment(os.environ),
        )
        lines = done.stdout.strip().split("\n")
        reply: pt.Reply = pt.decode(lines[-1].encode(), pt.Reply)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = type(error).__name__
    except msgspec.MsgspecError:
        why = one_line((done.stderr.strip().splitlines() or ["no answer"])[-1])
    else:
        return control.expect(reply, kind)
    raise ControlError(
        f"{view.job} cannot be reached on {node} ({why})",
        f"check `squeue --job={job}`, or end it with `scancel {job}`",
    )


def main(path: str, timeout_s: str) -> int:
    """Forward a request from stdin to the supervisor of a run folder on this machine."""
    message = pt.decode(sys.stdin.buffer.readline(), pt.SupervisorRequest)
    try:
        reply = control.exchange(RunFolder(Path(path)), message, float(timeout_s))
    except ControlError as error:
        reply = pt.refused(error)
    sys.stdout.buffer.write(pt.line(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
