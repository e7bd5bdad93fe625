"""What the job screen tells of the last minutes: where the loss goes, and each rank's steps."""

from __future__ import annotations

from ddptop.sources.series_points import at_new_steps, points_of
from ddptop.view.learning import POINTS, medians, stretch_s, trend
from ddptop.view.series import Points
from ddptop.view.shown import SPARK_S, Recent
from ddptop_runner.job.registry import JobView
from ddptop_runner.store.history import HistoryReader

SPARK_POINTS = 60
SPARK_EVERY_S = SPARK_S / SPARK_POINTS

MOST_SPARKS = 16
"""With more ranks there are no cards, and nothing is read for them."""

TREND_EVERY_S = (5.0, 60.0)
"""Shortest and longest interval between trend updates."""

RANKS_PER_S = 32
"""Nor sooner than one second for so many ranks: reading a thousand takes a while."""


class RecentSource:
    """Reads it, again only when it can look different. Used by the collector's thread alone."""

    def __init__(self) -> None:
        self._key: object = None
        self._trend_until = self._sparks_until = 0.0
        self._recent = Recent()

    def read(self, view: JobView, now_s: float) -> Recent:
        """The same object again while nothing new was read.

        Raises:
            DdptopError: when the history cannot be read.
        """
        key = (view.spec.job_id, view.is_live)
        if key != self._key:
            self._key, self._recent = key, Recent()
            self._trend_until = self._sparks_until = 0.0
        if now_s < min(self._trend_until, self._sparks_until):
            return self._recent
        reader = HistoryReader(view.folder.history_db)
        span = reader.span()
        if span is None:
            return self._recent
        recent, until = self._recent, float(span[1] + 1)
        ranks = len(view.snapshot.ranks) if view.snapshot is not None else 0
        for_ever = float("inf") if not view.is_live else 0.0
        if now_s >= self._trend_until:
            stretch = min(stretch_s(until - span[0]), until - span[0])
            least, most = TREND_EVERY_S
            pause = max(ranks / RANKS_PER_S, min(most, max(least, stretch / POINTS)))
            self._trend_until = max(for_ever, now_s + pause)
            since = until - stretch  # but not before a restart: a loss may begin anew there
            if view.snapshot is not None and view.snapshot.attempt_started_at is not None:
                since = max(since, view.snapshot.attempt_started_at.timestamp())
            losses = reader.rank_series("loss", since, until, POINTS)
            points = {rank: at_new_steps(points_of(one)) for rank, one in losses.items()}
            found = trend(medians(points))
            recent = Recent(found, recent.step_times, recent.losses)
        if now_s >= self._sparks_until:
            self._sparks_until = max(for_ever, now_s + SPARK_EVERY_S)
            if 0 < ranks <= MOST_SPARKS:
                recent = Recent(recent.trend, *_sparks(reader, until))
        self._recent = recent
        return recent


def _sparks(reader: HistoryReader, until: float) -> tuple[dict[int, Points], dict[int, Points]]:
    step_times, losses = (
        reader.rank_series(metric, until - SPARK_S, until, SPARK_POINTS)
        for metric in ("step_time_s", "loss")
    )
    return (
        {rank: points_of(one) for rank, one in step_times.items()},
        {rank: at_new_steps(points_of(one)) for rank, one in losses.items()},
    )
