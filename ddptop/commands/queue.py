"""`ddptop queue`: what runs and waits on this machine, and the order of your own jobs."""

from __future__ import annotations

from ddptop.commands.control import relaunch
from ddptop.commands.unguarded import adopt_if_unguarded, guard
from ddptop.job.queue import HEADERS, QueueReport, cells, queue_rows
from ddptop.job.record import own_job
from ddptop.output import info, put_clipped, put_json, table
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.registry import all_jobs, resolve
from ddptop_runner.jobs import commands
from ddptop_runner.launch.gpus import shared


def show(as_json: bool) -> int:
    """Print the rows of the queue."""
    now, views = utc_now(), all_jobs()
    rows = queue_rows([own_job(view) for view in views], shared.others(now), now)
    note = shared.problem()
    if as_json:
        put_json(QueueReport(jobs=rows, note=note))
    elif rows:
        put_clipped(table(HEADERS, [cells(row, now) for row in rows]))
    else:
        info("no jobs run or wait; queue one with ddptop launch --wait-gpus train.py")
    if note is not None and not as_json:
        info(f"ddptop: {note}")
    guard(views)
    return 0


def move(job: str, *, before: str | None = None, last: bool = False) -> int:
    """Move a job that waits among one's own: to the front, to the end, or before another."""
    view = adopt_if_unguarded(resolve(job))
    other = None if before is None else resolve(before)
    commands.move_in_queue(view, other, last=last)
    where = "last" if last else "first" if other is None else f"before {other.job}"
    info(f"ddptop: {view.job} is now {where} of your jobs")
    return 0


def restore() -> int:
    """Queue all jobs again that waited when the machine went down."""
    left = [view for view in reversed(all_jobs()) if view.left_in_queue]
    failed = 0
    for view in left:
        try:
            relaunch(view, wait_gpus=True)
        except DdptopError as error:
            failed += 1
            info(f"ddptop: {view.job} cannot be queued: {error}")
    if not left:
        info("ddptop: no job waited when the machine went down")
    return 1 if failed else 0
