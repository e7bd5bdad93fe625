"""Reads foreign jobs, which ddptop did not start. Used only by the collector's thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ddptop.job.record import Job, foreign_job
from ddptop.job.series import (
    SHARE,
    TREND_POINTS,
    ChartData,
    LossTrend,
    Points,
    Recent,
    middle_of,
    stretch_s,
    trend,
)
from ddptop.logs.messages import LogRead
from ddptop.sources.history import TREND_EVERY_S, ChartQuery, Paced, points_of, redraw_pause_s
from ddptop_runner.base.clock import boottime_s
from ddptop_runner.foreign.census import HostCensus
from ddptop_runner.foreign.types import Census, Unreadable
from ddptop_runner.foreign.watch import ForeignBook, NewLines
from ddptop_runner.job.registry import rank_of_pid
from ddptop_runner.model.snapshot import Event, GpuSample
from ddptop_runner.store.history_reader import Series

STEPPED_POINTS = 4096
"""Points of a curve by step, which is read whole however far the chart is zoomed in."""
CENSUS_EVERY_S = 4.0
"""Scanning every process of the machine costs more than polling the known ones."""


class ForeignSource:
    """The foreign jobs of this host; the one whose screen is open remains after its end."""

    def __init__(self) -> None:
        self.ended_by: dict[str, str] = {}
        """By job: the signal from this viewer that ended it."""
        self.stopping: dict[str, str] = {}
        """By job: the signals that this viewer is sending, in words."""
        self._host = HostCensus()
        self._book = ForeignBook()
        self._census = Census()
        self._next_census_s = 0.0
        self._chart = Paced[ChartData]()
        self._trend = Paced[LossTrend | None]()
        self._shown: tuple[tuple[object, ...], NewLines] | None = None
        """Job, rank, and viewer of the log on screen, and its last lines."""

    def read(
        self, gpus: Sequence[GpuSample], now: dt.datetime, follow: str | None
    ) -> tuple[list[Job], tuple[Unreadable, ...], dict[int, tuple[str, int | None]]]:
        """Every foreign job now, unreadable processes, and job and rank of each process by pid.

        All processes are scanned every CENSUS_EVERY_S.
        """
        if (now_s := boottime_s()) >= self._next_census_s:
            self._next_census_s = now_s + CENSUS_EVERY_S
            self._census = self._host.scan(gpus)
        views = self._book.update(self._census, gpus, now, follow=follow)
        jobs = [
            foreign_job(view, self.stopping.get(view.job), self.ended_by.get(view.job))
            for view in views
        ]
        return jobs, self._census.unreadable, rank_of_pid(views)

    def chart(self, view: Job, query: ChartQuery, now_s: float) -> ChartData:
        """The losses found in its output; the same object while nothing changes."""
        has_times = self._book.curves(view.name).span() is not None
        unknown = has_times, self._book.is_whole(view.name), view.output
        key = (view.name, query, view.state, *unknown)

        def read() -> tuple[ChartData, float]:
            chart = self._read_chart(view, query, now_s)
            return chart, redraw_pause_s(chart, query, live=view.is_live)

        return self._chart.get(key, now_s, read)

    def _read_chart(self, view: Job, query: ChartQuery, now_s: float) -> ChartData:
        common = ChartData(
            ended=not view.is_live, watched=True, empty=no_loss(view), stepped=self._stepped(view)
        )
        curves = self._book.curves(view.name)
        if (span := curves.span()) is None:
            return common
        since, until, extent = query.part(span, now_s, live=view.is_live)
        found = curves.series(since, until, query.columns)
        return msgspec.structs.replace(
            common, since=since, until=until, whole=extent, **_losses(*found, points_of)
        )

    def _stepped(self, view: Job) -> ChartData | None:
        """The losses by step, also those of unknown time; None if its output shows no steps."""
        curves = self._book.curves(view.name, by_step=True)
        if (span := curves.span()) is None:
            return None
        found = curves.series(*span, STEPPED_POINTS)
        whole = self._book.is_whole(view.name)
        first = min(0.0, span[0]) if whole else span[0]
        return ChartData(
            since=first,
            until=max(span[1], first + 1),
            ended=not view.is_live,
            watched=not whole,
            by_step=True,
            **_losses(*found, _by_step),
        )

    def recent(self, view: Job, now_s: float) -> Recent:
        """The trend of the loss in its output; the same object between updates."""
        found = self._trend.get(
            view.name, now_s, lambda: (self._read_trend(view), TREND_EVERY_S[0])
        )
        return Recent(found)

    def _read_trend(self, view: Job) -> LossTrend | None:
        """The trend over the last tenth of the run, by step if its output shows them.

        By time, it is unknown until the job has been watched that long.
        """
        curves = self._book.curves(view.name, by_step=True)
        if (span := curves.span()) is not None:
            series, _ = curves.series(*span, int(TREND_POINTS / SHARE))
            middle = middle_of({rank: _by_step(one) for rank, one in series.items()})
            return None if middle is None else trend(middle, by_step=True)
        curves = self._book.curves(view.name)
        if (span := curves.span()) is None:
            return None
        until = span[1] + 1.0
        since = until - stretch_s(until - view.created_at.timestamp())
        if since < span[0]:
            return None
        series, _ = curves.series(since, until, TREND_POINTS)
        middle = middle_of({rank: points_of(one) for rank, one in series.items()})
        return None if middle is None else trend(middle)

    def events(self, view: Job) -> tuple[Event, ...]:
        """Events since it was discovered, latest first."""
        events = tuple(self._book.events(view.name))
        if view.ended_by is None:
            return events
        text = f"all processes exited after ddptop sent {view.ended_by}"
        return tuple(
            msgspec.structs.replace(one, message=text) if one.type == "lost" else one
            for one in events
        )

    def log(self, view: Job, rank: int | None, viewer: int) -> LogRead | None:
        """New output since the last call, or None; the first call returns the last lines."""
        key = view.name, rank, viewer
        is_first = self._shown is None or self._shown[0] != key
        known = NewLines() if self._shown is None or is_first else self._shown[1]
        new = self._book.lines(view.name, rank, known.mark)
        self._shown = key, new
        if not is_first and not new.is_reset and not new.lines and new.partial == known.partial:
            return None
        return LogRead(viewer, rank, list(new.lines), is_first or new.is_reset, new.partial)

    def forget_log(self) -> None:
        """Forget the log on screen; the next call of `log` returns the last lines again."""
        self._shown = None

    def close(self) -> None:
        """Close every open file."""
        self._book.close()


def _losses(
    series: Mapping[int, Series], scalars: Mapping[str, Series], convert: Callable[[Series], Points]
) -> dict[str, Any]:
    """What a chart shows of a job's output."""
    ranks = {rank: convert(one) for rank, one in series.items()}
    return {
        "series": ranks,
        "middle": middle_of(ranks),
        "number": len(ranks),
        "scalars": {name: convert(one) for name, one in scalars.items()},
    }


def _by_step(series: Series) -> Points:
    """Convert values by step for the chart; each point is at the middle of its steps."""
    points = points_of(series)
    return msgspec.structs.replace(
        points, t=[t - 0.5 for t in points.t], not_finite=[t - 0.5 for t in points.not_finite]
    )


def no_loss(view: Job) -> str:
    """Why the loss of a job without a probe is unknown."""
    where = f" ({view.output})" if view.output else ""
    return f"no loss found in the job's output{where}"
