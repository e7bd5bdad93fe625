"""`ddptop stop`, `kill`, `restart`, `checkpoint`, `rm`, and `wait`."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence

from ddptop.commands.unguarded import KeptGuarded, adopt_if_unguarded
from ddptop.job.status import exit_status
from ddptop.output import info, put
from ddptop_runner.base.errors import (
    DamagedFileError,
    DdptopError,
    NoSuchJobError,
    OtherSchemaError,
    UsageError,
    WaitTimeoutError,
)
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.base.units import duration_in_words, size
from ddptop_runner.job.registry import JobView, group_of, is_there, read_job, resolve
from ddptop_runner.jobs import checkpoint as wanted
from ddptop_runner.jobs import commands, launch
from ddptop_runner.jobs.commands import wait_until_ended
from ddptop_runner.jobs.slurm_queue import find, wait_until_started

AWAY_S = 15.0
"""How much longer than the grace period to wait for a machine that cannot be reached."""
ENDED_DELETED = "ended; its run folder had been deleted"
END_ALLOWANCE_S = 60.0
"""Time after the grace period for evidence and leftover processes; after it, a process is stuck in
the kernel."""


def run_stop(
    job: str, grace_s: float, *, save: bool = False, timeout_s: float | None = None
) -> int:
    """Stop the job; with `grace_s` 0, kill it immediately.

    Args:
        job: its name, or its sweep's; also its ID, if its run folder was deleted.
        grace_s: seconds between SIGTERM and SIGKILL.
        save: request a checkpoint first; without one, the job is not stopped.
        timeout_s: how long to wait for the checkpoint; None: as `ddptop checkpoint`.
    """
    if group := group_of(job):
        if save:
            raise UsageError(f"{job} is a sweep", "save and stop its jobs one by one")
        return _stop_group(group, grace_s)
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
    notice = commands.stop(view, grace_s)
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


def _stop_group(group: list[JobView], grace_s: float) -> int:
    live = commands.live_of(group)

    def end(view: JobView) -> None:
        if (notice := commands.end_if_live(view, grace_s)) is not None:
            info(f"ddptop: {notice}")

    commands.on_each(live, end)
    for view in live:
        ended = wait_until_ended(view, grace_s + END_ALLOWANCE_S)
        info(f"ddptop: {ended.job} {ended.state}")
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
    try:
        saved = _checkpoint(view, timeout_s)
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


def _checkpoint(view: JobView, timeout_s: float | None) -> wanted.Saved:
    """Request a checkpoint, say how long this waits for it, and wait."""
    asked = wanted.ask(view)
    limit_s = wanted.TIMEOUT_S if timeout_s is None else timeout_s
    how = f"by {asked.in_words()}; waiting up to {limit_s:g} s for it"
    info(f"ddptop: requested a checkpoint from {view.job} {how}")
    return wanted.wait(view, asked, limit_s)


def run_restart(job: str, force: bool = False, wait_gpus: bool = False) -> int:
    """Restart the job; for an ended one, list the variables missing from this shell.

    Of a sweep, those jobs are relaunched that ended without finishing.
    """
    if group := group_of(job):
        commands.on_each(
            commands.to_restart(group), lambda one: relaunch(one, force=force, wait_gpus=not force)
        )
        return 0
    view = adopt_if_unguarded(find(job))
    if view.is_live:
        if force or wait_gpus:
            raise UsageError(
                f"{view.job} is {view.state}", "--force and --wait-gpus apply only to ended jobs"
            )
        commands.restart_group(view)
        info(f"ddptop: restarting all ranks of {view.job}")
        return 0
    relaunch(view, force=force, wait_gpus=wait_gpus)
    return 0


def relaunch(view: JobView, *, force: bool = False, wait_gpus: bool = False) -> None:
    """Restart an ended job, and print what became of it."""
    view, missing, note = launch.restart_ended(view, os.environ, force=force, wait_gpus=wait_gpus)
    if note:
        info(f"ddptop: {note}")
    if missing:
        names = ", ".join(missing)
        info(f"ddptop: environment variables set at launch but missing from this shell: {names}")
    how = "is queued" if view.state == "queued" else "relaunched"
    info(f"ddptop: {view.job} {how}; to open it, run ddptop attach {view.job}")


def run_checkpoint(job: str | None, timeout_s: float | None) -> int:
    """Request a checkpoint, wait until it is complete, and print its path."""
    view = adopt_if_unguarded(find(job))
    answer = _checkpoint(view, timeout_s)
    saved = answer.checkpoint
    size_ = "" if saved.size_bytes is None else f", {size(saved.size_bytes)}"
    took = "" if saved.took_s is None else f", in {duration_in_words(saved.took_s)}"
    info(f"ddptop: saved{answer.in_words()}{size_}{took}")
    if not answer.responded:
        info(f"ddptop: for checkpoints on request, {wanted.SUPPORT}")
    put(saved.path)
    return 0


def run_rm(jobs: Sequence[str], force: bool = False) -> int:
    """Delete jobs; nothing is deleted if any name is wrong or any job is live.

    Args:
        jobs: their names.
        force: also delete jobs of a host that is gone, or of another version of ddptop.
    """
    views: dict[str, JobView] = {}
    damaged: dict[str, RunFolder] = {}
    groups = {job: [view.job for view in group_of(job)] or [job] for job in jobs}
    for job in itertools.chain.from_iterable(groups.values()):
        try:
            view = resolve(job)
        except (DamagedFileError, NoSuchJobError, OtherSchemaError) as error:
            is_other = isinstance(error, OtherSchemaError) and not force
            if is_other or (isinstance(error, NoSuchJobError) and not is_there(job)):
                raise
            damaged[job] = run_folder(job)
        else:
            commands.require_ended(view, force=force)
            views[view.job] = view
    for folder in damaged.values():
        commands.remove_damaged(folder)
    for view in views.values():
        if (left := commands.remove(view, force=force)) is not None:
            info(f"ddptop: {view.job} was deleted, but {left}")
    return 0


def run_wait(job: str | None, timeout_s: float | None) -> int:
    """Wait, then return the exit status for the job's final state."""
    began_s = time.monotonic()
    if job is not None and (group := group_of(job)):
        waited = [wait_until_ended(view, timeout_s, KeptGuarded(), began_s) for view in group]
        return max(map(_exit_status, waited))
    view = adopt_if_unguarded(wait_until_started(job, timeout_s))
    return _exit_status(wait_until_ended(view, timeout_s, KeptGuarded(), began_s))


def _exit_status(ended: JobView) -> int:
    status = exit_status(ended)
    if status:
        verb = {"stopped": "was stopped", "lost": "is lost"}.get(ended.state, ended.state)
        info(f"ddptop: {ended.job} {verb}; for details: ddptop status {ended.job}")
    return status
