"""`ddptop restart`: restart the group of a live job, or relaunch an ended one."""

from __future__ import annotations

import os

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.plain.output import info
from ddptop_runner.base.errors import UsageError
from ddptop_runner.jobs import commands, launch
from ddptop_runner.jobs.slurm_queue import find


def run(job: str, force: bool = False, wait_gpus: bool = False) -> int:
    """Restart the job; for an ended one, list the variables missing from this shell."""
    view = adopt_if_unguarded(find(job))
    if view.is_live:
        if force or wait_gpus:
            raise UsageError(
                f"{view.job} is {view.state}",
                "--force and --wait-gpus apply only to ended jobs",
            )
        commands.restart_group(view)
        info(f"ddptop: restarting all ranks of {view.job}")
        return 0
    view, missing, note = launch.restart_ended(view, os.environ, force=force, wait_gpus=wait_gpus)
    if note:
        info(f"ddptop: {note}")
    if missing:
        names = ", ".join(missing)
        info(f"ddptop: environment variables set at launch but missing from this shell: {names}")
    how = "is queued" if view.state == "queued" else "relaunched"
    info(f"ddptop: {view.job} {how}; to open it, run ddptop attach {view.job}")
    return 0
