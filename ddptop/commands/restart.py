"""`ddptop restart`: restart the group of a live job, or relaunch an ended one."""

from __future__ import annotations

import os

from ddptop.commands.unguarded import taken_up
from ddptop.plain.output import say
from ddptop_runner.base.errors import UsageError
from ddptop_runner.jobs import commands, launch
from ddptop_runner.jobs.slurm_queue import find


def run(job: str, force: bool = False, wait_gpus: bool = False) -> int:
    """Restart the job; for an ended one, list the variables missing from this shell."""
    view = taken_up(find(job))
    if view.is_live:
        if force or wait_gpus:
            raise UsageError(
                f"{view.job} is {view.state}",
                "--force and --wait-gpus apply only to ended jobs",
            )
        commands.restart_group(view)
        say(f"ddptop: restarting all ranks of {view.job}")
        return 0
    view, missing, note = launch.restart_ended(view, os.environ, force=force, wait_gpus=wait_gpus)
    if note:
        say(f"ddptop: {note}")
    if missing:
        names = ", ".join(missing)
        say(f"ddptop: environment variables set at launch but missing from this shell: {names}")
    how = "is queued" if view.state == "queued" else "relaunched"
    say(f"ddptop: {view.job} {how}; to open it, run ddptop attach {view.job}")
    return 0
