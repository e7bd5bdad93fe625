"""`ddptop wait`: wait for a job to end; the exit status reflects its state."""

from __future__ import annotations

import time

from ddptop.commands.unguarded import KeptGuarded, adopt_if_unguarded
from ddptop.plain.output import info
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs.commands import wait_until_ended
from ddptop_runner.jobs.slurm_queue import wait_until_started

STOPPED = 4
LOST = 5
NOT_WORTH_REQUEUEING = 93


def run(job: str | None, timeout_s: float | None) -> int:
    """Wait, then return the exit status for the job's final state."""
    began_s = time.monotonic()
    view = adopt_if_unguarded(wait_until_started(job, timeout_s))
    ended = wait_until_ended(view, timeout_s, KeptGuarded(), began_s)
    status = exit_status(ended)
    if status:
        verb = {"stopped": "was stopped", "lost": "is lost"}.get(ended.state, ended.state)
        info(f"ddptop: {ended.job} {verb}; for details: ddptop status {ended.job}")
    return status


def exit_status(view: JobView) -> int:
    """0 finished, 1 failed, 4 stopped, 5 lost, 93 failed and not worth requeueing."""
    if view.state == "failed" and view.snapshot is not None:
        requeue = view.snapshot.requeue
        if requeue is False or (requeue is None and view.spec.slurm_job is not None):
            return NOT_WORTH_REQUEUEING
    return {"finished": 0, "stopped": STOPPED, "lost": LOST}.get(view.state, 1)
