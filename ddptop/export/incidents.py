"""What is worth a message to people who are not looking, decided from a job's events. Pure.

An incident is one message, and a second one once it is over. A restart that succeeds within
`SOON_S` is a single message, and so is a finding that ends before `LASTS_S`: none at all.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from ddptop_runner.base.units import duration_in_words
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, Cause, Event

Kind = Literal[
    "failed", "lost", "hung", "restarted", "finished", "preempted", "disk", "nan", "finding"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

SOON_S = 60.0
"""How long a restart may take until it is reported before it has succeeded."""
GONE_S = 15.0
"""How long processes must be gone before a job without an end is reported as lost."""
LASTS_S = 600.0
"""How long a finding must last to be reported."""
AT_ONCE: dict[str, Kind] = {"disk-full": "disk", "loss-nan": "nan", "loss-inf": "nan"}
"""Alerts that are reported as they begin."""
BY_EVENT = frozenset({"hung", "stalled", "queued", "node-lost", "node-unreachable"})
"""Alerts on what other events report, or on what is not certain yet."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One message to a person."""

    kind: Kind
    at: dt.datetime
    text: str
    """What happened, in one sentence."""
    attempt: int | None = None
    rank: int | None = None
    """The rank to blame, if there is one."""
    is_over: bool = False
    """Whether it reports the end of an incident reported before."""
    is_end: bool = False
    """Whether the job is over."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not over."""

    kind: Kind
    since: dt.datetime
    text: str
    due: dt.datetime
    """When it is reported, if it is not over before."""
    attempt: int | None = None
    rank: int | None = None
    is_reported: bool = False


class Incidents(msgspec.Struct):
    """A job's open incidents; the only state between two looks at its events."""

    last_seq: int = 0
    """The last event that was folded."""
    cause: Cause | None = None
    """Of the latest failure of an attempt."""
    restart: Incident | None = None
    findings: dict[str, Incident] = {}
    """By id of the alert."""
    gone_since: dt.datetime | None = None
    """Since when all its processes are gone, without an event that says so."""
    is_ended: bool = False

    def fold(self, rows: Iterable[Event]) -> list[Notice]:
        """The notices that new events lead to, in order."""
        found: list[Notice] = []
        for row in rows:
            self.last_seq = max(self.last_seq, row.seq)
            found += self._fold(row, ev.of_row(row))
        return found

    def due(self, now: dt.datetime) -> list[Notice]:
        """The notices on incidents that have lasted long enough."""
        found = []
        if self.restart is not None and _is_due(self.restart, now):
            self.restart = msgspec.structs.replace(self.restart, is_reported=True)
            found.append(_notice(self.restart, now, f"{self.restart.text}; restarting"))
        for id_, one in self.findings.items():
            if _is_due(one, now):
                self.findings[id_] = msgspec.structs.replace(one, is_reported=True)
                lasts = "" if one.kind != "finding" else f" (for {_lasted(one, now)})"
                found.append(_notice(one, now, one.text + lasts))
        return found

    def gone(self, now: dt.datetime) -> list[Notice]:
        """The notice on a job whose guardian was killed, too, so that nothing records its end."""
        self.gone_since = self.gone_since or now
        if self.is_ended or (now - self.gone_since).total_seconds() < GONE_S:
            return []
        self._end()
        text = "all its processes have exited without an exit status, as after a reboot or kill -9"
        return [Notice(kind="lost", at=now, text=text, is_end=True)]

    def _fold(self, row: Event, event: ev.JobEvent) -> list[Notice]:
        if isinstance(event, ev.FailureJudged | ev.HangJudged):
            self.cause = event.cause
        elif isinstance(event, ev.RestartDecided):
            return self._restarts(row, event)
        elif isinstance(event, ev.TrainingStarted | ev.RunningAssumed):
            return self._trains(row)
        elif isinstance(event, ev.AlertRaised):
            self._raised(row, event)
        elif isinstance(event, ev.AlertsCleared):
            return self._cleared(row, event)
        elif isinstance(event, ev.JobEnded):
            return self._ended(row, event)
        elif isinstance(event, ev.Launched | ev.AttemptStarted):
            self.is_ended, self.gone_since = False, None
        elif isinstance(event, ev.JobLost):
            self._end()
            kind: Kind = "preempted" if event.requeued else "lost"
            is_end = not event.requeued
            return [Notice(kind=kind, at=row.ts, text=row.message, is_end=is_end)]
        return []

    def _restarts(self, row: Event, event: ev.RestartDecided) -> list[Notice]:
        what = row.message if self.cause is None else first_line(self.cause)
        text = f"{what} (restart {event.used} of {event.limit})"
        if self.restart is None or not self.restart.is_reported:
            self.restart = Incident(
                kind=restart_kind(self.cause),
                since=row.ts if self.restart is None else self.restart.since,
                text=text,
                due=row.ts + dt.timedelta(seconds=SOON_S + event.delay_s),
                attempt=row.attempt,
                rank=None if self.cause is None else self.cause.rank,
            )
            return []
        self.restart = msgspec.structs.replace(self.restart, text=text)
        return []  # the same incident goes on

    def _trains(self, row: Event) -> list[Notice]:
        one, self.restart = self.restart, None
        if one is None:
            return []
        after = f"training again after {_lasted(one, row.ts)}"
        return [_notice(one, row.ts, f"{one.text}; {after}", is_over=one.is_reported)]

    def _raised(self, row: Event, event: ev.AlertRaised) -> None:
        alert, reported = event.alert, reported_as(event.alert)
        if event.lasts_s is not None or reported is None:
            return
        kind, after = reported
        self.findings[alert.id] = Incident(
            kind=kind,
            since=alert.since,
            text=alert.message,
            due=row.ts + after,
            attempt=row.attempt,
            rank=alert.ranks[0] if len(alert.ranks) == 1 else None,
        )

    def _cleared(self, row: Event, event: ev.AlertsCleared) -> list[Notice]:
        over = [self.findings.pop(id_) for id_ in event.messages if id_ in self.findings]
        if event.with_job:
            return []
        return [
            _notice(one, row.ts, f"{one.text}; over after {_lasted(one, row.ts)}", is_over=True)
            for one in over
            if one.is_reported
        ]

    def _ended(self, row: Event, event: ev.JobEnded) -> list[Notice]:
        self._end()
        if event.state == "stopped":
            return []
        cause = event.cause
        text = row.message if cause is None else first_line(cause)
        rank = None if cause is None else cause.rank
        return [
            Notice(
                kind=event.state, at=row.ts, text=text, attempt=row.attempt, rank=rank, is_end=True
            )
        ]

    def _end(self) -> None:
        self.is_ended = True
        self.restart = self.cause = None
        self.findings.clear()


def reported_as(alert: Alert) -> tuple[Kind, dt.timedelta] | None:
    """As what an alert is reported, and after how long; None if it is not."""
    id_ = alert.id.partition("@")[0]  # `ID@HOST` for one of several machines
    if alert.severity == "info" or id_ in BY_EVENT:
        return None
    kind = AT_ONCE.get(id_)
    return kind or "finding", dt.timedelta(seconds=LASTS_S if kind is None else 0.0)


def restart_kind(cause: Cause | None) -> Kind:
    """As what the restart after a failure is reported."""
    return "hung" if cause is not None and cause.kind == "hang" else "restarted"


def first_line(cause: Cause) -> str:
    """What happened, on one line."""
    return " ".join((cause.headline or cause.summary).split())


def _is_due(one: Incident, now: dt.datetime) -> bool:
    return not one.is_reported and now >= one.due


def _lasted(one: Incident, now: dt.datetime) -> str:
    return duration_in_words((now - one.since).total_seconds())


def _notice(one: Incident, at: dt.datetime, text: str, *, is_over: bool = False) -> Notice:
    return Notice(
        kind=one.kind, at=at, text=text, attempt=one.attempt, rank=one.rank, is_over=is_over
    )
