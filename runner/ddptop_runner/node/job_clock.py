"""Tracks when a job started and how long it has run, independently of the wall clock."""

from __future__ import annotations

import datetime as dt

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.words import LIVE_STATES


class JobClock:
    """A job's times, tracked by its supervisor.

    Args:
        started_at: when the job was launched.
    """

    def __init__(self, started_at: dt.datetime) -> None:
        self.started_at = started_at
        self._lived_before_s = 0.0
        self._since_s = boottime_s()

    def continue_from(self, previous: NodeSnapshot, *, alive_since: bool) -> None:
        """Continue from an earlier snapshot.

        Args:
            previous: the last snapshot.
            alive_since: whether the job has continued since then without its supervisor;
                otherwise, it had ended or was lost.
        """
        self.started_at = previous.started_at
        self._lived_before_s = previous.ran_s or 0.0
        if alive_since:
            self._lived_before_s += unseen_s(previous, self._since_s)

    def begin_again(self) -> None:
        """Restart the clock, because the time before (a wait for devices) does not count."""
        self.started_at, self._lived_before_s, self._since_s = utc_now(), 0.0, boottime_s()

    def lived_s(self, now_s: float) -> float:
        """How long the job has lived at that CLOCK_BOOTTIME."""
        return self._lived_before_s + max(0.0, now_s - self._since_s)


def unseen_s(previous: NodeSnapshot, now_s: float) -> float:
    """Seconds from a live job's snapshot to now if both are from the same boot; otherwise, 0."""
    if previous.state not in LIVE_STATES or previous.boot_id != procs.boot_id():
        return 0.0
    return 0.0 if previous.boottime_s is None else max(0.0, now_s - previous.boottime_s)
