"""`ddptop compare`: the losses of several jobs on one axis, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.job.compare import LETTERS, companions
from ddptop.output import put_json
from ddptop_runner.base.errors import NoSuchJobError, UsageError
from ddptop_runner.job.registry import JobView, all_jobs, resolve

MOST_JOBS = len(LETTERS)


def find(names: Sequence[str]) -> list[JobView]:
    """Return the jobs with these names.

    Raises:
        NoSuchJobError: one does not exist.
        UsageError: a name is ambiguous, one job is named twice, or there are too many.
    """
    if len(names) > MOST_JOBS:
        raise UsageError(f"cannot compare {len(names)} jobs", f"list at most {MOST_JOBS}")
    views = [resolve(name) for name in names]
    jobs = [view.job for view in views]
    if twice := next((job for job in jobs if jobs.count(job) > 1), None):
        raise UsageError(f"{twice} is listed twice", "list a different job to compare it with")
    return views


def run(
    names: Sequence[str],
    as_json: bool,
    *,
    readonly: bool,
    terminal: bool,
    ascii_only: bool | None = None,
) -> int:
    """Show jobs side by side until the user quits, or print the comparison.

    Given one job, the screen offers the others; as JSON, it is compared with the newest job of the
    same script, or otherwise with the newest job.

    Raises:
        NoSuchJobError: a job does not exist, or there is none to compare it with.
        UsageError: a name is ambiguous, or there is no terminal.
        DdptopError: a history cannot be read.
    """
    views = find(names)
    if as_json:
        return _print(views)
    if not terminal:
        given = " ".join(view.job for view in views)
        raise UsageError(
            "compare needs a terminal", f"use ddptop compare {given} --json in scripts"
        )
    from ddptop.commands import attach
    from ddptop.tui.messages import ScreenWanted

    wanted = ScreenWanted("compare", tuple(view.job for view in views))
    return attach.run(None, readonly=readonly, opening=wanted, ascii_only=ascii_only)


def _print(views: list[JobView]) -> int:
    from ddptop.job.compare import compare
    from ddptop.job.record import own_job
    from ddptop.job.report import report
    from ddptop.sources.compare import read_run
    from ddptop.sources.history import JobHistory

    jobs = [own_job(view) for view in views]
    if len(jobs) == 1:
        others = companions(map(own_job, all_jobs()), jobs[0].name)
        if not others:
            raise NoSuchJobError(
                f"no other job to compare {jobs[0].name} with",
                "relaunch it with different arguments first",
            )
        jobs.append(others[0])
    runs = [read_run(job, JobHistory(job.folder.history_db)) for job in jobs]
    put_json(report(compare(runs)))
    return 0
