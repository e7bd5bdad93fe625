"""`ddptop rm`: delete ended jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.plain.output import info
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError, OtherSchemaError
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.job.registry import JobView, is_there, resolve
from ddptop_runner.jobs import commands


def run(jobs: Sequence[str], force: bool = False) -> int:
    """Delete jobs; nothing is deleted if any name is wrong or any job is live.

    Args:
        jobs: their names.
        force: also delete jobs of a host that is gone, or of another version of ddptop.
    """
    views: dict[str, JobView] = {}
    damaged: dict[str, RunFolder] = {}
    for job in jobs:
        try:
            view = resolve(job)
        except OtherSchemaError:
            if not force:
                raise
            damaged[job] = run_folder(job)
        except DamagedFileError:
            damaged[job] = run_folder(job)
        except NoSuchJobError:
            if not is_there(job):
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
