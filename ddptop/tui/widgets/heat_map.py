"""Hundreds of ranks at once: a cell each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from ddptop.draw.heat import (
    ORDER,
    STATE,
    HeatGrid,
    cells_of,
    figures_of,
    heat_grid,
    known_figures,
    legend,
    map_hint,
    map_row,
    name_of,
    ruler,
    worst_ranks,
)
from ddptop.sources.snapshot import JobDetail
from ddptop.tui.widgets.rank_grid import RankGrid
from ddptop.view.odd import state_of
from ddptop.view.rank_help import explain_heat, explain_rank
from ddptop.view.text import Line, Span, fill, fit, line, rule, width
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.judge.balance.rank_devices import own_devices
from ddptop_runner.model.snapshot import GpuSample

_NOTHING = RankDeviation()

AROUND_ROWS = 4
"""Title, ruler, legend, and the foot."""

WORST_CELLS = 30
WORST_FROM = 110
"""From this width on the worst ranks stand beside the map, else below it where there is room."""

FOOT_GAP = "   "


class HeatMap(RankGrid):
    """One cell a rank; a key changes what the cells show."""

    DEFAULT_CSS = """
    HeatMap {
        .line--picked { color: $background; background: $accent; text-style: bold; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.figure = STATE
        """What the cells show."""
        self._known: Sequence[str] = (STATE,)
        self._cells: list[Span] = []
        self._apart: Mapping[int, RankDeviation] = {}
        self._gpus: Mapping[int, GpuSample] = {}
        self._now = dt.datetime.min
        self._live = False
        self._top = 0
        self._grid: HeatGrid | None = None
        self._has_chosen = False

    def show(self, detail: JobDetail, now: dt.datetime) -> None:
        """Take a new look at the job's ranks."""
        snapshot = detail.view.snapshot
        ranks = snapshot.ranks if snapshot is not None else []
        self._apart, self._now, self._live = detail.deviations, now, detail.view.is_live
        self._gpus = own_devices(ranks, snapshot.gpus) if snapshot is not None else {}
        self._known = known_figures(ranks, self._apart)
        if not self._has_chosen:
            self.figure = next((key for key in ("own", "time") if key in self._known), STATE)
        self.take(ranks)
        self._paint()
        self.redraw()

    def _paint(self) -> None:
        if self.figure not in self._known:
            self.figure = STATE
        self._cells = cells_of(self.figure, self.shown, self._apart)

    def next_figure(self) -> None:
        """Colour the cells by the next figure that something is known of."""
        known = [key for key in ORDER if key in self._known]
        self._has_chosen = True
        self.figure = known[(known.index(self.figure) + 1) % len(known)]
        self._paint()
        self.redraw()

    def rows_wanted(self, cells: int, most: int) -> int:
        """Rows that show every rank, within `most`; below them the worst ones where these fit."""
        grid = self._lay(cells, most)
        rows = AROUND_ROWS + grid.rows(len(self.shown)) + (self._foot_rows(cells) - 1)
        below = 0 if cells >= WORST_FROM else 4
        return min(most, rows + below) if rows + below <= most else min(most, rows)

    def _lay(self, cells: int, rows: int) -> HeatGrid:
        largest = max((rank.rank for rank in self.shown), default=0)
        across = cells - WORST_CELLS - 2 if cells >= WORST_FROM else cells
        around = AROUND_ROWS + self._foot_rows(cells) - 1
        return heat_grid(len(self.shown), across - 1, max(1, rows - around), largest)

    def _foot_rows(self, cells: int) -> int:
        return 1 if cells >= WORST_FROM else 2

    def rows_shown(self) -> int:
        """Rows of the map that are visible."""
        return max(1, self.size.height - AROUND_ROWS - self._foot_rows(self.size.width) + 1)

    def build(self, width_: int, height: int) -> list[Line]:
        """Title, the rows around the cursor, legend, and the chosen rank's figures."""
        number = len(self.shown)
        title = f"{number:,} ranks by {name_of(self.figure)}"
        if not number:
            return [rule("ranks", width_), line(("  no ranks have started yet", "dim"))]
        foot = self._foot(width_) if self.place >= 0 else [()] * self._foot_rows(width_)
        self._grid = grid = self._lay(width_, height)
        self.per_row = grid.per_row
        room = max(1, height - AROUND_ROWS - len(foot) + 1)
        place, total = self.place, grid.rows(number)
        row = max(0, place) // grid.per_row
        self._top = max(0, min(self._top, row, total - room), row - room + 1)
        shown = range(self._top, min(total, self._top + room))
        rows = f"{self._top + 1}-{self._top + len(shown)} of {total}" if len(shown) < total else ""
        hint = map_hint(title, rows, width_)
        lines = [
            ruler(grid, place, width_),
            *(map_row(one, grid, self.shown, self._cells, place) for one in shown),
        ]
        beside = width_ >= WORST_FROM
        spare = height - 1 - len(lines) - 1 - len(foot)
        worst = self._worst(len(lines) if beside else spare)
        if beside:
            used = grid.label + grid.per_row * grid.cell
            lines = _beside(lines, worst, min(used + 6, width_ - WORST_CELLS))
        else:
            lines += worst[:spare] if spare >= 2 else []
        lines += [()] * max(0, height - 2 - len(lines) - len(foot))
        return [rule(title, width_, hint), *lines, legend(self.figure, self.shown, width_), *foot]

    def _worst(self, rows: int) -> list[Line]:
        """The ranks that are farthest off, a row each under a heading."""
        if rows < 2:
            return []
        found = worst_ranks(self.figure, self.shown, self._apart, rows - 1)
        head = line((" largest deviations", "title"))
        if not found:
            calm = "all ranks healthy" if self.figure == STATE else "none: all ranks are similar"
            return [head, line((f"  {calm}", "dim"))]
        hosts = {rank.rank: rank.host for rank in self.shown}
        return [
            head,
            *(
                line(f"  rank {one.rank:>5}  ", (f"{one.text:<10}", one.style),
                     (f" {hosts[one.rank]}", "dim"))
                for one in found
            ),
        ]  # fmt: skip

    def _foot(self, cells: int) -> list[Line]:
        rank = self.shown[self.place]
        parts = figures_of(
            rank,
            self._apart.get(rank.rank, _NOTHING),
            self._gpus,
            state_of(rank, self._now, self._live),
        )
        rows = self._foot_rows(cells)
        first = fill(parts, cells, FOOT_GAP)
        if rows == 1:
            return [first]
        used = 0
        while used < len(parts) and width(fill(parts[: used + 1], cells, FOOT_GAP)) > 0:
            if fill(parts[: used + 1], cells, FOOT_GAP) == fill(parts[:used], cells, FOOT_GAP):
                break
            used += 1
        second = fill([line("  "), *parts[used:]], cells, FOOT_GAP) if used < len(parts) else ()
        return [first, second]

    def at(self, x: int, y: int) -> int | None:
        """The place of the rank whose cell is drawn there."""
        grid = self._grid
        row = y - 2
        if grid is None or not 0 <= row < self.rows_shown() or x < grid.label:
            return None
        column = (x - grid.label) // grid.cell
        return (self._top + row) * grid.per_row + column if column < grid.per_row else None

    def explain(self) -> list[tuple[str, str]]:
        """What the cells show, and what is known of the chosen rank."""
        if not self.shown or self.place < 0:
            return explain_heat(name_of(self.figure))
        rank = self.shown[self.place]
        apart = self._apart.get(rank.rank, _NOTHING)
        about = explain_rank(rank, apart, self._now, self._live)
        return [*explain_heat(name_of(self.figure)), *about]


def _beside(lines: Sequence[Line], worst: Sequence[Line], at: int) -> list[Line]:
    found = []
    for place, one in enumerate(lines):
        right = worst[place] if place < len(worst) else ()
        found.append((*fit(one, at), *right))
    return found
