"""When to send which notices to a receiver: retries, quiet hours, and a limit per hour. Pure.

All notices that wait for a receiver are sent as one message, so a night without network, or quiet
hours, lose nothing and flood nobody.
"""

from __future__ import annotations

import datetime as dt

import msgspec

from ddptop.export.incidents import Notice

PAUSES_S = (10.0, 30.0, 60.0, 300.0, 900.0)
"""After a failed attempt, by their number; the last is repeated."""
KEPT_S = 24 * 3600.0
"""A notice that could not be sent for so long is dropped."""
MOST_WAITING = 50
"""Older notices are dropped first."""


class Queue(msgspec.Struct):
    """What one receiver has yet to get. Times are Unix seconds."""

    waiting: list[Notice] = []
    failures: int = 0
    """Of the latest attempts."""
    next_at_s: float = 0.0
    sent_at_s: list[float] = []
    """Within the last hour."""
    dropped: int = 0

    def add(self, notice: Notice) -> None:
        """Let a notice wait; news of an end replaces what waits on the same incident."""
        if notice.is_over:
            same = (notice.kind, notice.attempt, notice.rank)
            self.waiting = [
                one for one in self.waiting if (one.kind, one.attempt, one.rank) != same
            ]
        self.waiting.append(notice)
        self.dropped += max(0, len(self.waiting) - MOST_WAITING)
        del self.waiting[:-MOST_WAITING]

    def to_send(self, now_s: float, most_per_hour: int, *, is_quiet: bool) -> list[Notice]:
        """The notices to send now, as one message; [] if it has to wait.

        Args:
            now_s: Unix time.
            most_per_hour: messages; the end of the job is sent beyond this limit.
            is_quiet: whether it is a quiet hour.
        """
        fresh = [one for one in self.waiting if now_s - one.at.timestamp() < KEPT_S]
        self.dropped += len(self.waiting) - len(fresh)
        self.waiting = fresh
        self.sent_at_s = [at_s for at_s in self.sent_at_s if 0 <= now_s - at_s < 3600.0]
        is_full = len(self.sent_at_s) >= most_per_hour and not any(one.is_end for one in fresh)
        if not fresh or is_full or is_quiet or now_s < self.next_at_s:
            return []
        return list(fresh)

    def sent(self, notices: list[Notice], now_s: float) -> None:
        """Forget what was sent."""
        self.waiting = [one for one in self.waiting if one not in notices]
        self.sent_at_s.append(now_s)
        self.failures, self.next_at_s = 0, 0.0

    def failed(self, now_s: float) -> None:
        """Try again later."""
        self.next_at_s = now_s + PAUSES_S[min(self.failures, len(PAUSES_S) - 1)]
        self.failures += 1


def is_quiet(quiet: tuple[dt.time, dt.time] | None, now: dt.time) -> bool:
    """Whether a local time is within quiet hours, which may span midnight."""
    if quiet is None:
        return False
    start, end = quiet
    return start <= now < end if start <= end else now >= start or now < end
