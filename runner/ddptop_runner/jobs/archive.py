"""Frees the name of an ended job for a new one, by renaming the ended job.

What only a taken name needs is imported then: every launch would wait for it.
"""

from __future__ import annotations

import contextlib
import os

from msgspec.structs import replace

from ddptop_runner.base.errors import DamagedFileError, UsageError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder, run_folder, why_not_own
from ddptop_runner.job.registry import read_job, require_own_name
from ddptop_runner.model.spec import MAX_NAME_LENGTH, write_spec
from ddptop_runner.node.guardian_start import GUARDIAN_START_S, starting

NAMES_LOCK = ".names.lock"
"""Lock held while a launch claims a name."""


def require_free(name: str) -> None:
    """Refuse a name that a new job cannot have: it must be unused or an ended job's.

    Raises:
        UsageError: names what uses it, and what to do.
    """
    folder = run_folder(name)
    if not os.path.lexists(folder.path):
        return
    from ddptop_runner.jobs.slurm_queue import as_queued

    elsewhere = "choose another name"
    try:
        view = require_own_name(read_job(folder))
    except DamagedFileError:
        raise UsageError(
            f"the name {name!r} is in use", f"{elsewhere}, or remove that job: ddptop rm {name}"
        ) from None
    view = as_queued(view)
    if view.is_live:
        raise UsageError(
            f"the name {name!r} is in use: that job is {view.state}",
            f"{elsewhere}, or stop that job: ddptop stop {name}",
        )
    if (problem := why_not_own(folder)) is not None:
        raise UsageError(f"the name {name!r} is in use ({problem})", elsewhere)


def archive(name: str) -> str:
    """Rename an ended job to the first free `<name>-<n>`; returns the new name.

    The new name is written to `job.json` first but takes effect when the folder is renamed, so
    readers always see a complete job, under one of its names. The caller holds `NAMES_LOCK`.

    Raises:
        UsageError: as `require_free`, or the job is being restarted.
        OSError: the folder cannot be renamed.
    """
    from ddptop_runner.jobs.commands import wait_for_guards
    from ddptop_runner.node.keeper import bring_home

    old = run_folder(name)
    require_free(name)
    with starting(old, GUARDIAN_START_S) as had:
        require_free(name)
        view = read_job(old)
        wait_for_guards(view)
        bring_home(old)
        if not had or old.live_dir != old.path:
            raise UsageError(f"the name {name!r} is in use", "choose another name, or try again")
        new = _claim_next(name)
        try:
            write_spec(old, replace(view.spec, archived_as=new.job))
            old.path.rename(new.path)
        except BaseException:
            new.path.rmdir()
            raise
    _follow(old, new)
    return new.job


def take_back(archived: str, name: str) -> None:
    """Give an ended job its old name back, because the launch that took it failed."""
    new, old = run_folder(archived), run_folder(name)
    with contextlib.suppress(OSError, DamagedFileError):
        if not read_job(new).is_live:
            new.path.rename(old.path)
            _follow(new, old)


def _claim_next(name: str) -> RunFolder:
    number = 1
    while True:
        suffix = f"-{number}"
        folder = run_folder(name[: MAX_NAME_LENGTH - len(suffix)] + suffix)
        with contextlib.suppress(FileExistsError):
            folder.path.mkdir(mode=0o700)
            return folder
        number += 1


def _follow(old: RunFolder, new: RunFolder) -> None:
    """Update paths and names in the job's files; readers cope if this fails."""
    import sqlite3

    from ddptop_runner.store.history import move_paths

    before, after = f"{old.path}/", f"{new.path}/"
    for file in new.nodes_dir.glob("*.json"):
        with contextlib.suppress(OSError):
            data = file.read_bytes().replace(before.encode(), after.encode())
            write_atomic(
                file, data.replace(f'"job":"{old.job}"'.encode(), f'"job":"{new.job}"'.encode())
            )
    with contextlib.suppress(OSError, sqlite3.Error):
        move_paths(new.history_db, before, after)
