"""The table of all jobs, ddptop's own and foreign ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.tui.render.columns import Column
from ddptop.tui.render.foreign import unreadable_line
from ddptop.tui.render.launched import launcher_name
from ddptop.tui.render.rows import job_row
from ddptop.tui.render.text import Line, line
from ddptop.tui.widgets.table import Table
from ddptop_runner.foreign.types import Unreadable
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.registry import AnyJob

COLUMNS = (
    Column("state", "state", 12),
    Column("job", "job", 16, flex=True, most=30),
    Column("by", "by", 13, drop=1, flex=True, most=22),
    Column("ranks", "ranks", 5, ">", drop=5),
    Column("gpus", "GPUs", 6),
    Column("step", "step", 9, ">", drop=3),
    Column("done", "done", 5, ">", drop=7),
    Column("loss", "loss", 7, ">"),
    Column("uneven", "uneven", 11, ">", drop=2),
    Column("alerts", "▲", 3, ">"),
    Column("eta", "ETA", 7, ">", drop=4),
    Column("elapsed", "elapsed", 7, ">", drop=6),
    Column("restarts", "restarts", 8, ">", drop=8),
    Column("host", " host", 14, drop=10),
    Column("command", " command", 14, drop=9, flex=True),
)
ONLY_OWN = tuple(column for column in COLUMNS if column.key != "by")
"""While ddptop itself starts the ranks of every job."""

FIRST_LOOK = "looking for jobs and training on this machine ..."
EMPTY = """no jobs yet: nothing that trains was found on this machine

{how}:

    ddptop launch --gpus all train.py
    ddptop launch --gpus none --nproc 2 train.py     on CPUs"""


class JobsTable(Table):
    """One row a job, live ones first."""

    def __init__(self, me: str | None = None, *, readonly: bool = False) -> None:
        """`me` is the user whose name need not be said."""
        how = "start one in a shell" if readonly else "start one here with n, or in a shell"
        super().__init__("jobs", COLUMNS, empty=FIRST_LOOK, id="jobs")
        self._none = EMPTY.format(how=how)
        self._me = me
        self._unreadable: Sequence[Unreadable] = ()

    def show(
        self,
        views: Sequence[AnyJob],
        now: dt.datetime,
        unreadable: Sequence[Unreadable] = (),
    ) -> None:
        """Take a new look at the jobs, and at what could not be looked at."""
        self._unreadable = unreadable
        self.empty = self._none
        by_others = any(
            isinstance(view, ForeignView) or launcher_name(view) is not None for view in views
        )
        self._columns = COLUMNS if by_others else ONLY_OWN
        rows = [(view.job, job_row(view, now, self._me)) for view in views]
        self.set_rows(rows, self._count(views))

    def foot(self, width: int) -> Line:
        """What may be training and could not be seen."""
        return unreadable_line(self._unreadable, width)

    @staticmethod
    def _count(views: Sequence[AnyJob]) -> Line:
        if not views:
            return ()
        live = sum(view.is_live for view in views)
        foreign = sum(view.is_live and isinstance(view, ForeignView) for view in views)
        text = f"{live} live, {len(views) - live} ended"
        return line((f"{text}, {foreign} not started by ddptop" if foreign else text, "dim"))
