"""The agent's plan: everything that the agent needs, as plain data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.spec import JobSpec

_ENGINE = Path(__file__).resolve().parents[1]
AGENT_MAIN = _ENGINE / "agent" / "__main__.py"
SPARE_MAIN = _ENGINE / "agent" / "warm.py"
PUMP_MAIN = _ENGINE / "agent" / "pump.py"
PROBE_DIR = _ENGINE / "probe" / "inject"


def agent_command(spec: JobSpec) -> list[str]:
    """The argv of the agent. `-u`: its words reach the log at once.

    It runs under the job's interpreter; that of a command under ddptop's, for the command may have
    no torch, or be no Python at all, and with nothing of the job's own on its path.
    """
    if spec.is_command:
        return [sys.executable, "-I", "-u", str(AGENT_MAIN)]
    return [spec.python, "-u", str(AGENT_MAIN)]


def agent_plan(
    spec: JobSpec, folder: RunFolder, attempt: int, restarts_left: int
) -> dict[str, Any]:
    """What the agent reads from standard input.

    Args:
        spec: the job.
        folder: its run folder.
        attempt: the number that the first life of the worker group gets.
        restarts_left: the budget, which ranks see in TORCHELASTIC_MAX_RESTARTS.
    """
    return {
        "kind": spec.kind,
        "job_id": spec.job_id,
        "command": spec.command(),
        "nproc": spec.nproc,
        "attempt": attempt,
        "restarts_left": restarts_left,
        "logs_dir": str(folder.logs_dir),
        "control_socket": str(folder.control_socket),
        "warm_spares": spec.warm_spares,
        "pty": spec.pty,
        "probe_file": str(PROBE_DIR / "sitecustomize.py") if spec.probe else None,
        "probe_dir": str(PROBE_DIR) if spec.probe else None,
        "probe_socket": str(folder.probe_socket),
        "stacks_dir": str(folder.evidence_dir / "stacks"),
        "save_flag": str(folder.save_flag),
    }
