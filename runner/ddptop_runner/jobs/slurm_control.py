"""Sends requests to a supervisor on another node of a cluster, through a step in its allocation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base import bounded, programs
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_command
from ddptop_runner.job.registry import JobView
from ddptop_runner.launch.slurm import link_argv, step_environment
from ddptop_runner.node import control
from ddptop_runner.store.log_clean import one_line

STEP_S = 30.0
"""How long a step may take to start."""
_decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def can_reach(view: JobView) -> bool:
    """Whether the job runs in a Slurm allocation, and this machine can start a step in it."""
    return view.spec.slurm_job is not None and shutil.which("srun") is not None


def head_node(view: JobView) -> str:
    """The Slurm name of the node with the job's head."""
    placement = view.spec.placement
    return view.spec.host if placement is None else placement.nodes[0].host


def request(view: JobView, op: str, timeout_s: float = 10.0, **arguments: Any) -> dict[str, Any]:
    """As `control.request`, but on the job's head node.

    Raises:
        ControlError: no supervisor answers in time, or it refuses.
    """
    argv = own_command(__spec__.name, str(view.folder.path))
    asked = {"op": op, "timeout_s": timeout_s, "arguments": arguments}
    node, job = head_node(view), view.spec.slurm_job or ""
    try:
        done = programs.run(
            link_argv(job, node, argv),
            timeout_s + STEP_S,
            data=msgspec.json.encode(asked) + b"\n",
            env=step_environment(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ControlError(
            f"{view.job} cannot be reached on {node} ({type(error).__name__})",
            f"check `squeue --job={job}`, or end it with `scancel {job}`",
        ) from error
    try:
        answer = bounded.decode_json(_decoder, done.stdout.strip().split("\n")[-1].encode())
    except msgspec.MsgspecError:
        lines = done.stderr.strip().splitlines() or ["no answer"]
        raise ControlError(
            f"{view.job} cannot be reached on {node} ({one_line(lines[-1])})",
            f"check `squeue --job={job}`, or end it with `scancel {job}`",
        ) from None
    if "error" in answer:
        hint = answer.get("hint")
        raise ControlError(one_line(str(answer["error"])), hint and one_line(str(hint)))
    data = answer.get("data")
    return data if isinstance(data, dict) else {}


def main(path: str) -> int:
    """Forward a request from stdin to the supervisor of a run folder on this machine."""
    try:
        asked = _decoder.decode(sys.stdin.buffer.readline())
        data = control.request(
            RunFolder(Path(path)), asked["op"], asked["timeout_s"], **asked["arguments"]
        )
        answer: dict[str, Any] = {"data": data}
    except ControlError as error:
        answer = {"error": error.message, "hint": error.hint}
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
