"""Which way each job's loss goes, read now and then from its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddptop.sources.series_points import at_new_steps, points_of
from ddptop.view import learning
from ddptop.view.learning import LossTrend
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.registry import AnyJob, JobView
from ddptop_runner.store.history import HistoryReader

EVERY_S = 10.0
"""A trend is read again no sooner."""

MOST_READS = 2
"""Jobs that are read at one look; the others' turn comes at the next ones."""

MOST_RANKS = 64
"""A job of more ranks has too long a history to be read beside others."""


class TrendSource:
    """Used by the collector's thread alone."""

    def __init__(self) -> None:
        self._known: dict[str, LossTrend | None] = {}
        self._read_at: dict[str, float] = {}

    def read(self, views: Sequence[AnyJob], now_s: float) -> Mapping[str, LossTrend]:
        """Of each live job of ddptop's, by name; a job of which nothing can be said is left out."""
        live = {v.job: v for v in views if isinstance(v, JobView) and v.is_live}
        for gone in self._read_at.keys() - live.keys():
            self._read_at.pop(gone)
            self._known.pop(gone, None)
        due = [name for name in live if now_s - self._read_at.get(name, -EVERY_S) >= EVERY_S]
        for name in sorted(due, key=lambda name: self._read_at.get(name, 0.0))[:MOST_READS]:
            self._read_at[name] = now_s
            self._known[name] = self._trend(live[name], now_s)
        return {name: trend for name, trend in self._known.items() if trend is not None}

    @staticmethod
    def _trend(view: JobView, now_s: float) -> LossTrend | None:
        if view.snapshot is None or len(view.snapshot.ranks) > MOST_RANKS:
            return None
        run_s = (view.read_at - view.snapshot.started_at).total_seconds()
        since = now_s - learning.stretch_s(run_s)
        reader = HistoryReader(view.folder.history_db)
        try:
            series = reader.rank_series("loss", since, now_s, learning.POINTS)
        except DdptopError:
            return None
        points = {rank: at_new_steps(points_of(one)) for rank, one in series.items()}
        return learning.trend(learning.medians(points))
