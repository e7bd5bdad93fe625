"""Reads a log of events, parsing the prose of earlier versions with regular expressions.

Only `typed` parses sentences. Anything that an old history does not contain is None, and a sentence
that no version wrote becomes a notice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ddptop_runner.base.exit_status import status_of
from ddptop_runner.base.units import ranks_in
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, Cause, Checkpoint, Event

ALERTED_S = 600.0
"""How long to show an old alert without a recorded end."""

_BUDGET = re.compile(r"\(restart (\d+) of (\d+)\)(?:; (?P<reason>.+))?", re.DOTALL)
_HURRIED = re.compile(r"starting attempt \d+ now")
_SAVED = re.compile(
    r"saved (?P<path>.+) at step (?P<step>\d+)(?P<of> of the run| of attempt \d+)? \("
)
"""The wording of `model.run_step.at_step`."""
_MARKS = {
    "loss-diverged": re.compile(
        r"the loss o[nf] ranks? (?P<ranks>[\d, -]+) has (diverged from the others|left the others')"
    ),
    "straggler": re.compile(
        r"ranks? (?P<ranks>[\d, -]+?)(?: \(pid \d+(?: on \S+)?\))?"
        r" (?:holds?|is holding|are holding) up the others"
    ),
}
"""By ID of alerts that mark ranks: the wording of `balance.rank_marks`, and an older one."""
_OURS = frozenset(filter(None, (status_of(None, n) for n in ("SIGTERM", "SIGKILL", "SIGINT"))))


def typed(
    rows: Sequence[Event], cause_of: Callable[[Event], Cause] | None = None
) -> list[ev.JobEvent]:
    """The event of each row.

    Args:
        rows: a history's rows, in order.
        cause_of: returns the cause of the failure in an old row; `cause_in_row` by default.
    """
    reader = _OldReader(rows, cause_of or cause_in_row)
    return [ev.from_data(row.data) or reader.read(at) for at, row in enumerate(rows)]


def cause_in_row(event: Event) -> Cause:
    """The cause recorded in a row; for an old row, as far as its columns contain it."""
    judged = ev.from_data(event.data)
    if isinstance(judged, ev.FailureJudged | ev.HangJudged):
        return judged.cause
    if isinstance(judged, ev.JobEnded) and judged.cause is not None:
        return judged.cause
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
    """The checkpoint in an old event; None if its words do not mention one."""
    found = _SAVED.search(event.message)
    if found is None:
        return None
    step, of = int(found["step"]), found["of"]
    is_first = event.attempt == 0 and of is None  # then its own steps equal the run's
    return Checkpoint(
        path=found["path"],
        at=event.ts,
        rank=event.rank,
        attempt=event.attempt,
        step=None if of == " of the run" else step,
        global_step=step if of == " of the run" or is_first else None,
    )


def alert_of(event: Event) -> Alert:
    """An event that deserves attention, as an alert."""
    found = ev.from_data(event.data)
    if isinstance(found, ev.AlertRaised):
        return found.alert
    id_, ranks = f"event-{event.seq}", [] if event.rank is None else [event.rank]
    for of, pattern in _MARKS.items():
        if event.type == "alert" and (marked := pattern.match(event.message)):
            id_, ranks = of, ranks_in(marked["ranks"])
    return Alert(
        id=id_,
        severity="error" if event.type == "gpu_lost" else "warning",
        ranks=ranks,
        message=event.message,
        since=event.ts,
    )


class _OldReader:
    """Converts old rows in order, remembering what later rows refer to."""

    def __init__(self, rows: Sequence[Event], cause_of: Callable[[Event], Cause]) -> None:
        self._rows = rows
        self._cause_of = cause_of
        self._overs = [(at, row) for at, row in enumerate(rows) if row.type == "alert_over"]
        self._alerts: dict[str, str] = {}
        self._used = 0
        self._limit: int | None = None
        self._pending = False
        """Whether a restart was charged to the budget and waits for its time."""
        self._ending = False
        """Whether ddptop had begun to end the ranks."""
        self._cause: Cause | None = None

    def read(self, at: int) -> ev.JobEvent:
        """The event of the row at that index."""
        row = self._rows[at]
        kind, attempt = row.type, row.attempt
        if kind in ("rank_exited", "launcher_exited"):
            return self._exit(at)
        if kind == "alert_over":
            return self._cleared(row)
        if kind in ("alert", "gpu_lost"):
            return self._alert(at)
        if kind == "group_restart":
            return self._restart(row)
        if kind in ("failure", "hang"):
            self._cause = self._cause_of(row)
            judged = ev.HangJudged if kind == "hang" else ev.FailureJudged
            return judged(attempt=attempt, cause=self._cause)
        if kind in ev.END_STATES:
            return self._end(row, ev.END_STATES[kind])
        if kind == "stopping":
            self._ending = True
            return ev.StopRequested(attempt=attempt)
        if kind in ("launched", "queued", "attempt_started"):
            self._begin(kind)
        return _plain(row)

    def _begin(self, kind: str) -> None:
        self._ending = self._pending = False
        self._cause = None
        if kind != "attempt_started":
            self._used = 0

    def _exit(self, at: int) -> ev.JobEvent:
        row = self._rows[at]
        status = status_of(row.exit_code, row.signal)
        by_us = self._ending and row.signal is not None
        if row.type == "launcher_exited" or row.rank is None:
            return ev.LauncherExited(attempt=row.attempt, pid=row.pid, status=status, by_us=by_us)
        return ev.RankExited(
            attempt=row.attempt,
            rank=row.rank,
            pid=row.pid,
            status=status,
            by_us=by_us or self._is_victim(at, status),
        )

    def _is_victim(self, at: int, status: int | None) -> bool:
        """Whether torch ended the rank before the cause, which names the culprit, was recorded."""
        row = self._rows[at]
        if status not in _OURS:
            return False
        later = (
            one
            for one in self._rows[at + 1 :]
            if one.type in ("failure", "hang", "attempt_started", "launched")
        )
        judged = next(later, None)
        return (
            judged is not None
            and judged.type in ("failure", "hang")
            and judged.attempt == row.attempt
            and judged.rank != row.rank
        )

    def _cleared(self, row: Event) -> ev.JobEvent:
        over = {id_: words for id_, words in self._alerts.items() if words in row.message}
        for id_ in over:
            del self._alerts[id_]
        return ev.AlertsCleared(attempt=row.attempt, messages=over or {"": row.message})

    def _alert(self, at: int) -> ev.JobEvent:
        row = self._rows[at]
        alert = alert_of(row)
        has_end = any(place > at and row.message in over.message for place, over in self._overs)
        if has_end:
            self._alerts[alert.id] = row.message
        return ev.AlertRaised(
            attempt=row.attempt, alert=alert, lasts_s=None if has_end else ALERTED_S
        )

    def _restart(self, row: Event) -> ev.JobEvent:
        self._ending = True
        if found := _BUDGET.search(row.message):
            self._used, self._limit, self._pending = int(found[1]), int(found[2]), True
            return ev.RestartDecided(
                attempt=row.attempt, used=int(found[1]), limit=int(found[2]), reason=found["reason"]
            )
        kind: type[ev.RestartHurried | ev.RestartRequested] = ev.RestartRequested
        if _HURRIED.match(row.message):
            kind = ev.RestartHurried
            self._used = max(0, self._used - self._pending)
        self._pending = False
        return kind(attempt=row.attempt, used=self._used, limit=self._limit)

    def _end(self, row: Event, state: ev.EndState) -> ev.JobEvent:
        cause = None
        if state == "failed":
            cause = replace(self._cause or self._cause_of(row), exit_code=row.exit_code)
        reason = row.message.partition(": ")[2] or None if state == "failed" else None
        return ev.JobEnded(attempt=row.attempt, state=state, cause=cause, reason=reason)


def _plain(row: Event) -> ev.JobEvent:
    """The event of a row whose columns contain all that the state needs."""
    attempt = row.attempt
    if row.type == "launched":
        return ev.Launched(attempt=attempt, target=row.message)
    if row.type == "queued":
        return ev.Queued(attempt=attempt, waits_for=row.message.removeprefix("queued: "))
    if row.type == "attempt_started":
        return ev.AttemptStarted(attempt=attempt)
    if row.type == "rank_started" and row.rank is not None:
        return ev.RankStarted(attempt=attempt, rank=row.rank, pid=row.pid)
    if row.type == "training":
        return ev.TrainingStarted(attempt=attempt, after_s=0.0)
    if row.type == "checkpoint" and (saved := checkpoint_of(row)):
        return ev.CheckpointSaved(attempt=attempt, checkpoint=saved)
    if row.type == "hang_suspected":
        return ev.HangSuspected(attempt=attempt, found=row.message)
    if row.type == "lost":
        return ev.JobLost(attempt=attempt)
    if row.type == "supervisor_restarted":
        return ev.SupervisorRestarted(attempt=attempt)
    if row.type == "guardian_restarted":
        return ev.GuardianRestarted(attempt=attempt)
    return ev.Untyped(attempt=attempt, text=row.message)
