"""`ddptop stop` and `ddptop kill`: return when the last process has exited."""

from __future__ import annotations

import time

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.plain.output import info
from ddptop_runner.base.errors import DdptopError, NoSuchJobError, WaitTimeoutError
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.jobs import commands
from ddptop_runner.jobs.slurm_queue import find

AWAY_S = 15.0
"""How much longer than the grace period to wait for a machine that cannot be reached."""
ENDED_DELETED = "ended; its run folder had been deleted"
END_ALLOWANCE_S = 60.0
"""Time after the grace period for evidence and leftover processes; after it, a process is stuck in
the kernel."""


def run(job: str, grace_s: float, *, save: bool = False, timeout_s: float | None = None) -> int:
    """Stop the job; with `grace_s` 0, kill it immediately.

    Args:
        job: its name; also its ID, if its run folder was deleted.
        grace_s: seconds between SIGTERM and SIGKILL.
        save: request a checkpoint first; without one, the job is not stopped.
        timeout_s: how long to wait for the checkpoint; None: as `ddptop checkpoint`.
    """
    deleted = None
    try:
        view = adopt_if_unguarded(find(job))
    except NoSuchJobError:
        if (deleted := commands.restored(job)) is None:
            if save or not commands.end_deleted(job, grace_s):
                raise
            info(f"ddptop: {job} {ENDED_DELETED}")
            return 0
        view = deleted
    if save and not _saved(view, timeout_s):
        return 0
    notice = commands.stop(view, grace_s) if grace_s > 0 else commands.kill(view)
    if notice is not None:
        info(f"ddptop: {notice}")
    asked_s = time.monotonic()

    def look(view: JobView) -> None:
        if (left := _beyond_reach(view)) and time.monotonic() - asked_s > grace_s + AWAY_S:
            raise DdptopError(
                f"{view.job} is still stopping: {', '.join(left)} cannot be reached",
                "ddptop keeps trying, and ends the ranks there as soon as the link is back",
            )

    ended = commands.wait_until_ended(view, grace_s + END_ALLOWANCE_S, look)
    if deleted is not None:
        commands.remove_damaged(ended.folder)
        info(f"ddptop: {ended.job} {ENDED_DELETED}")
        return 0
    info(f"ddptop: {ended.job} {ended.state}")
    if (part := view.spec.membership) is not None:
        how = f"to end the job, run `ddptop stop {part.job}` on {part.head}"
        info(f"ddptop: its head may start it again; {how}")
    return 0


def _beyond_reach(view: JobView) -> list[str]:
    """The machines that cannot be reached, once the job has ended on all others."""
    nodes = [] if view.snapshot is None else view.snapshot.nodes
    left = [one for one in nodes if one.state not in ("ended", "waiting")]
    is_away = all(one.unknown_since is not None for one in left)
    return [one.host for one in left] if is_away else []


def _saved(view: JobView, timeout_s: float | None) -> bool:
    """Wait for a checkpoint; returns False if the job ended by itself after saving.

    Raises:
        DdptopError: there was no checkpoint; the job keeps running.
    """
    from ddptop_runner.jobs import checkpoint as wanted

    try:
        saved = wanted.save(view, wanted.TIMEOUT_S if timeout_s is None else timeout_s)
    except WaitTimeoutError as error:
        raise DdptopError(
            f"{error.message}; {view.job} was not stopped and is still running",
            f"{error.hint}; use stop without --save to stop it anyway",
        ) from error
    info(f"ddptop: saved{saved.in_words()}: {saved.checkpoint.path}")
    view = read_job(view.folder)
    if not view.is_live:
        info(f"ddptop: {view.job} {view.state}")
    return view.is_live
