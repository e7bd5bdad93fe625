"""All alerts of a live job at one moment, from everything that watches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddptop_runner.job.event_log import EventLog
from ddptop_runner.judge.alerts import TOLD_BY_EVENTS, Finding
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, NodeSnapshot
from ddptop_runner.node.last_resort import LastResort

TOLD = "told"
"""In what is remembered: the messages of alerts whose end no event has told yet."""


class JobAlerts:
    """Looks once a second, and tells what is new.

    Args:
        log: gets new alerts, and those that ended.
        defects: catches what a watcher should not raise.
    """

    def __init__(self, log: EventLog, defects: LastResort) -> None:
        self._log = log
        self._defects = defects
        self._watch = JobWatch()
        self._told: dict[str, str] = {}
        """By id, the messages of those that an event has told, until one tells their end."""
        self.now: list[Alert] = []
        """Those that hold, worst first."""

    def remember(self) -> dict[str, Any]:
        """What a supervisor that is started again has to know."""
        return {**self._watch.remember(), TOLD: dict(self._told)}

    def recall(self, alerts: list[Alert], memory: dict[str, Any]) -> None:
        """Go on with what was shown, and with what `remember` gave."""
        self._watch.recall(alerts, memory)
        told = memory.get(TOLD)
        self._told = dict(told) if isinstance(told, dict) else {}
        self.now = alerts

    def tell_end(self) -> None:
        """The job ends: what still holds is over with it, and has not become well."""
        if self._told:
            self._log.emit(
                ev.AlertsCleared(
                    attempt=self._log.state.attempt, messages=self._told, with_job=True
                )
            )
            self._told = {}

    def look(self, snapshot: NodeSnapshot, extra: Sequence[Finding], now_s: float) -> None:
        """Bring `now` up to date.

        Args:
            snapshot: the job at this moment, with the ranks and devices that are judged.
            extra: what others found.
            now_s: CLOCK_BOOTTIME.
        """
        self.now, new = self._defects.call(
            lambda: self._watch.update(snapshot, now_s, extra=extra), (self.now, list[Alert]())
        )
        holding = {alert.id for alert in self.now}
        if over := [id_ for id_ in self._told if id_ not in holding]:
            messages = {id_: self._told.pop(id_) for id_ in over}
            self._log.emit(ev.AlertsCleared(attempt=snapshot.attempt, messages=messages))
        told = {finding.id for finding in extra if finding.is_told} | TOLD_BY_EVENTS
        for alert in new:
            if alert.severity != "info" and alert.id not in told:
                self._told[alert.id] = alert.message
                self._log.emit(ev.AlertRaised(attempt=snapshot.attempt, alert=alert))
