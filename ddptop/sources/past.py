"""Reads a job's past: its attempts, and the job as it was at one time.

The queries and answers of the story and the replay screen.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ddptop.job.attempts import FAILURES, Attempt, Course, attempts_of, in_order, marks_of, opening
from ddptop.job.record import Job, past_job
from ddptop.job.series import ChartData, Tail
from ddptop.sources.history import Histories, JobHistory
from ddptop.sources.hooks import hook_events
from ddptop.sources.job import EVENTS_SHOWN, JobAnswer, JobDetail, JobQuery, chart_of
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.moment import Moment, MomentReader
from ddptop_runner.judge.balance.imbalance import deviations
from ddptop_runner.model import events as ev
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import Cause, Event
from ddptop_runner.store.history_reader import attempts_taken

MOST_EVENTS = 20_000
"""Maximum number of events shown; earlier ones are left out."""


class StoryQuery(Query, frozen=True, kw_only=True):
    """Every attempt of a job."""

    job: str
    attempt: int | None = None
    """The attempt whose last log lines are needed; None: the latest."""

    def answer(self, look: Look, sources: Sources) -> StoryAnswer:
        """Read the story, unless the job is gone."""
        view, story = look.job(self.job), None
        if view is not None and view.has_history:
            story = read_story(view, sources[Histories].of(view), self.attempt)
        return StoryAnswer(query=self, look=look, view=view, story=story)


class StoryAnswer(Answer, frozen=True, kw_only=True):
    """What the story screen shows."""

    story: Story | None = None
    """None if the job is gone."""


@dataclass(frozen=True)
class Story:
    """What happened to a job, attempt by attempt."""

    job: str = ""
    attempts: tuple[Attempt, ...] = ()
    """Latest first."""
    tail: Tail | None = None
    """Last log lines of the requested attempt if it failed."""
    trouble: str | None = None
    """Why something could not be read."""


def read_story(view: Job, history: JobHistory, chosen: int | None = None) -> Story:
    """The story, with the last log lines of attempt `chosen`, or of the latest attempt."""
    snapshot = view.snapshot
    try:
        events, hooks = history.events(MOST_EVENTS), hook_events(view.folder.path)
        seq = events[-1].seq if events else 0
        key = (seq, hooks[-1:], view.state, snapshot.attempt, snapshot.step)
        attempts = history.cached(
            "attempts", key, 0.0, lambda: (_attempts(view, history, [*events, *hooks]), math.inf)
        )
    except DdptopError as error:
        return Story(view.name, trouble=str(error))
    shown, tail = next((one for one in attempts if chosen in (None, one.number)), None), None
    if shown is not None and shown.ending == "failed" and shown.cause is not None:
        tail = history.last_output(view, shown.number, shown.cause.rank)
    return Story(view.name, attempts, tail)


def _attempts(view: Job, history: JobHistory, events: Sequence[Event]) -> tuple[Attempt, ...]:
    """The attempts, with their steps: from the history, or exactly from the end of one."""
    snapshot = view.snapshot
    printed = run_step.is_printed(snapshot)
    taken = attempts_taken(history.reader, printed=True) if printed else history.attempts()
    steps = {one.attempt: one.taken for one in taken if one.taken is not None}
    for judged in map(ev.of_row, (event for event in events if event.type in FAILURES)):
        outcome = judged.outcome if isinstance(judged, ev.FailureJudged | ev.HangJudged) else None
        if outcome is not None and outcome.steps is not None:
            steps[judged.attempt or 0] = outcome.steps
    if not printed and snapshot.attempt is not None and snapshot.step is not None:
        steps[snapshot.attempt] = snapshot.step
    return attempts_of(in_order(events), view.state, view.ended_at, steps)


# --- as it was ------------------------------------------------------------------------------------

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
        return read_replay(answer, job, self.at, chart, sources[Histories].of(job))


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


def read_replay(
    answer: ReplayAnswer, view: Job, at: float | None, chart: ChartData, history: JobHistory
) -> ReplayAnswer:
    """The answer, completed with the job at the given time.

    Args:
        answer: the answer to complete.
        view: the job as it is now.
        at: unix seconds; None: where a replay starts.
        chart: its losses in the whole run.
        history: its history.
    """
    reader = history.cached(
        "moments", None, 0.0, lambda: (MomentReader(view.folder, view.spec), math.inf)
    )
    try:
        course = history.cached(
            "course", view.is_live, time.monotonic(), lambda: _course(view, reader)
        )
        if course is None:
            return replace(answer, trouble=f"{view.name} has no history")
        at = min(max(opening(course) if at is None else at, course.first), course.last)
        moment = reader.read(at, view.snapshot)
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


def _course(view: Job, reader: MomentReader) -> tuple[Course | None, float]:
    """The course of the whole run; that of an ended job is read once."""
    span = reader.span()
    if span is None:
        return None, 0.0
    course = Course(
        first=span[0],
        last=span[1],
        recorded=tuple(reader.recorded(COURSE_POINTS)),
        marks=marks_of(reader.events()),
        live=view.is_live,
    )
    return course, COURSE_EVERY_S if view.is_live else math.inf


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
