"""Reads what happened in each attempt of a job; the story screen's query and answer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ddptop.job.attempts import FAILURES, Attempt, attempts_of, in_order
from ddptop.job.record import Job
from ddptop.job.series import Tail
from ddptop.sources.history import Histories, JobHistory
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import Cause, Event, NodeSnapshot
from ddptop_runner.store.history_reader import HistoryReader, attempts_taken
from ddptop_runner.store.logs import last_words

TAIL_LINES = 40
"""How many last log lines to read of the first rank that failed."""
LOOK_BACK_S = 60.0
"""How much of the history before an attempt's end to read for its last step."""
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
            story = sources[StorySource].read(view, sources[Histories].of(view), self.attempt)
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


class StorySource:
    """Reads a job's story. Used only by the collector's thread."""

    def __init__(self) -> None:
        self._job_id: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._events: list[Event] = []
        self._seen: set[int] = set()
        self._causes: dict[int, Cause] = {}
        self._steps: dict[int, int] = {}
        self._tail: Tail | None = None
        self._known: tuple[object, tuple[Attempt, ...]] | None = None

    def read(self, view: Job, history: JobHistory, chosen: int | None = None) -> Story:
        """The story, with the last log lines of attempt `chosen`, or of the latest attempt."""
        if view.spec.job_id != self._job_id:
            self._forget()
            self._job_id = view.spec.job_id
        trouble = None
        try:
            self._events = history.events(MOST_EVENTS)
        except DdptopError as error:
            trouble = str(error)
        attempts = self._attempts(view)
        return Story(view.name, attempts, self._tail_of(view, attempts, chosen), trouble)

    def _attempts(self, view: Job) -> tuple[Attempt, ...]:
        snapshot = view.snapshot
        seq = self._events[-1].seq if self._events else 0
        now = (seq, view.state, (snapshot.attempt, snapshot.step, snapshot.cause))
        if self._known is None or self._known[0] != now:
            self._read_failures()
            if run_step.is_printed(snapshot):
                self._count_printed(view.folder)
            attempts = attempts_of(
                in_order(self._events),
                view.state,
                view.ended_at,
                _causes_with(self._causes, snapshot),
                _steps_with(self._steps, snapshot),
            )
            self._known = (now, tuple(self._with_steps(view, one) for one in attempts))
        return self._known[1]

    def _read_failures(self) -> None:
        """Take causes and steps from failures, each once."""
        for event in self._events:
            if event.type not in FAILURES or event.seq in self._seen:
                continue
            from ddptop_runner.model import events as ev  # loaded with the first failure

            self._seen.add(event.seq)
            judged = ev.from_data(event.data)
            if isinstance(judged, ev.FailureJudged | ev.HangJudged):
                attempt = event.attempt or 0
                self._causes[attempt] = judged.cause
                if judged.outcome is not None and judged.outcome.steps is not None:
                    self._steps[attempt] = judged.outcome.steps

    def _count_printed(self, folder: RunFolder) -> None:
        """Count each attempt's steps if the output numbers the steps of the run."""
        with contextlib.suppress(DdptopError):
            for one in attempts_taken(HistoryReader(folder.history_db), printed=True):
                if one.taken is not None:
                    self._steps[one.attempt] = one.taken

    def _with_steps(self, view: Job, attempt: Attempt) -> Attempt:
        """The attempt; if its evidence has no step, with the last one in its history."""
        if attempt.steps is not None or attempt.ended_at is None:
            return attempt
        if attempt.number not in self._steps:
            until = attempt.ended_at.timestamp()
            reader = HistoryReader(view.folder.history_db)
            try:
                series = reader.rank_series("step", until - LOOK_BACK_S, until + 1, 60)
            except DdptopError:
                return attempt
            last = [
                round(max(mine))
                for one in series.values()
                if (
                    mine := [
                        v for v, n in zip(one.last, one.attempt, strict=True) if n == attempt.number
                    ]
                )
            ]
            if not last:
                return attempt
            self._steps[attempt.number] = min(last)
        return msgspec.structs.replace(attempt, steps=self._steps[attempt.number])

    def _tail_of(self, view: Job, attempts: Sequence[Attempt], chosen: int | None) -> Tail | None:
        attempt = next((one for one in attempts if chosen in (None, one.number)), None)
        if attempt is None or attempt.ending != "failed" or attempt.cause is None:
            return None
        rank = attempt.cause.rank
        if rank is None and not view.spec.is_command:
            return None
        if self._tail is None or self._tail.attempt != attempt.number:
            owner, lines = last_words(view.folder, attempt.number, rank, TAIL_LINES)
            self._tail = Tail(attempt.number, owner, tuple(lines))
        return self._tail


def _causes_with(causes: Mapping[int, Cause], snapshot: NodeSnapshot) -> dict[int, Cause]:
    """Add the causes in the snapshot: of its attempt and of the previous one."""
    found = dict(causes)
    if snapshot.attempt is not None:
        if snapshot.cause is not None:
            found[snapshot.attempt] = snapshot.cause
        if snapshot.previous_cause is not None:
            found[snapshot.attempt - 1] = snapshot.previous_cause
    return found


def _steps_with(steps: Mapping[int, int], snapshot: NodeSnapshot) -> dict[int, int]:
    found = dict(steps)
    if run_step.is_printed(snapshot):
        return found
    if snapshot.attempt is not None and snapshot.step is not None:
        found[snapshot.attempt] = snapshot.step
    return found
