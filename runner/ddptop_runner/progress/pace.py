"""The speed of something that is counted now and then, as a log does."""

from __future__ import annotations

from collections import deque

WINDOW_S = 120.0
"""Speed is measured over about this time, or over the last two counts."""
MAX_MARKS = 128
SILENT_FACTOR = 10.0
"""A log that is silent for so many of its usual intervals says nothing of the speed any more."""
SILENT_LEAST_S = 5.0


class Pace:
    """Counts with their times; what counts must be told by the caller when it begins anew."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=MAX_MARKS)

    def clear(self) -> None:
        """What follows has nothing to do with what was."""
        self._marks.clear()

    def mark(self, at_s: float, position: float) -> None:
        """`position` was reached at that time; several of one look are one."""
        if self._marks and position == self._marks[-1][1]:
            return
        if self._marks and at_s <= self._marks[-1][0]:
            self._marks[-1] = (self._marks[-1][0], position)
            return
        self._marks.append((at_s, position))
        while len(self._marks) > 2 and self._marks[1][0] < at_s - WINDOW_S:
            self._marks.popleft()

    def per_s(self, now_s: float) -> float | None:
        """None before two different counts were seen, and for a log that fell silent."""
        if len(self._marks) < 2:
            return None
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        usual_s = (last_s - first_s) / (len(self._marks) - 1)
        if now_s - last_s > SILENT_FACTOR * usual_s + SILENT_LEAST_S or last <= first:
            return None
        return (last - first) / (last_s - first_s)

    def age_s(self, now_s: float) -> float:
        """Seconds since the last count; 0 without any."""
        return max(0.0, now_s - self._marks[-1][0]) if self._marks else 0.0

    def left_s(self, rest: float, now_s: float) -> float | None:
        """Seconds until `rest` more is done; None where the speed is not known."""
        rate = self.per_s(now_s)
        return None if rate is None else max(0.0, max(0.0, rest) / rate - self.age_s(now_s))
