"""A job as it was at one moment: what its screen asks and gets, and how it is read."""

from __future__ import annotations

import datetime as dt
import functools
import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from ddptop.sources.job import EVENTS_SHOWN, JobAnswer, JobDetail, JobQuery, chart_of
from ddptop.sources.query import Look, Sources
from ddptop.view.course import Course, marks_of, opening
from ddptop.view.series import ChartData
from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.moment import Moment, MomentReader
from ddptop_runner.job.registry import JobView
from ddptop_runner.judge.balance.imbalance import deviations
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.words import LIVE_STATES, JobState

COURSE_POINTS = 600
"""Gaps are told as exactly as so many cells can show them."""
LOOK_AGAIN_S = 5.0
"""The course of a live job is read again this often."""


class PastView(JobView, frozen=True, dict=True):
    """A job as it was: no process is asked whether it lives."""

    @functools.cached_property
    def guarded(self) -> bool | None:
        """Nobody knows whether it had a guardian then."""
        return None

    @functools.cached_property
    def needs_guardian(self) -> bool:
        """What was needs none."""
        return False

    @functools.cached_property
    def on_other_host(self) -> bool:
        """What was is as far away as another host."""
        return False

    @functools.cached_property
    def state(self) -> JobState:
        """The state according to its events."""
        return "starting" if self.snapshot is None else self.snapshot.state

    @property
    def is_live(self) -> bool:
        """Whether it lived then."""
        return self.state in LIVE_STATES

    @property
    def snapshot_age_s(self) -> float | None:
        """It is of the very moment that is shown."""
        return 0.0


class ReplayQuery(JobQuery, frozen=True, kw_only=True):
    """A job as it was at a moment."""

    at: float | None = None
    """Unix seconds; None is shortly before it failed or hung last, else its last moment."""

    def answer(self, look: Look, sources: Sources) -> ReplayAnswer:
        """The job then, unless it is gone."""
        answer = ReplayAnswer(query=self, look=look, view=look.job(self.job))
        if not isinstance(answer.view, JobView):
            return answer
        chart, _ = chart_of(answer.view, self.chart, look.now_s, sources)
        return sources[ReplaySource].read(answer, answer.view, self.at, chart)


class ReplayAnswer(JobAnswer, frozen=True, kw_only=True):
    """What the job screen shows, as it was at one moment, and where that lies in its history."""

    at: float | None = None
    """Unix seconds of the moment; None where there is no history."""
    width_s: int | None = None
    """How exactly it is known; None where nothing was recorded then."""
    course: Course | None = None
    trouble: str | None = None
    """Why there is nothing to see, in words."""
    attempt_started: float | None = None
    """Unix seconds."""

    @property
    def now(self) -> dt.datetime:
        """The moment."""
        return super().now if self.at is None else utc_from_unix(self.at)


@dataclass
class _Job:
    """What is kept of the job that is replayed."""

    job_id: str
    reader: MomentReader
    course: Course | None = None
    read_at_s: float = field(default=float("-inf"))


class ReplaySource:
    """Reads it. Used by the collector's thread alone."""

    def __init__(self) -> None:
        self._job: _Job | None = None

    def read(
        self, answer: ReplayAnswer, view: JobView, at: float | None, chart: ChartData
    ) -> ReplayAnswer:
        """The answer with the job at a moment.

        Args:
            answer: it without the job.
            view: the job as it is now.
            at: unix seconds; None is where a replay begins.
            chart: its losses.
        """
        try:
            course = self._course(view)
            if course is None:
                return replace(answer, trouble=f"{view.job} has no history")
            at = min(max(opening(course) if at is None else at, course.first), course.last)
            moment = self._known(view).reader.read(at, view.snapshot)
        except DdptopError as error:
            return replace(answer, trouble=str(error))
        state = moment.snapshot
        started = state.attempt_started_at
        return replace(
            answer,
            at=at,
            width_s=moment.width_s,
            course=course,
            detail=JobDetail(
                view=_past(view, moment),
                chart=chart,
                events=tuple(reversed(moment.events[-EVENTS_SHOWN:])),
                deviations=deviations(state.ranks, state.gpus, state.alerts),
            ),
            attempt_started=None if started is None else started.timestamp(),
        )

    def _known(self, view: JobView) -> _Job:
        if self._job is None or self._job.job_id != view.spec.job_id:
            self._job = _Job(view.spec.job_id, MomentReader(view.folder, view.spec))
        return self._job

    def _course(self, view: JobView) -> Course | None:
        """The whole history; of an ended job it is read once."""
        known, now_s = self._known(view), time.monotonic()
        old = known.course
        is_old = old is None or (old.live and now_s - known.read_at_s >= LOOK_AGAIN_S)
        if is_old or (old is not None and old.live != view.is_live):
            known.read_at_s = now_s
            span = known.reader.span()
            known.course = None if span is None else Course(
                first=span[0],
                last=span[1],
                recorded=tuple(known.reader.recorded(COURSE_POINTS)),
                marks=marks_of(known.reader.events()),
                live=view.is_live,
            )  # fmt: skip
        return known.course


def _past(view: JobView, moment: Moment) -> PastView:
    """The job with its snapshot of then."""
    snapshot = replace(
        moment.snapshot,
        cause=_without_key(moment.snapshot.cause),
        previous_cause=_without_key(moment.snapshot.previous_cause),
    )
    return PastView(view.folder, view.spec, snapshot, read_at=utc_from_unix(moment.at))


def _without_key(cause: Cause | None) -> Cause | None:
    """A cause whose evidence is not offered: the key for it is the story's."""
    return None if cause is None else replace(cause, evidence=None)
