"""`ddptop ls`: the jobs of this machine."""

from __future__ import annotations

import msgspec

from ddptop.commands.unguarded import guard
from ddptop.output import columns, info, put_clipped, put_json, table
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import NoSuchJobError
from ddptop_runner.job.registry import is_recent, led_elsewhere, read_all
from ddptop_runner.jobs.contract import DamagedRow, JobList, job_row
from ddptop_runner.jobs.slurm_queue import as_queued, read_queue, with_jobs


def run(show_all: bool, as_json: bool, group: str | None = None) -> int:
    """Print live jobs and those of the last day, or all jobs; and the rest of Slurm's queue.

    A sweep has one line. Given its name as `group`, print only its jobs.
    """
    found, damaged = read_all()
    found += led_elsewhere(found)
    for error in damaged:
        info(f"ddptop: {error}")
    if (queue := read_queue()) is not None:
        found = [as_queued(view, queue) for view in found]
    recent = {view.spec.group for view in found if is_recent(view)} - {None}
    views = [v for v in found if show_all or is_recent(v) or v.spec.group in recent]
    views.sort(key=lambda view: not view.is_live)
    if group is not None:
        views = [view for view in found if view.spec.group == group]
        if not views:
            raise NoSuchJobError(f"no sweep named {group!r}", "list all: ddptop ls --all")
    names = {view.spec.slurm_job: view.job for view in found if view.is_live}
    slurm = None if queue is None else with_jobs(queue, names)
    if as_json:
        bad = [DamagedRow(job=error.job, reason=str(error)) for error in damaged]
        shown = msgspec.UNSET if queue is None else slurm
        put_json(JobList(jobs=[*map(job_row, views)], damaged=bad or msgspec.UNSET, slurm=shown))
        guard(views)
        return 0
    if views:
        from ddptop.job.figures.jobs import Subject, job_table  # not needed for JSON
        from ddptop.job.groups import by_loss, grouped
        from ddptop.job.record import own_job
        from ddptop.job.status import attention

        now, jobs = utc_now(), [own_job(view) for view in views]
        jobs = grouped(jobs) if group is None else by_loss(jobs)
        rows = [Subject(attention(job, now), now) for job in jobs]
        put_clipped(table(*job_table(rows, "ls", columns())))
    if slurm and group is None:
        from ddptop.job.status import brief, others

        lines = [f"Slurm {brief(one, utc_now())}" for one in others(slurm)]
        put_clipped("\n".join(["", *lines] if views and lines else lines))
    elif not views:
        info("no jobs yet; start one with ddptop launch train.py")
    if left := [view.job for view in views if view.left_in_queue]:
        remedy = "to queue them again, run ddptop queue restore"
        info(f"ddptop: no longer queued: {', '.join(left)}; {remedy}")
    if queue is not None and queue.note is not None:
        info(f"ddptop: {queue.note}")
    guard(views)
    return 0
