"""The table of all jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.tui.render.columns import Column
from ddptop.tui.render.rows import job_row
from ddptop.tui.render.text import Line, line
from ddptop.tui.widgets.table import Table
from ddptop_runner.registry import JobView

COLUMNS = (
    Column("state", "state", 12),
    Column("job", "job", 14),
    Column("ranks", "ranks", 5, ">"),
    Column("step", "step", 15, ">"),
    Column("loss", "loss", 7, ">"),
    Column("eta", "ETA", 7, ">"),
    Column("elapsed", "elapsed", 7, ">", drop=1),
    Column("alerts", "alerts", 6, ">"),
    Column("restarts", "restarts", 8, ">", drop=2),
    Column("host", " host", 14, drop=4),
    Column("command", " command", 14, drop=3, flex=True),
)

EMPTY = """no jobs yet

start one here with n, or in a shell:

    ddptop launch --gpus all train.py
    ddptop launch --gpus none --nproc 2 train.py     on CPUs"""


class JobsTable(Table):
    """One row a job, live ones first."""

    def __init__(self) -> None:
        super().__init__("jobs", COLUMNS, empty=EMPTY, id="jobs")

    def show(self, views: Sequence[JobView], now: dt.datetime) -> None:
        """Take a new look at the jobs."""
        self.set_rows([(view.job, job_row(view, now)) for view in views], self._count(views))

    @staticmethod
    def _count(views: Sequence[JobView]) -> Line:
        live = sum(view.is_live for view in views)
        return line((f"{live} live, {len(views) - live} ended", "dim")) if views else ()
