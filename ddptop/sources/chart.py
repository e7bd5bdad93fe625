"""Reads a job's losses for its chart. Used by the collector's thread alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ddptop.sources.series_points import at_new_steps, band_points, points_of
from ddptop.sources.snapshot import Wish
from ddptop.view.series import AttemptSteps, ChartData, Frame
from ddptop_runner.base.median import median
from ddptop_runner.job.old_events import alert_of
from ddptop_runner.job.registry import JobView
from ddptop_runner.judge.balance.imbalance import marked
from ddptop_runner.model.run_step import is_printed
from ddptop_runner.model.snapshot import Alert
from ddptop_runner.store.history import HistoryReader
from ddptop_runner.store.history_reader import (
    AttemptTaken,
    BandReader,
    attempts_taken,
    points_for,
    rows_read,
    width_of,
)

BAND_RANKS = 64
"""Of more ranks the history adds up least, median and greatest; only odd ones are read alone."""

ODD_SHOWN = 6
"""Maximum number of outlier ranks drawn next to the band."""

SOON_ROWS = 100_000
"""Rows aggregated in 0.3 s; with more, the first read of a part is coarse."""

REJUDGE_S = 30.0
"""A rank more leaves the band no sooner than this after the last one."""

MAX_REDRAW_S = 15.0
"""The chart of a live job is read again at least this often."""

GLANCE_S = 5.0
"""Beside other jobs it is read again no sooner than this."""


def redraw_pause_s(chart: Frame, wish: Wish) -> float:
    """How long a chart stays valid: until it would change by a column."""
    step_s = (chart.until - chart.since) / max(1, wish.chart_columns)
    return min(MAX_REDRAW_S, max(0.9 if wish.follow else GLANCE_S, step_s))


def odd_ranks(view: JobView, reader: HistoryReader) -> tuple[int, ...]:
    """Ranks whose loss has left the others': by the alerts, and of an ended job by its story."""
    alerts: Sequence[Alert] = () if view.snapshot is None else view.snapshot.alerts
    if not view.is_live:
        alerts = [alert_of(event) for event in reader.events() if event.type == "alert"]
    found = marked(alerts)
    return tuple(sorted(rank for rank, figures in found.items() if "loss" in figures))


def away_from_median(
    recent: Mapping[int, Mapping[int, float]], odd: Sequence[int]
) -> dict[int, float]:
    """By which ratio some ranks are away from the median.

    Args:
        recent: by bucket, each rank's value.
        odd: the ranks.
    """
    found: dict[int, list[float]] = {}
    for values in recent.values():
        usual = median(values.values()) if values else 0.0
        for rank in odd if usual else ():
            if rank in values:
                found.setdefault(rank, []).append((values[rank] - usual) / abs(usual))
    return {rank: median(away) for rank, away in found.items()}


class ChartSource:
    """One job's chart, reread only when it may look different."""

    def __init__(self) -> None:
        self._key: object = None
        self._at = 0.0
        self._chart = ChartData()
        self._bands: tuple[Path, BandReader] | None = None
        self._many = False
        self._ranks = 0
        self._rough_for: object = None
        """What was read with few points, and is to be read with all of them next time."""
        self._without: tuple[int, ...] = ()
        """Ranks that are no part of the band, as of `_without_at`."""
        self._without_at = -REJUDGE_S
        self._attempts: tuple[object, object, list[AttemptTaken]] = (None, None, [])
        """The history, the time up to which it was read, and the result."""

    def read(self, view: JobView, wish: Wish, now_s: float) -> ChartData:
        """The losses over the window that is wished for; the same object while nothing changed."""
        reader = HistoryReader(view.folder.history_db)
        self._ranks = view.spec.nproc if view.snapshot is None else len(view.snapshot.ranks)
        self._many = self._ranks > BAND_RANKS
        asked = (wish.chart_window_s, wish.chart_until, wish.chart_columns)
        key = (view.spec.job_id, *asked, wish.log_rank if self._many else None, view.state)
        pause_s = redraw_pause_s(self._chart, wish)
        if key == self._key and (not view.is_live or now_s - self._at < pause_s):
            return self._chart
        self._key, self._at = key, now_s
        span = reader.span()
        if span is None:
            self._chart = ChartData(window_s=wish.chart_window_s, ended=not view.is_live)
            return self._chart
        until = max(span[1] + 1, now_s) if view.is_live else span[1] + 1
        whole = float(span[0]), float(until)
        if wish.chart_until is not None:
            until = min(until, wish.chart_until)
        since = whole[0]
        if wish.chart_window_s is not None:
            since = max(until - wish.chart_window_s, 0.0)
        taken = self._taken(reader, span, printed=is_printed(view.snapshot))
        frame = ChartData(
            odd=odd_ranks(view, reader),
            since=since,
            until=until,
            window_s=wish.chart_window_s,
            marks=tuple((one.started, f"attempt {one.attempt}") for one in taken if one.attempt),
            ended=not view.is_live,
            whole=whole,
            attempts=tuple(
                AttemptSteps(one.attempt, one.started, one.before, one.first) for one in taken
            ),
            last_step=taken[-1].before + (taken[-1].taken or 0) if taken else None,
        )
        scalars = reader.scalar_series(since, until, wish.chart_columns)
        frame = replace(
            frame, scalars={name: at_new_steps(points_of(one)) for name, one in scalars.items()}
        )
        self._chart = self._filled(frame, reader, wish, span[1], now_s)
        return self._chart

    def _most_points(self, path: Path, since: int, until: int, wish: Wish) -> int:
        """How many points of very many ranks are read: at first few, so that they are seen soon."""
        most = wish.chart_columns
        part = (path, wish.chart_window_s, wish.chart_until, most)
        rows = rows_read(since, until, width_of(since, until, most), self._ranks)
        if part == self._rough_for or rows <= SOON_ROWS:
            return most
        self._rough_for, self._key = part, None
        return min(most, max(2, points_for(since, until, self._ranks, SOON_ROWS)))

    def _taken(
        self, reader: HistoryReader, span: tuple[int, int], *, printed: bool
    ) -> list[AttemptTaken]:
        """Each attempt's steps; reread each time because the last attempt is still running."""
        of, seen, known = self._attempts
        if of != (reader.path, printed):
            known = []
        elif seen == span:
            return known
        taken = attempts_taken(reader, printed=printed, known=known)
        self._attempts = (reader.path, printed), span, taken
        return taken

    def _filled(
        self, frame: ChartData, reader: HistoryReader, wish: Wish, newest: int, now_s: float
    ) -> ChartData:
        """The frame with curves: of each rank, or of very many as one band."""
        since, until, most = frame.since, frame.until, wish.chart_columns
        if self._many:
            most = self._most_points(reader.path, int(since), int(until), wish)
        if not self._many:
            series = reader.rank_series("loss", since, until, most)
            points = {rank: at_new_steps(points_of(one)) for rank, one in series.items()}
            return replace(frame, series=points)
        if self._bands is None or self._bands[0] != reader.path:
            self._bands, self._without = (reader.path, BandReader(reader)), ()
        bands = self._bands[1]
        width_s = width_of(int(since), int(until), most)
        apart = away_from_median(bands.recent("loss", min(until, newest), width_s), frame.odd)
        if not set(apart) <= set(self._without) and now_s - self._without_at >= REJUDGE_S:
            # those that lie apart do not belong to the band: all of it is then read anew
            self._without, self._without_at = tuple(sorted({*self._without, *apart})), now_s
        band = bands.read("loss", since, until, most, self._without)
        odd = sorted(apart, key=lambda rank: -abs(apart[rank]))[:ODD_SHOWN]
        shown = {*odd, *bands.not_finite_ranks(band)[:ODD_SHOWN]}
        if wish.log_rank is not None and wish.log_rank >= 0:
            shown.add(wish.log_rank)
        alone = reader.few_ranks("loss", sorted(shown), since, until, width_s)
        return replace(
            frame,
            series={rank: at_new_steps(points_of(one)) for rank, one in alone.items()},
            middle=at_new_steps(band_points(band)) if band.t else None,
            apart={rank: apart[rank] for rank in odd},
            number=max(band.ranks, default=0) + len(self._without),
        )
