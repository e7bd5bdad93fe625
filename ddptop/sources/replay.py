"""Reads a job as it was at one time; the replay screen's query and answer."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from ddptop.job.attempts import Course, marks_of, opening
from ddptop.job.record import Job, past_job
from ddptop.job.series import ChartData
from ddptop.sources.job import EVENTS_SHOWN, JobAnswer, JobDetail, JobQuery, chart_of
from ddptop.sources.query import Look, Sources
from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.moment import Moment, MomentReader
from ddptop_runner.judge.balance.imbalance import deviations
from ddptop_runner.model.snapshot import Cause

COURSE_POINTS = 600
"""Gaps in the record are rounded to this many cells of the timeline."""
COURSE_EVERY_S = 5.0
"""How often the course of a live job is read again."""


class ReplayQuery(JobQuery, frozen=True, kw_only=True):
    """A job as it was at one time."""

    at: float | None = None
    """Unix seconds; None: shortly before the latest failure or hang, else the end."""

    def answer(self, look: Look, sources: Sources) -> ReplayAnswer:
        """Read the job as it was, unless it is gone."""
        answer = ReplayAnswer(query=self, look=look, view=look.job(self.job))
        job = answer.view
        if job is None or not job.has_history:
            return answer
        chart, _ = chart_of(job, self.chart, look.now_s, sources)
        return sources[ReplaySource].read(answer, job, self.at, chart)


class ReplayAnswer(JobAnswer, frozen=True, kw_only=True):
    """What the job screen shows, at one time, and the course of the whole run."""

    at: float | None = None
    """The time shown, unix seconds; None if there is no history."""
    width_s: int | None = None
    """Resolution of the record at this time, in seconds; None if nothing was recorded."""
    course: Course | None = None
    trouble: str | None = None
    """Why there is nothing to show."""
    attempt_started: float | None = None
    """When the attempt shown started, unix seconds."""

    @property
    def now(self) -> dt.datetime:
        """The time that the screen shows."""
        return super().now if self.at is None else utc_from_unix(self.at)


@dataclass
class _Job:
    """The job being replayed, with its reader and course."""

    job_id: str
    reader: MomentReader
    course: Course | None = None
    read_at_s: float = field(default=float("-inf"))


class ReplaySource:
    """Reads a job's past. Used only by the collector's thread."""

    def __init__(self) -> None:
        self._job: _Job | None = None

    def read(
        self, answer: ReplayAnswer, view: Job, at: float | None, chart: ChartData
    ) -> ReplayAnswer:
        """The answer, completed with the job at the given time.

        Args:
            answer: the answer to complete.
            view: the job as it is now.
            at: unix seconds; None: where a replay starts.
            chart: its losses in the whole run.
        """
        try:
            course = self._course(view)
            if course is None:
                return replace(answer, trouble=f"{view.name} has no history")
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

    def _known(self, view: Job) -> _Job:
        if self._job is None or self._job.job_id != view.spec.job_id:
            self._job = _Job(view.spec.job_id, MomentReader(view.folder, view.spec))
        return self._job

    def _course(self, view: Job) -> Course | None:
        """The course of the whole run; that of an ended job is read once."""
        known, now_s = self._known(view), time.monotonic()
        old = known.course
        is_old = old is None or (old.live and now_s - known.read_at_s >= COURSE_EVERY_S)
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


def _past(view: Job, moment: Moment) -> Job:
    """The job with its snapshot at that time."""
    snapshot = replace(
        moment.snapshot,
        cause=_without_key(moment.snapshot.cause),
        previous_cause=_without_key(moment.snapshot.previous_cause),
    )
    return past_job(view, snapshot, utc_from_unix(moment.at))


def _without_key(cause: Cause | None) -> Cause | None:
    """The cause without its evidence, because the replay screen has no key to open it."""
    return None if cause is None else replace(cause, evidence=None)
