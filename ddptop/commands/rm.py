"""`ddptop rm`: delete ended jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.plain.output import say
from ddptop_runner.base.errors import DamagedFileError, NewerFileError, NoSuchJobError
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.job.registry import JobView, is_there, resolve
from ddptop_runner.jobs import commands


def run(jobs: Sequence[str], force: bool = False) -> int:
    """Delete each; all are checked first, so that a wrong name or a live job deletes nothing.

    Args:
        jobs: their names.
        force: also those of a host that is gone, and those of a newer ddptop.
    """
    views: dict[str, JobView] = {}
    damaged: dict[str, RunFolder] = {}
    for job in jobs:
        try:
            view = resolve(job)
        except NewerFileError:
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
            say(f"ddptop: {view.job} was deleted, but {left}")
    return 0
