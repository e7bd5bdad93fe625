"""Reads foreign jobs, which ddptop did not start. Used only by the collector's thread."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ddptop.job.loss_trend import (
    POINTS,
    SHARE,
    LossTrend,
    Recent,
    last_tenth,
    medians,
    stretch_s,
    trend,
)
from ddptop.job.record import Job, foreign_job
from ddptop.job.series import ChartData, Points
from ddptop.logs.messages import LogKey, LogRead
from ddptop.sources.chart import ChartQuery, points_of, redraw_pause_s
from ddptop.sources.job import TREND_EVERY_S
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


@dataclass(frozen=True)
class ForeignLook:
    """What one poll found."""

    jobs: tuple[Job, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    owners: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    """Job and rank of each process, by pid."""


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
        self._chart_key: object = None
        self._chart_span: object = None
        self._chart_at = 0.0
        self._chart = ChartData()
        self._recent = Recent()
        self._recent_of: str | None = None
        self._recent_until = 0.0
        self._shown: tuple[LogKey, NewLines] | None = None
        """The key of the log on screen, and its last lines."""

    def read(self, gpus: Sequence[GpuSample], now: dt.datetime, follow: str | None) -> ForeignLook:
        """Every foreign job now; all processes are scanned every CENSUS_EVERY_S."""
        if (now_s := boottime_s()) >= self._next_census_s:
            self._next_census_s = now_s + CENSUS_EVERY_S
            self._census = self._host.scan(gpus)
        views = self._book.update(self._census, gpus, now, follow=follow)
        return ForeignLook(
            tuple(
                foreign_job(view, self.stopping.get(view.job), self.ended_by.get(view.job))
                for view in views
            ),
            self._census.unreadable,
            rank_of_pid(views),
        )

    def chart(self, view: Job, query: ChartQuery, now_s: float) -> ChartData:
        """The losses found in its output; the same object while nothing changes."""
        span = self._book.span(view.name)
        part = (query.window_s, query.until, query.columns)
        whole = self._book.is_whole(view.name)
        key = (view.name, *part, span is None, whole, view.state, view.output)
        spans = span, self._book.span(view.name, by_step=True)
        pause_s = redraw_pause_s(self._chart, query)
        fresh = now_s - self._chart_at < pause_s or spans == self._chart_span
        if key == self._chart_key and fresh:
            return self._chart
        self._chart_key, self._chart_span, self._chart_at = key, spans, now_s
        if span is None:
            self._chart = ChartData(
                window_s=query.window_s,
                ended=not view.is_live,
                watched=True,
                empty=no_loss(view),
                stepped=self._stepped(view),
            )
            return self._chart
        since, until, extent = query.part(span, now_s, live=view.is_live)
        series, scalars = self._book.chart(view.name, since, until, query.columns)
        self._chart = ChartData(
            series={rank: points_of(one) for rank, one in series.items()},
            scalars={name: points_of(one) for name, one in scalars.items()},
            empty=no_loss(view),
            since=since,
            until=until,
            window_s=query.window_s,
            ended=not view.is_live,
            watched=True,
            whole=extent,
            stepped=self._stepped(view),
        )
        return self._chart

    def _stepped(self, view: Job) -> ChartData | None:
        """The losses by step, also those of unknown time; None if its output shows no steps."""
        span = self._book.span(view.name, by_step=True)
        if span is None:
            return None
        series, scalars = self._book.chart(view.name, *span, STEPPED_POINTS, by_step=True)
        whole = self._book.is_whole(view.name)
        first = min(0.0, span[0]) if whole else span[0]
        return ChartData(
            series={rank: _by_step(one) for rank, one in series.items()},
            scalars={name: _by_step(one) for name, one in scalars.items()},
            since=first,
            until=max(span[1], first + 1),
            ended=not view.is_live,
            watched=not whole,
            by_step=True,
        )

    def recent(self, view: Job, now_s: float) -> Recent:
        """The trend of the loss in its output; the same object between updates."""
        if view.name == self._recent_of and now_s < self._recent_until:
            return self._recent
        self._recent_of, self._recent_until = view.name, now_s + TREND_EVERY_S[0]
        self._recent = Recent(self._trend(view))
        return self._recent

    def _trend(self, view: Job) -> LossTrend | None:
        """The trend over the last tenth of the run, by step if its output shows them.

        By time, it is unknown until the job has been watched that long.
        """
        span = self._book.span(view.name, by_step=True)
        if span is not None:
            series, _ = self._book.chart(view.name, *span, int(POINTS / SHARE), by_step=True)
            losses = medians({rank: _by_step(one) for rank, one in series.items()})
            return trend(last_tenth(losses), by_step=True)
        if (span := self._book.span(view.name)) is None:
            return None
        until = span[1] + 1.0
        since = until - stretch_s(until - view.created_at.timestamp())
        if since < span[0]:
            return None
        series, _ = self._book.chart(view.name, since, until, POINTS)
        return trend(medians({rank: points_of(one) for rank, one in series.items()}))

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
        key = LogKey(view.name, view.name, rank, viewer)
        known = self._shown[1] if self._shown is not None and self._shown[0] == key else NewLines()
        new = self._book.lines(view.name, rank, known.mark)
        is_first = self._shown is None or self._shown[0] != key
        self._shown = key, new
        if not is_first and not new.is_reset and not new.lines and new.partial == known.partial:
            return None
        return LogRead(key, list(new.lines), is_first or new.is_reset, new.partial)

    def forget_log(self) -> None:
        """Forget the log on screen; the next call of `log` returns the last lines again."""
        self._shown = None

    def close(self) -> None:
        """Close every open file."""
        self._book.close()


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
