"""Keeps ended runs until `ddptop rm`, or until a configured limit is exceeded."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.config import keep_bytes, read_config
from ddptop_runner.base.errors import DdptopError, UsageError


@dataclass(frozen=True)
class EndedRun:
    """A run that may be deleted."""

    job: str
    ended_at: dt.datetime
    size_bytes: int = 0


def expired(
    runs: Sequence[EndedRun], days: float | None, limit_bytes: int | None, now: dt.datetime
) -> list[EndedRun]:
    """The runs to delete, oldest first.

    Args:
        runs: those that have ended.
        days: keep those that ended within so many days; None keeps all.
        limit_bytes: keep the latest that take no more than this together; None keeps all.
        now: the time.
    """
    gone, kept_bytes = [], 0
    for run in sorted(runs, key=lambda run: run.ended_at, reverse=True):
        is_old = days is not None and (now - run.ended_at).total_seconds() > days * 86_400
        kept_bytes += 0 if is_old else run.size_bytes
        is_over = limit_bytes is not None and kept_bytes > limit_bytes
        if is_old or is_over:
            gone.append(run)
    return gone[::-1]


def prune() -> str | None:
    """Delete the ended runs beyond the configured limit; a note on what was deleted, or why not.

    A run of another host, of another user, or one whose `job.json` cannot be read is never touched.
    """
    try:
        settings = read_config().runs
    except UsageError as error:
        return f"not deleting old runs: {error}"
    limit_bytes = keep_bytes(settings)
    if settings.keep_days is None and limit_bytes is None:
        return None
    from ddptop_runner.job.registry import all_jobs
    from ddptop_runner.jobs.commands import remove_damaged

    views = {
        view.job: view
        for view in all_jobs()
        if not view.is_live
        and not view.on_other_host
        and view.ended_at is not None
        and _is_mine(view.folder.path)
    }
    runs = [
        EndedRun(job, view.ended_at, 0 if limit_bytes is None else size_of(view.folder.path))
        for job, view in views.items()
        if view.ended_at is not None
    ]
    deleted = []
    for run in expired(runs, settings.keep_days, limit_bytes, utc_now()):
        try:
            remove_damaged(views[run.job].folder)  # it refuses where a process holds a lock
        except DdptopError:
            continue
        deleted.append(run.job)
    if not deleted:
        return None
    several = "runs" if len(deleted) > 1 else "run"
    return (
        f"deleted {len(deleted)} old {several}, as configured in config.toml: {', '.join(deleted)}"
    )


def _is_mine(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:  # it was removed this moment
        return False


def size_of(folder: Path) -> int:
    """The disk space of all files in a folder, in bytes."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(directory, name).lstat().st_blocks * 512
            except OSError:
                continue
    return total
