"""Reads one job; the queries and answers of the job screen and the log screen."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ddptop.job.attempts import in_order
from ddptop.job.loss_trend import SPARK_S, Recent
from ddptop.job.record import Job
from ddptop.job.series import ChartData
from ddptop.sources.history import (
    ChartQuery,
    ChartSource,
    Histories,
    JobHistory,
    Paced,
    at_new_steps,
    points_of,
)
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.judge.balance.imbalance import RankDeviation, deviations
from ddptop_runner.model.snapshot import Event, RankSample

CAUSE_LINES = 12
EVENTS_SHOWN = 300

SPARK_POINTS = 60
SPARK_EVERY_S = SPARK_S / SPARK_POINTS

MOST_SPARKS = 16
"""With more ranks, the screen shows no cards, and their figures are not read."""


class JobDetail(msgspec.Struct, frozen=True):
    """Everything the panels of a job show except its log."""

    view: Job
    chart: ChartData = msgspec.field(default_factory=ChartData)
    events: tuple[Event, ...] = ()
    """Latest first."""
    deviations: Mapping[int, RankDeviation] = msgspec.field(default_factory=dict)
    """Each rank's deviation from the median of its job."""
    cause_tail: tuple[str, ...] = ()
    """Last log lines of the first rank that failed."""
    recent: Recent = msgspec.field(default_factory=Recent)
    """Trend and sparklines of the last minutes."""
    trouble: str | None = None
    """Why something could not be read."""
    only: frozenset[int] | None = None
    """Ranks that match the filter; None: all."""

    @property
    def ranks(self) -> list[RankSample]:
        """The ranks that match the filter."""
        ranks = self.view.snapshot.ranks
        return ranks if self.only is None else [rank for rank in ranks if rank.rank in self.only]


class JobQuery(Query, frozen=True, kw_only=True):
    """A job with its losses and latest events."""

    job: str
    chart: ChartQuery

    def answer(self, look: Look, sources: Sources) -> JobAnswer:
        """Read the job, unless it is gone."""
        view = look.job(self.job)
        detail = None if view is None else _detail(view, self.chart, look.now_s, sources)
        return JobAnswer(query=self, look=look, view=view, detail=detail)


class JobAnswer(Answer, frozen=True, kw_only=True):
    """What the job screen shows."""

    detail: JobDetail | None = None
    """None if the job is gone."""

    @property
    def now(self) -> dt.datetime:
        """The time that the screen shows."""
        return self.look.taken_at


class LogsQuery(Query, frozen=True, kw_only=True):
    """A job without its log: that has its own reader; a foreign job's output is `followed`."""

    job: str

    def answer(self, look: Look, sources: Sources) -> Answer:
        """Read the job, unless it is gone."""
        return Answer(query=self, look=look, view=look.job(self.job))


def chart_of(
    view: Job, query: ChartQuery, now_s: float, sources: Sources
) -> tuple[ChartData, str | None]:
    """The losses of any job, and why they cannot be read, if so."""
    if view.is_foreign:
        return sources.foreign.chart(view, query, now_s), None
    try:
        history = sources[Histories].of(view)
        return sources[ChartSource].read(view, history, query, now_s), None
    except DdptopError as error:
        return ChartData(), str(error)


def deviations_of(view: Job) -> Mapping[int, RankDeviation]:
    """Each rank's deviation from the median of its job."""
    snapshot = view.snapshot
    alerts = snapshot.alerts if view.is_live else ()
    return deviations(snapshot.ranks, snapshot.gpus, alerts)


def _detail(view: Job, query: ChartQuery, now_s: float, sources: Sources) -> JobDetail:
    chart, trouble = chart_of(view, query, now_s, sources)
    cause_tail: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    recent = Recent()
    if view.is_foreign:
        events = sources.foreign.events(view)
        recent = sources.foreign.recent(view, now_s)
    else:
        cause_tail = sources[CauseSource].read(view)
        try:
            history = sources[Histories].of(view)
            events = tuple(reversed(in_order(history.events(EVENTS_SHOWN))))
            recent = sources[RecentSource].read(view, history, now_s)
        except DdptopError as error:
            trouble = str(error)
    return JobDetail(
        view=view,
        chart=chart,
        events=events,
        deviations=deviations_of(view),
        cause_tail=cause_tail,
        recent=recent,
        trouble=trouble,
    )


class CauseSource:
    """The last log lines of the first failure, read once per failure."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lines: tuple[str, ...] = ()

    def read(self, view: Job) -> tuple[str, ...]:
        """The last lines of the rank that failed first, or of a command."""
        snapshot = view.snapshot
        if snapshot.cause is None:
            return ()
        rank, attempt = snapshot.cause.rank, snapshot.attempt or 0
        if rank is None and not view.spec.is_command:
            return ()
        path = view.folder.log_file(attempt, LAUNCHER if rank is None else rank)
        if self._path != path:
            from ddptop_runner.store.logs import last_words

            _, lines = last_words(view.folder, attempt, rank, CAUSE_LINES)
            self._path, self._lines = path, tuple(lines)
        return self._lines


class RecentSource:
    """Each rank's step times and losses over the last minutes."""

    def __init__(self) -> None:
        self._recent = Paced[Recent]()

    def read(self, view: Job, history: JobHistory, now_s: float) -> Recent:
        """The last minutes and the trend of the loss.

        Raises:
            DdptopError: the history cannot be read.
        """
        key, trend = (view.spec.job_id, view.is_live), history.trend(view, now_s)
        recent = self._recent.get(key, now_s, lambda: _read_recent(view, history))
        return msgspec.structs.replace(recent, trend=trend)


def _read_recent(view: Job, history: JobHistory) -> tuple[Recent, float]:
    run, pause_s = history.reader.span(), SPARK_EVERY_S if view.is_live else math.inf
    ranks = 0 if view.snapshot is None else len(view.snapshot.ranks)
    if run is None or not 0 < ranks <= MOST_SPARKS:
        return Recent(), pause_s
    until = float(run[1] + 1)
    losses = history.reader.rank_series("loss", until - SPARK_S, until, SPARK_POINTS)
    points = {rank: at_new_steps(points_of(one)) for rank, one in losses.items()}
    return Recent(losses=points), pause_s
