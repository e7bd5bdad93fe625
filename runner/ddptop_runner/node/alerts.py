"""Collects all alerts of a live job from everything that watches it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ddptop_runner.host import oom
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.judge.alerts import REPORTED_BY_EVENTS, Finding
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, NodeSnapshot


class JobAlerts:
    """Checks once a second and records changes.

    Args:
        log: receives new alerts and those that ended.
        defects: catches errors that a watcher should not raise.
    """

    def __init__(self, log: EventLog, defects: LastResort) -> None:
        self._log = log
        self._defects = defects
        self._watch = JobWatch(oom.available_bytes)
        self.reported: dict[str, str] = {}
        """Messages of recorded alerts by ID, until their end is recorded."""
        self._is_starved = False
        """Whether any rank waits for its data, at the last look."""
        self.now: list[Alert] = []
        """The current alerts, worst first."""

    def recall(self, alerts: list[Alert], reported: Mapping[str, str]) -> None:
        """Restore what an earlier supervisor showed and recorded."""
        self._watch.recall(alerts)
        self.reported, self.now = dict(reported), alerts

    def record_end(self) -> None:
        """Record the end of current alerts: the job ends, rather than their cause."""
        if self.reported:
            self._log.emit(
                ev.AlertsCleared(
                    attempt=self._log.state.attempt, messages=self.reported, with_job=True
                )
            )
            self.reported = {}

    def rank_to_look_at(self) -> int | None:
        """A rank that waits for its data, whose workers are to be looked at now; once each time."""
        waiting = [one for one in self.now if one.id == "starved" or "data_wait_s" in one.evidence]
        is_new, self._is_starved = bool(waiting) and not self._is_starved, bool(waiting)
        return waiting[0].ranks[0] if is_new else None

    def note_workers(self, stacks: str) -> None:
        """Take the stacks of that rank's loader processes."""
        self._watch.note_workers(stacks)

    def look(self, snapshot: NodeSnapshot, extra: Sequence[Finding], now_s: float) -> None:
        """Update `now`.

        Args:
            snapshot: the job's current snapshot, with the ranks and devices to judge.
            extra: findings from elsewhere.
            now_s: CLOCK_BOOTTIME.
        """
        self.now, new = self._defects.call(
            lambda: self._watch.update(snapshot, now_s, extra=extra),
            (self.now, list[Alert]()),
        )
        resume = self._watch.resume
        if resume is not None and snapshot.resume is None:
            self._log.emit(ev.Resumed(attempt=snapshot.attempt, resume=resume))
        holding = {alert.id for alert in self.now}
        if over := [id_ for id_ in self.reported if id_ not in holding]:
            messages = {id_: self.reported.pop(id_) for id_ in over}
            self._log.emit(ev.AlertsCleared(attempt=snapshot.attempt, messages=messages))
        recorded = {finding.id for finding in extra if finding.has_event} | REPORTED_BY_EVENTS
        for alert in new:
            if alert.severity != "info" and alert.id not in recorded:
                self.reported[alert.id] = alert.message
                self._log.emit(ev.AlertRaised(attempt=snapshot.attempt, alert=alert))


T = TypeVar("T")


class LastResort:
    """Catches errors that should never be raised.

    Args:
        log: receives each defect once.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reported: set[str] = set()

    def report(self, error: Exception) -> None:
        """Write the traceback to the supervisor's log and raise an alert, once per location."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "nowhere"
        if place in self._reported:
            return
        self._reported.add(place)
        traceback.print_exception(error, file=sys.stderr)
        text = (
            f"internal error in ddptop: {type(error).__name__} at {place}; the job keeps running; "
            "see supervisor.log for the traceback"
        )
        self._log.emit(ev.Noticed(text=text))

    def call(self, look: Callable[[], T], otherwise: T) -> T:
        """The result of `look`, or `otherwise` if it raises."""
        try:
            return look()
        except Exception as error:
            self.report(error)
            return otherwise
