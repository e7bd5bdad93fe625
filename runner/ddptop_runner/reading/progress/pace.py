"""The speed of something that is counted."""

from __future__ import annotations

from collections import deque

from ddptop_runner.base.median import median

WINDOW_S = 120.0
"""The speed is measured over about this time, or over the last two counts."""
MAX_MARKS = 128
MAX_LONG_MARKS = 64
SILENT_FACTOR = 10.0
"""After so many of its usual intervals without output, a log's speed is unknown."""
SILENT_LEAST_S = 5.0
PAUSE = 4.0
"""An interval this many times longer than usual is a pause."""


class Pace:
    """The speed of a count, from its values and times. The caller clears it on a restart."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=MAX_MARKS)
        self._long: list[tuple[float, float]] = []
        """Marks since the first, thinned out as they grow in number."""
        self._apart_s = 1.0
        self._steady: float | None = None
        """Steps per second of the present marks; None until computed."""

    def clear(self) -> None:
        """Forget all marks."""
        self._steady = None
        self._marks.clear()
        self._long.clear()
        self._apart_s = 1.0

    def mark(self, at_s: float, position: float) -> None:
        """Record that `position` was reached at that time; marks with the same time are one."""
        self._steady = None
        if self._marks and position == self._marks[-1][1]:
            return
        if self._marks and at_s <= self._marks[-1][0]:
            replaced = self._marks[-1] = (self._marks[-1][0], position)
            if self._long[-1][0] == replaced[0]:
                self._long[-1] = replaced
            return
        self._marks.append((at_s, position))
        while len(self._marks) > 2 and self._marks[1][0] < at_s - WINDOW_S:
            self._marks.popleft()
        if not self._long or at_s >= self._long[-1][0] + self._apart_s:
            self._long.append((at_s, position))
            if len(self._long) > MAX_LONG_MARKS:
                del self._long[1::2]
                self._apart_s *= 2

    def marked_within(self, now_s: float, age_s: float) -> bool:
        """Whether the last mark is no older than `age_s`."""
        return bool(self._marks) and now_s - self._marks[-1][0] < age_s

    def per_s(self, now_s: float) -> float | None:
        """The speed without pauses, such as evaluations between epochs.

        None before two different counts, and once the log falls silent.
        """
        if self._is_silent(now_s, None):
            return None
        if self._steady is None:
            self._steady = self._without_pauses()
        return self._steady

    def _without_pauses(self) -> float | None:
        marks = self._marks
        pairs = [
            (later[0] - before[0], later[1] - before[1])
            for before, later in zip(marks, list(marks)[1:], strict=False)
        ]
        if not pairs or marks[-1][1] <= marks[0][1]:
            return None
        usual = median(took_s / moved for took_s, moved in pairs)
        steady = [(took_s, moved) for took_s, moved in pairs if took_s <= PAUSE * usual * moved]
        return sum(moved for _, moved in steady) / sum(took_s for took_s, _ in steady)

    def _is_silent(self, now_s: float, last_read_s: float | None) -> bool:
        if len(self._marks) < 2:
            return False
        last_s = self._marks[-1][0]
        usual_s = (last_s - self._marks[0][0]) / (len(self._marks) - 1)
        silent_s = now_s - max(last_s, last_read_s or last_s)
        return silent_s > SILENT_FACTOR * usual_s + SILENT_LEAST_S

    def age_s(self, now_s: float) -> float:
        """Seconds since the last count; 0 without any."""
        return max(0.0, now_s - self._marks[-1][0]) if self._marks else 0.0

    def left_s(self, rest: float, now_s: float, last_read_s: float | None = None) -> float | None:
        """Seconds until `rest` more is done; None if the speed is unknown.

        Based on the later half of all marks, pauses included, since more will come. Anything
        read at `last_read_s`, such as the bar of an evaluation, ends a silence.
        """
        if len(self._marks) < 2 or self._is_silent(now_s, last_read_s):
            return None
        last_s, last = self._marks[-1]
        since_s = min(last_s - WINDOW_S, (self._long[0][0] + last_s) / 2)
        first_s, first = min(self._marks[0], next(m for m in self._long if m[0] >= since_s))
        if last <= first:
            return None
        rate = (last - first) / (last_s - first_s)
        return max(0.0, max(0.0, rest) / rate - self.age_s(now_s))
