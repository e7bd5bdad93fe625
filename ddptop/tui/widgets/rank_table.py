"""The table of ranks: the primary view of a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ddptop.draw.columns import Column, Row, plain_cell
from ddptop.draw.launched import launcher_line, launcher_name, launcher_state, rank_detail
from ddptop.draw.rows import STATE_CELLS, UNKNOWN_DEVIATION, rank_row
from ddptop.sources.snapshot import JobDetail
from ddptop.tui.widgets.table import Table
from ddptop.view.attention import waiting_text
from ddptop.view.host_words import has_several, hosts_of, short_names
from ddptop.view.keys import key, with_keys
from ddptop.view.odd import worst_first
from ddptop.view.rank_help import explain_rank, glossary
from ddptop.view.rank_words import counts_own, is_rank_too, parts_text
from ddptop.view.text import Line, cells_of, line
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.model.snapshot import LauncherSample, NodeSnapshot, RankSample

LAUNCHER_ROW = "launcher"
"""The key of the row above the ranks, where a command has one."""

_RANK = Column("rank", "rank", 4, ">")
_HOST = Column("host", "host", 8)
"""Only where there are several."""
_STATE = Column("state", "state", STATE_CELLS)
_LOSS = Column("loss", "loss", 7, ">")
_LABELLED_LOSS = Column("loss", "loss", 11, ">")
"""With the number of its parts."""
_MEMORY = (Column("mem", "memory ", 9, ">", drop=5), Column("mem_vs", "vs med", 6, ">", drop=13))
_UTIL = (Column("util", "util ", 6, ">", drop=6), Column("util_vs", "vs med", 6, ">", drop=14))
_POWER = (Column("power", "power ", 6, ">", drop=7), Column("power_vs", "vs med", 6, ">", drop=15))

COLUMNS = (
    _RANK,
    Column("device", "device", 7, drop=4),
    _STATE,
    Column("step", "step", 8, ">"),
    _LOSS,
    Column("loss_vs", "vs med", 6, ">", drop=2),
    Column("time", "time", 7, ">"),
    Column("time_vs", "vs med", 6, ">", drop=1),
    Column("last", "last", 4, ">", drop=3),
    *_MEMORY,
    *_UTIL,
    *_POWER,
    Column("wait", "data wait", 9, ">", drop=8),
    Column("cpu", "CPU ", 7, ">", drop=9),
    Column("rss", "RSS ", 9, ">", drop=10),
    Column("pid", "PID", 8, ">", drop=11),
)
"""Of a job with a probe in its ranks: what they do comes before what they use."""

CPU_COLUMNS = tuple(
    column
    for column in COLUMNS
    if column.key not in ("mem", "mem_vs", "util", "util_vs", "power", "power_vs")
)
"""Of a job without devices."""

FOREIGN_COLUMNS = (
    _RANK,
    Column("device", "device", 7, drop=3),
    _STATE,
    Column("mem", "memory ", 9, ">"),
    Column("mem_vs", "vs med", 6, ">", drop=8),
    Column("util", "util ", 6, ">"),
    Column("util_vs", "vs med", 6, ">", drop=9),
    Column("power", "power ", 6, ">", drop=1),
    Column("power_vs", "vs med", 6, ">", drop=10),
    Column("cpu", "CPU ", 7, ">"),
    Column("rss", "RSS ", 9, ">", drop=4),
    Column("step", "step", 8, ">", drop=7),
    Column("loss", "loss", 7, ">", drop=6),
    Column("pid", "PID", 8, ">", drop=5),
    Column("why", " why", 21, drop=2, flex=True),
)
"""Columns for a foreign job: only its ranks' resource usage is known."""

FOREIGN_CPU_COLUMNS = tuple(
    column
    for column in FOREIGN_COLUMNS
    if column.key not in ("mem", "mem_vs", "util", "util_vs", "power", "power_vs")
)
"""The same without devices."""


NO_RANK = "no ranks have started yet"
NO_MATCH = "no ranks match; press {view.back} to show all"


class RankTable(Table):
    """One row a rank; the cursor is the chosen rank."""

    def __init__(self) -> None:
        super().__init__("ranks", COLUMNS, empty=NO_RANK, id="rank-table")
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
        apart = detail.deviations.get(rank.rank, UNKNOWN_DEVIATION)
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
        self._columns = _columns(ranks, foreign, hosts)
        if foreign and not live:
            note = line(("last known values", "dim"))
        apart = detail.deviations
        rows = [
            (
                str(rank.rank),
                rank_row(rank, now, live, apart.get(rank.rank, UNKNOWN_DEVIATION), hosts),
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


def _columns(
    ranks: list[RankSample], foreign: bool, hosts: Mapping[str, str]
) -> tuple[Column, ...]:
    columns = _columns_of(ranks, foreign)
    if hosts:
        cells = max(4, max(map(cells_of, hosts.values())))
        columns = (columns[0], replace(_HOST, width=cells), *columns[1:])
    if any(counts_own(rank) for rank in ranks):
        own = {"step": "step*"}
        columns = tuple(replace(one, title=own.get(one.key, one.title)) for one in columns)
    if not any(parts_text(rank) for rank in ranks):
        return columns
    return tuple(_LABELLED_LOSS if column.key == "loss" else column for column in columns)


def _columns_of(ranks: list[RankSample], foreign: bool) -> tuple[Column, ...]:
    on_devices = any(rank.gpu is not None or rank.gpus for rank in ranks)
    if foreign:
        columns = FOREIGN_COLUMNS if on_devices else FOREIGN_CPU_COLUMNS
        explained = any(rank.state_reason for rank in ranks)
        return columns if explained else columns[:-1]
    return COLUMNS if on_devices else CPU_COLUMNS
