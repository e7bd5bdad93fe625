"""`ddptop status --watch`: a job in three lines, or one line per job, updated in place."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import NoReturn

from ddptop.commands.unguarded import KeptGuarded, adopt_if_unguarded, guard
from ddptop.commands.wait import exit_status
from ddptop.plain.inline import Inline, quiet_keys
from ddptop.plain.output import put_json
from ddptop.plain.status_lines import Part, job_line, job_lines
from ddptop.view.need import by_need
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError
from ddptop_runner.job.registry import JobView, is_recent, read_all, read_job
from ddptop_runner.jobs.contract import JobList, job_row, job_status
from ddptop_runner.jobs.slurm_queue import as_queued, find

NO_JOBS = "no jobs yet; start one with ddptop launch train.py"


def run(job: str | None, as_json: bool, interval_s: float) -> int:
    """Show until the job ends, or until ctrl+c.

    Args:
        job: the job; None shows all jobs, most urgent first, until ctrl+c.
        as_json: print one JSON object per update, each on its own line.
        interval_s: seconds between updates.

    Returns:
        For a job that ended, the status of `ddptop wait`; 0 after ctrl+c.

    Raises:
        NoSuchJobError: there is no such job, or it was removed.
    """
    signal.signal(signal.SIGTERM, _leave)  # so that the terminal's echo is restored
    screen = Inline(sys.stdout)
    try:
        with quiet_keys():
            if job is None:
                _watch_all(screen, as_json, interval_s)
            return _watch_one(find(job), screen, as_json, interval_s)
    except KeyboardInterrupt:
        return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _watch_one(view: JobView, screen: Inline, as_json: bool, interval_s: float) -> int:
    view, keep = adopt_if_unguarded(view), KeptGuarded()
    while True:
        status = job_status(view)
        if as_json:
            put_json(status)
            sys.stdout.flush()
        else:
            screen.show(job_lines(view, status))
        if not view.is_live:
            return exit_status(view)
        time.sleep(interval_s)
        try:
            view = as_queued(read_job(view.folder))
        except DamagedFileError:
            if not view.folder.spec_file.exists():
                raise NoSuchJobError(f"{view.job} was removed") from None
            raise
        keep(view)


def _watch_all(screen: Inline, as_json: bool, interval_s: float) -> NoReturn:
    guard(view for view in read_all()[0] if is_recent(view))
    while True:
        found = map(as_queued, read_all()[0])
        views = by_need((view for view in found if is_recent(view)), utc_now())
        if as_json:
            put_json(JobList(jobs=[job_row(view) for view in views]))
            sys.stdout.flush()
        else:
            screen.show(_lines(views, screen))
        time.sleep(interval_s)


def _lines(views: list[JobView], screen: Inline) -> list[list[Part]]:
    """As many lines as fit; the last one counts those left out."""
    if not views:
        return [[(NO_JOBS, "")]]
    room = max(1, screen.size()[1] - 1) if screen.redraws else len(views)
    shown = views if len(views) <= room else views[: room - 1]
    lines = [job_line(view, job_status(view)) for view in shown]
    if (more := len(views) - len(shown)) > 0:
        lines.append([(f"and {more} more (ddptop ls)", "")])
    return lines
