"""`ddptop rm`: delete ended jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner import commands
from ddptop_runner.errors import DamagedFileError, NewerFileError
from ddptop_runner.paths import RunFolder, run_folder
from ddptop_runner.registry import JobView, resolve


def run(jobs: Sequence[str]) -> int:
    """Delete each; all are checked first, so that a wrong name or a live job deletes nothing."""
    views: dict[str, JobView] = {}
    damaged: dict[str, RunFolder] = {}
    for job in jobs:
        try:
            view = resolve(job)
        except NewerFileError:
            raise
        except DamagedFileError:
            damaged[job] = run_folder(job)
        else:
            commands.require_ended(view)
            views[view.job] = view
    for folder in damaged.values():
        commands.remove_damaged(folder)
    for view in views.values():
        commands.remove(view)
    return 0
