"""`ddptop report`: what a job did, on one page."""

from __future__ import annotations

from typing import TextIO

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.export.report import read_report
from ddptop.export.report_page import markdown, page
from ddptop.export.settings import read_settings
from ddptop.job.record import own_job
from ddptop.sources.history import JobHistory
from ddptop_runner.jobs.slurm_queue import find


def run(job: str | None, output: TextIO, *, as_html: bool) -> int:
    """Write the report of a job.

    Raises:
        DdptopError: the history cannot be read.
    """
    view = own_job(adopt_if_unguarded(find(job)))
    report = read_report(view, JobHistory(view.folder.history_db))
    output.write((page if as_html else markdown)(report, read_settings().report))
    return 0
