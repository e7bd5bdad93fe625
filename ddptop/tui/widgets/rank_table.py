"""The table of ranks: the primary view of a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from ddptop.draw.launched import launcher_line, launcher_state, rank_detail
from ddptop.sources.snapshot import JobDetail
from ddptop.tui.widgets.table import Table
from ddptop.view.attention import waiting_text
from ddptop.view.figures.columns import Column, Row, plain_cell
from ddptop.view.figures.ranks import NOTHING, columns_of
from ddptop.view.host_words import has_several, hosts_of, short_names
from ddptop.view.keys import key, with_keys
from ddptop.view.odd import row_of, worst_first
from ddptop.view.rank_help import explain_rank, glossary
from ddptop.view.rank_words import is_rank_too, launcher_name
from ddptop.view.text import Line, line
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.model.snapshot import LauncherSample, NodeSnapshot, RankSample

LAUNCHER_ROW = "launcher"
"""The key of the row above the ranks, where a command has one."""

NO_RANK = "no ranks have started yet"
NO_MATCH = "no ranks match; press {view.back} to show all"


class RankTable(Table):
    """One row a rank; the cursor is the chosen rank."""

    def __init__(self) -> None:
        super().__init__("ranks", columns_of((), False), empty=NO_RANK, id="rank-table")
        self._launcher: LauncherSample | None = None
        self._by_rank: dict[int, RankSample] = {}
        self._has_details = False
        self._waiting = ""
        self._worst_first = False
        self._shown: tuple[JobDetail, dt.datetime, Line] | None = None

    def next_order(self) -> None:
        """By number, or the ranks that need somebody first."""
        self._worst_first = not self._worst_first
        if self._shown is not None:
            self.show(*self._shown)

    def explain(self) -> list[tuple[str, str]]:
        """Explanation of the row under the cursor."""
        rank = self._by_rank.get(self.rank) if self.rank is not None else None
        if rank is None or self._shown is None:
            return glossary("launcher") if self._launcher else []
        detail, now, _ = self._shown
        apart = detail.deviations.get(rank.rank, NOTHING)
        return explain_rank(rank, apart, now, detail.view.is_live)

    @property
    def rank(self) -> int | None:
        """The chosen rank; None while there is none, and while the launcher's row is chosen."""
        return int(self.cursor_key) if self.cursor_key not in (None, LAUNCHER_ROW) else None

    def _hosts(self, snapshot: NodeSnapshot | None) -> Mapping[str, str]:
        """Short names of the job's hosts, where there are several."""
        if not has_several(snapshot):
            return {}
        return short_names(hosts_of(snapshot), 12 if self.size.width >= 100 else 8)

    def foot(self, width: int) -> Line:
        """What the columns do not tell of the chosen rank, or what is waited for."""
        if self._waiting:
            return line((f" {self._waiting}", "busy"))
        if self.rank is None or self.rank not in self._by_rank:
            return (
                line((f" press {key('view.logs')} for output from all ranks", "dim"))
                if self._launcher
                else ()
            )
        detail = rank_detail(self._by_rank[self.rank], self._launcher, width)
        return detail or ((" ", ""),) if self._launcher or self._has_details else ()

    def line_of(self, key: str, row: Row, layout: Sequence[tuple[Column, int]], width: int) -> Line:
        """The launcher's row begins with its name, and its figures stand where there is room."""
        if key != LAUNCHER_ROW or self._launcher is None:
            return super().line_of(key, row, layout, width)
        state = launcher_state(self._launcher)
        return launcher_line(plain_cell(row["launcher"]), self._launcher, state, layout, width)

    def show(self, detail: JobDetail, now: dt.datetime, note: Line = ()) -> None:
        """Take a new look at the job's ranks."""
        self._shown = (detail, now, note)
        snapshot, live = detail.view.snapshot, detail.view.is_live
        ranks = detail.ranks
        self.empty = NO_RANK if detail.only is None else with_keys(NO_MATCH)
        if self._worst_first:
            ranks = worst_first(ranks, detail.deviations, live)
            note = (*note, (f"  worst first; {key('ranks.sort')}: sort by rank", "dim"))
        foreign = isinstance(detail.view, ForeignView)
        hosts = self._hosts(snapshot)
        self._columns = columns_of(ranks, foreign, hosts)
        if foreign and not live:
            note = line(("last known values", "dim"))
        apart = detail.deviations
        rows = [
            (
                str(rank.rank),
                row_of(rank, now, live, apart.get(rank.rank, NOTHING), hosts),
            )
            for rank in ranks
        ]
        launcher = None if snapshot is None else snapshot.launcher
        every_rank = ranks if snapshot is None else snapshot.ranks
        if launcher is not None and not is_rank_too(launcher, every_rank):
            name = launcher_name(detail.view) or launcher.name
            row = {"launcher": (name, ""), "state": launcher_state(launcher)}
            rows.insert(0, (LAUNCHER_ROW, row))
        self._launcher = launcher
        self._waiting = "" if snapshot is None else waiting_text(detail.view, snapshot)
        self._by_rank = {rank.rank: rank for rank in ranks}
        self._has_details = any(rank_detail(rank, launcher, 1000) for rank in ranks)
        self.set_rows(rows, note)
