"""The table of ranks: the primary view of a job."""

from __future__ import annotations

import datetime as dt

from ddptop.tui.render.columns import Column
from ddptop.tui.render.rows import rank_row
from ddptop.tui.render.text import Line
from ddptop.tui.snapshot import JobDetail
from ddptop.tui.widgets.table import Table

COLUMNS = (
    Column("rank", "rank", 4, ">"),
    Column("device", "device", 7, drop=1),
    Column("state", "state", 10),
    Column("step", "step", 8, ">"),
    Column("loss", "loss", 7, ">"),
    Column("loss_vs", "vs med", 6, ">"),
    Column("time", "time", 7, ">"),
    Column("time_vs", "vs med", 6, ">"),
    Column("last", "last", 4, ">"),
    Column("wait", "data wait", 9, ">", drop=3),
    Column("cpu", "CPU", 6, ">", drop=4),
    Column("rss", "RSS", 8, ">", drop=5),
    Column("pid", "pid", 8, ">", drop=2),
)


class RankTable(Table):
    """One row a rank; the cursor is the chosen rank."""

    def __init__(self) -> None:
        super().__init__("ranks", COLUMNS, empty="no rank has started yet", id="ranks")

    @property
    def rank(self) -> int | None:
        """The chosen rank."""
        return None if self.cursor_key is None else int(self.cursor_key)

    def show(self, detail: JobDetail, now: dt.datetime, note: Line = ()) -> None:
        """Take a new look at the job's ranks."""
        snapshot = detail.view.snapshot
        live = detail.view.is_live
        rows = [
            (
                str(rank.rank),
                rank_row(
                    rank,
                    now,
                    live,
                    detail.loss_deviation.get(rank.rank),
                    detail.time_deviation.get(rank.rank),
                ),
            )
            for rank in (snapshot.ranks if snapshot is not None else [])
        ]
        self.set_rows(rows, note)
