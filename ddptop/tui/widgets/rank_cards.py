"""A card for each rank of a small job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from ddptop.draw.cards import GAP, Around, Grid, around, card_lines, grid, wanted_rows
from ddptop.sources.snapshot import JobDetail
from ddptop.tui.widgets.rank_grid import RankGrid
from ddptop.view.keys import key
from ddptop.view.rank_help import explain_rank, glossary
from ddptop.view.shown import SPARK_S, Recent
from ddptop.view.text import Line, line
from ddptop_runner.judge.balance.imbalance import RankDeviation

_NOTHING = RankDeviation()


class RankCards(RankGrid):
    """Cards in a grid that fits; the chosen one has a heavy edge."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._apart: Mapping[int, RankDeviation] = {}
        self._around = Around(dt.datetime.min, False)
        self._grid: Grid | None = None

    def show(self, detail: JobDetail, now: dt.datetime, recent: Recent) -> None:
        """Take a new look at the job's ranks."""
        snapshot = detail.view.snapshot
        ranks = snapshot.ranks if snapshot is not None else []
        gpus = snapshot.gpus if snapshot is not None else []
        live = detail.view.is_live
        self._apart = detail.deviations
        slow = "step_time" in detail.far_off
        self._around = around(
            ranks, gpus, now, live, recent.step_times, recent.losses, SPARK_S, slow
        )
        self.take(detail.ranks)
        self.redraw()

    def fit(self, cells: int, most_rows: int) -> Grid | None:
        """How the cards lie in so many cells and rows; None where they do not fit."""
        return grid(len(self.shown), cells, most_rows, wanted_rows(self.shown))

    def build(self, width: int, height: int) -> list[Line]:
        """The cards, row by row."""
        self._grid = found = self.fit(width, height)
        if found is None:
            return [
                line(
                    (f" not enough room for cards; press {key('ranks.shape')} for the table", "dim")
                )
            ]
        self.per_row = found.columns
        lines: list[Line] = []
        for first in range(0, len(self.shown), found.columns):
            row = self.shown[first : first + found.columns]
            cards = [
                card_lines(
                    rank,
                    self._apart.get(rank.rank, _NOTHING),
                    self._around,
                    self._edges(place, width)[1],
                    found.height,
                    rank.rank == self.rank,
                    found.width,
                )
                for place, rank in enumerate(row)
            ]
            for parts in zip(*cards, strict=True):
                spans = [part for one in parts for part in (*one, (" " * GAP, ""))]
                lines.append(tuple(spans[:-1]))
        return lines

    def _edges(self, column: int, cells: int) -> tuple[int, int]:
        """Start and width of a column of cards."""
        assert self._grid is not None
        more = cells - (self._grid.width + GAP) * self._grid.columns + GAP
        start = column * (self._grid.width + GAP) + min(column, more)
        return start, self._grid.width + (column < more)

    def at(self, x: int, y: int) -> int | None:
        """The place of the card that is drawn there."""
        if self._grid is None:
            return None
        for column in range(self._grid.columns):
            start, cells = self._edges(column, self.size.width)
            if start <= x < start + cells:
                return y // self._grid.height * self._grid.columns + column
        return None

    def explain(self) -> list[tuple[str, str]]:
        """Explanation of the selected card."""
        if not self.shown or self.place < 0:
            return glossary("launcher") if self.has_launcher else []
        rank = self.shown[self.place]
        apart = self._apart.get(rank.rank, _NOTHING)
        return explain_rank(rank, apart, self._around.now, self._around.live)
