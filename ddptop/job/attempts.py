"""A job's attempts, and the marks of its replay, built from its events. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Cause, Event
from ddptop_runner.model.words import JobState

Ending = Literal["lives", "failed", "finished", "stopped", "again", "requeued", "lost", "unknown"]
"""How an attempt ended. `again`: a user restarted all ranks; `lost`: its processes
disappeared without a recorded cause; `unknown`: another attempt followed for an unknown reason."""

FAILURES = ("failure", "hang")
"""Event types that carry the cause of a failure."""


class Attempt(msgspec.Struct, frozen=True):
    """One run of a job's worker group."""

    number: int
    started_at: dt.datetime | None
    """None if no event records it."""
    ended_at: dt.datetime | None
    """None while it is live, or if unknown."""
    ending: Ending
    cause: Cause | None = None
    """Why it failed; None if it did not."""
    steps: int | None = None
    """Optimizer steps taken in it."""
    aftermath: tuple[str, ...] = ()
    """What ddptop did about its end, or found wrong with it until then, one sentence each."""
    events: tuple[Event, ...] = ()
    """In order, including those between the previous attempt and this one."""

    def ran_s(self, now: dt.datetime) -> float | None:
        """How long it has run, or ran, in seconds."""
        if self.started_at is None:
            return None
        until = now if self.ending == "lives" else self.ended_at
        return None if until is None else max(0.0, (until - self.started_at).total_seconds())


def in_order(events: Iterable[Event]) -> list[Event]:
    """Events in the order in which they happened.

    A checkpoint is recorded once it is known to be complete, but happened when it was written.
    """
    found: list[Event] = []
    for event in events:
        place = len(found)
        saved = ev.of_row(event) if event.type == ev.CheckpointSaved.TYPE else None
        if isinstance(saved, ev.CheckpointSaved):
            event = msgspec.structs.replace(event, ts=min(event.ts, saved.checkpoint.at))
            while place and event.ts < found[place - 1].ts:
                place -= 1
        found.insert(place, event)
    return found


def by_attempt(events: Sequence[Event]) -> dict[int, list[Event]]:
    """Events by attempt; one that names no attempt belongs to the attempt before it."""
    found: dict[int, list[Event]] = {}
    waiting: list[Event] = []
    current: int | None = None
    for event in events:
        current = event.attempt if event.attempt is not None else current
        if current is None:
            waiting.append(event)
            continue
        found.setdefault(current, []).extend([*waiting, event])
        waiting = []
    if waiting:
        found[0] = waiting
    return found


def attempts_of(
    events: Sequence[Event], state: JobState, ended_at: dt.datetime | None, steps: Mapping[int, int]
) -> tuple[Attempt, ...]:
    """The attempts that the events describe, latest first.

    Args:
        events: in order.
        state: the job's state, verified.
        ended_at: when the job ended.
        steps: steps taken, by attempt.
    """
    grouped = by_attempt(events)
    last = max(grouped, default=None)
    return tuple(
        _attempt(
            number,
            grouped[number],
            (state, ended_at) if number == last else None,
            steps.get(number),
        )
        for number in sorted(grouped, reverse=True)
    )


_JobEnd = tuple[JobState, "dt.datetime | None"]
"""The job's state, and when it ended; for its last attempt."""


def _attempt(number: int, events: list[Event], job: _JobEnd | None, steps: int | None) -> Attempt:
    started = _last(events, "attempt_started") or _last(events, "launched", "queued")
    failure = _last(events, *FAILURES)
    ending, ended_at = _ending(events, failure, job)
    row = failure or _last(events, "failed")
    first = events[0].ts if events else None
    return Attempt(
        number=number,
        started_at=started.ts if started is not None else first,
        ended_at=ended_at,
        ending=ending,
        cause=ev.cause_in(row) if ending == "failed" and row is not None else None,
        steps=steps,
        aftermath=_aftermath(events, failure),
        events=tuple(events),
    )


def _last(events: Sequence[Event], *types: str) -> Event | None:
    """The last event of any of these types."""
    return next((event for event in reversed(events) if event.type in types), None)


_OVER: dict[str, Ending] = {"finished": "finished", "failed": "failed", "stopped": "stopped"}
"""How the last attempt ended, by event type or job state."""


def _ending(
    events: Sequence[Event], failure: Event | None, job: _JobEnd | None
) -> tuple[Ending, dt.datetime | None]:
    """How an attempt ended, and when; `job` is given only for the last one."""
    state, job_ended_at = (None, None) if job is None else job
    over = _last(events, *_OVER) if state is None else _last(events, state)
    if over is not None and over.type in _OVER:
        # the ranks ended when they failed; that the failure is final was recorded later
        at = failure.ts if failure is not None and over.type == "failed" else over.ts
        return _OVER[over.type], at
    if state == "lost":
        return "lost", job_ended_at
    if failure is not None:
        return "failed", failure.ts
    if state in _OVER:
        return _OVER[state], job_ended_at
    if (requeued := _last(events, "requeued")) is not None:
        return "requeued", requeued.ts
    if (restart := _last(events, "group_restart")) is not None:
        return "again", restart.ts
    if state is not None:
        return "lives", None
    return "unknown", events[-1].ts if events else None


def _aftermath(events: Sequence[Event], failure: Event | None) -> tuple[str, ...]:
    """What ddptop did about an attempt's end, and what it still warned of, from its events.

    Alerts of an attempt that failed are left out: they mostly repeat the cause.
    """
    sentences: list[str] = []
    over = False
    for event in events:
        if event is failure:
            over = True
        elif event.type == "group_restart":
            over = True
            sentences.append(event.message)
        elif (
            (over and event.type == "alert")
            or (event.type == "failed" and failure is not None)
            or event.type == "hook"
            or (failure is None and _is_alert_until_the_end(event))
        ):
            sentences.append(event.message)
    return tuple(dict.fromkeys(sentences))


def _is_alert_until_the_end(row: Event) -> bool:
    event = ev.of_row(row) if row.type == ev.AlertsCleared.TYPE else None
    return isinstance(event, ev.AlertsCleared) and event.with_job


def offsets_of(
    taken: Sequence[tuple[int, int]], reported: Mapping[int, int], *, printed: bool
) -> dict[int, int]:
    """How many steps of the run precede each attempt.

    An attempt whose script does not report where it resumed continues after the previous one.

    Args:
        taken: attempts in order, with the number of steps each took.
        reported: by attempt, the steps before it, for scripts that report them.
        printed: whether steps come from the output, which numbers them across attempts itself.
    """
    if printed:
        return {attempt: 0 for attempt, _ in taken}
    found: dict[int, int] = {}
    end = 0
    for attempt, steps in taken:
        found[attempt] = reported.get(attempt, end)
        end = found[attempt] + steps
    return found or dict(reported)


MarkKind = Literal["attempt", "failure", "hang", "end", "alert", "checkpoint"]


MARKS: dict[MarkKind, tuple[str, str, str]] = {
    "failure": ("F", "bad", "a failure"),
    "hang": ("H", "bad", "a hang"),
    "attempt": ("", "title", "the start of the attempt with that number"),
    "end": ("E", "strong", "the job's end"),
    "alert": ("!", "warn", "an alert"),
    "checkpoint": ("c", "ok", "a checkpoint"),
}
"""Letter, style, and meaning by kind, in order of precedence; an attempt shows its number."""


_KINDS: dict[str, MarkKind] = {
    "attempt_started": "attempt",
    "failure": "failure",
    "hang": "hang",
    "finished": "end",
    "failed": "end",
    "stopped": "end",
    "lost": "end",
    "alert": "alert",
    "hang_suspected": "alert",
    "gpu_lost": "alert",
    "checkpoint": "checkpoint",
}


class Mark(msgspec.Struct, frozen=True):
    """An event on the timeline."""

    at: float
    """Unix seconds."""
    kind: MarkKind
    text: str
    attempt: int | None = None

    @property
    def letter(self) -> str:
        """Its letter on the timeline."""
        if self.kind == "attempt":
            return str(self.attempt if self.attempt is not None else "0")
        return MARKS[self.kind][0]


class Course(msgspec.Struct, frozen=True):
    """A job's history as the timeline shows it."""

    first: float
    """Unix seconds of the first record."""
    last: float
    recorded: tuple[tuple[int, int], ...] = ()
    """Spans with samples, in order; nothing is known between them."""
    marks: tuple[Mark, ...] = ()
    """In order."""
    live: bool = False
    """Whether the job is still running."""

    @property
    def span_s(self) -> float:
        """Length of the history; never 0."""
        return max(1.0, self.last - self.first)

    def is_recorded(self, since: float, until: float) -> bool:
        """Whether there are samples between two times."""
        return any(begin < until and end > since for begin, end in self.recorded)


def marks_of(events: Sequence[Event]) -> tuple[Mark, ...]:
    """Marks for a job's events."""
    return tuple(
        Mark(event.ts.timestamp(), _KINDS[event.type], event.message, event.attempt)
        for event in events
        if event.type in _KINDS
    )


def neighbor(
    marks: Sequence[Mark], at: float, direction: int, kinds: Sequence[MarkKind] = tuple(MARKS)
) -> Mark | None:
    """The next (1) or previous (-1) mark of these kinds, at least a second away."""
    wanted = [mark for mark in marks if mark.kind in kinds]
    if direction > 0:
        return next((mark for mark in wanted if int(mark.at) > int(at)), None)
    return next((mark for mark in reversed(wanted) if int(mark.at) < int(at)), None)


def opening(course: Course) -> float:
    """Where a replay begins: shortly before the last problem, or else at the end."""
    trouble = neighbor(course.marks, course.last + 1, -1, ("failure", "hang"))
    return course.last if trouble is None else max(course.first, trouble.at - 5)
