"""The state of a job after some of its events, from those alone. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ddptop_runner.base.spans import ranks_in
from ddptop_runner.model.snapshot import Alert, Cause, Checkpoint, Event
from ddptop_runner.model.words import JobState, RankState

ALERTED_S = 600.0
"""An alert of which no event tells that it is over is shown for so long."""

_BUDGET = re.compile(r"\(restart (\d+) of \d+\)")
_SAVED = re.compile(
    r"saved (?P<path>.+) at step (?P<step>\d+)(?P<of> of the run| of attempt \d+)? \("
)
"""As `saves.step_words.at_step` puts it."""
_MARKS = {
    "loss-diverged": re.compile(
        r"the loss o[nf] ranks? (?P<ranks>[\d, -]+) has (diverged from the others|left the others')"
    ),
    "straggler": re.compile(
        r"ranks? (?P<ranks>[\d, -]+?)(?: \(pid \d+\))?"
        r" (?:holds?|is holding|are holding) up the others"
    ),
}
"""By id of an alert that marks ranks: the wording of `balance.rank_marks`, and the former one."""
_OURS = ("SIGTERM", "SIGKILL", "SIGINT")
_ENDS: dict[str, JobState] = {
    "finished": "finished",
    "failed": "failed",
    "stopped": "stopped",
    "lost": "lost",
}


@dataclass
class RankStory:
    """What events tell of one rank of the current attempt."""

    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended: bool = False
    by_us: bool = False
    """Whether ddptop was ending the ranks when it ended."""
    hung: bool = False

    def state(self, steps: int | None, running: bool) -> RankState:
        """In a word; `running` says whether the job was past its start."""
        if self.ended:
            if self.by_us:
                return "stopped"
            return "exited" if self.exit_code == 0 and self.signal is None else "failed"
        if self.hung:
            return "hung"
        return "running" if steps or running else "starting"


@dataclass
class JobStory:
    """How a job stood after its last event."""

    state: JobState = "starting"
    attempt: int | None = None
    attempt_started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Why the attempt, or the job, failed; None while it goes on."""
    previous_cause: Cause | None = None
    restarts_used: int = 0
    policy: str | None = None
    checkpoint: Checkpoint | None = None
    ranks: dict[int, RankStory] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    suspected: Event | None = None
    """The last event of the attempt that told of a stalled job."""
    _ending: bool = False

    def take(self, event: Event, cause_of: Callable[[Event], Cause]) -> None:
        """One more event happened."""
        kind = event.type
        if kind in _ENDS:
            self._end(event, _ENDS[kind])
        elif kind == "queued":
            self.state = "queued"
        elif kind in ("launched", "attempt_started"):
            self._begin(event)
        elif kind == "training":
            self.state = "running"
        elif kind in ("rank_started", "rank_exited") and event.rank is not None:
            self._rank(event, event.rank)
        elif kind in ("hang", "failure"):
            self._fail(event, cause_of(event))
        elif kind == "group_restart":
            self.state, self._ending = "restarting", True
            self.policy = event.message
            if found := _BUDGET.search(event.message):
                self.restarts_used = int(found[1])
        elif kind == "stopping":
            self.state, self._ending = "stopping", True
        elif kind == "checkpoint":
            self.checkpoint = checkpoint_of(event) or self.checkpoint
        elif kind == "hang_suspected":
            self.suspected = event
        elif kind in ("alert", "gpu_lost"):
            self.alerts.append(alert_of(event))

    def _begin(self, event: Event) -> None:
        self.state, self._ending = "starting", False
        self.ended_at = self.exit_code = None
        self.previous_cause, self.cause = self.cause, None
        self.alerts = []
        self.suspected = None
        self.ranks = {}
        if event.type == "attempt_started":
            self.attempt, self.attempt_started_at = event.attempt, event.ts

    def _rank(self, event: Event, rank: int) -> None:
        known = self.ranks.setdefault(rank, RankStory())
        known.pid = event.pid if event.pid is not None else known.pid
        if event.type == "rank_exited":
            known.exit_code, known.signal = event.exit_code, event.signal
            known.ended, known.by_us = True, self._ending and event.signal is not None

    def _fail(self, event: Event, cause: Cause) -> None:
        self.cause = cause
        for rank, known in self.ranks.items():  # torch ends the others before the cause is told
            known.by_us |= known.signal in _OURS and rank != event.rank
        if event.type == "hang":
            self.state = "hung"
            for rank, known in self.ranks.items():
                known.hung = event.rank in (None, rank)

    def _end(self, event: Event, state: JobState) -> None:
        self.state, self.ended_at = state, event.ts
        self.alerts = []
        if state == "finished":
            self.exit_code = 0
        elif state == "failed":
            self.exit_code = event.exit_code or 1


def story_at(
    events: Iterable[Event], until: dt.datetime, cause_of: Callable[[Event], Cause]
) -> JobStory:
    """How a job stood at a moment.

    Args:
        events: in order; those after the moment tell how long an alert held.
        until: those before this moment have happened.
        cause_of: what is known of the failure that an event tells of.
    """
    events, story = list(events), JobStory()
    for event in events:
        if event.ts >= until:
            break
        story.take(event, cause_of)
    over = [event for event in events if event.type == "alert_over"]
    held = {alert.message: alert for alert in story.alerts if until <= _end_of(alert, over)}
    story.alerts = list(held.values())
    return story


def _end_of(alert: Alert, over: Sequence[Event]) -> dt.datetime:
    """Until when an alert held, by the first event after it that says so."""
    later = (event for event in over if event.ts >= alert.since)
    ends = (event.ts for event in later if alert.message in event.message)
    return next(ends, alert.since + dt.timedelta(seconds=ALERTED_S))


def cause_told(event: Event) -> Cause:
    """What an event alone tells of a failure."""
    kind = "unknown"
    if event.type == "hang":
        kind = "hang"
    elif event.signal is not None:
        kind = "signal"
    elif event.exit_code is not None:
        kind = "exit_code"
    return Cause(
        kind=kind,
        rank=event.rank,
        signal=event.signal,
        exit_code=event.exit_code,
        summary=event.message,
        evidence=event.evidence,
    )


def checkpoint_of(event: Event) -> Checkpoint | None:
    """The checkpoint that an event tells of; None where its words name none."""
    found = _SAVED.search(event.message)
    if found is None:
        return None
    step, of = int(found["step"]), found["of"]
    is_first = event.attempt == 0 and of is None  # then its own steps are those of the run
    return Checkpoint(
        path=found["path"],
        at=event.ts,
        rank=event.rank,
        attempt=event.attempt,
        step=None if of == " of the run" else step,
        global_step=step if of == " of the run" or is_first else None,
    )


def alert_of(event: Event) -> Alert:
    """An event that a person should look at, as an alert."""
    id_, ranks = f"event-{event.seq}", [] if event.rank is None else [event.rank]
    for of, pattern in _MARKS.items():
        if event.type == "alert" and (found := pattern.match(event.message)):
            id_, ranks = of, ranks_in(found["ranks"])
    return Alert(
        id=id_,
        severity="error" if event.type == "gpu_lost" else "warning",
        ranks=ranks,
        message=event.message,
        since=event.ts,
    )
