"""One counter in an output: what it counts, and how fast."""

from __future__ import annotations

from collections import deque

from ddptop_runner.base.median import median
from ddptop_runner.model.words import ProgressUnit
from ddptop_runner.reading.text.parser import Reading

STRANGERS = 10
"""After so many steps in a row, another counter replaces the present one."""
LAG_INTERVALS = 3
"""How far a second process that writes to the same output may lag behind."""
CLIMBS = 3
"""A counter that continued across so many changes of the epoch counts the run."""


class Counter:
    """Something that an output counts, usually up to a total."""

    def __init__(self, resumes: bool = False) -> None:
        """`resumes`: whether training may have begun in the middle of the run."""
        self._resumes = resumes
        self.step: int | None = None
        self.first: int | None = None
        self.total: int | None = None
        self.epoch: int | None = None
        """As the output numbers them."""
        self.unit: ProgressUnit | None = None
        """None while `total` may be that of an epoch or of the run."""
        self.presumed = False
        """Whether `unit` is the run only because nothing says otherwise."""
        self.unnamed = False
        """Whether it may count samples, since no word says what it counts."""
        self.confirmed = False
        """Whether it is known to count the run."""
        self.rounds: int | None = None
        """How often it started over in the run, if no epoch is named; None if unknown."""
        self.every: int | None = None
        """The distance between the last two steps."""
        self.pace = Pace()
        self.at_s: float | None = None
        self.estimate: tuple[float, float] | None = None
        """The output's last own estimate, as (when, seconds to the total)."""
        self.run_estimate: tuple[float, float] | None = None
        """The same to the end of the run, if the output shows both."""
        self.rate_per_s: float | None = None
        """According to the output."""
        self.position = 0
        """Steps since the first, not affected by starting over."""
        self._last: Reading | None = None
        self._widest = 0
        """The largest distance between two consecutive steps of one epoch."""
        self._climbs = 0
        self._judged = False
        """Whether `unit` was inferred from numbers alone."""
        self._behind = 0

    def take(self, reading: Reading, at_s: float | None, from_start: bool = False) -> None:
        """Fold in a reading with a step.

        Args:
            reading: of this counter.
            at_s: when it was written, in Unix seconds; None if unknown.
            from_start: whether the output was read from its beginning.
        """
        if reading.step is None:
            return
        if self.step is None:
            self._begin(reading, reading.step, from_start)
        elif self._lags(reading, reading.step):
            return
        else:
            self._go_on(reading, reading.step, is_fresh=at_s is not None)
        self.step = reading.step
        if reading.total is not None:
            self.total = reading.total
        if reading.epoch is not None:
            self.epoch = int(reading.epoch)
        self._last = reading
        if at_s is not None:
            self.update_estimates(at_s)
            self.pace.mark(at_s, self.position)

    def _begin(self, reading: Reading, step: int, from_start: bool) -> None:
        self.unit = None if reading.open and reading.counts == "epoch" else _unit(reading)
        self.first = step
        self.presumed = reading.open and reading.counts == "run"
        self.unnamed = reading.unnamed
        self.rounds = 0 if (from_start or step <= 1) and not self._resumes else None
        self.position = step

    def _lags(self, reading: Reading, step: int) -> bool:
        """Whether another process that lags behind wrote the reading to the same output."""
        assert self.step is not None
        grown = self._grown(reading)
        back = self.step - step
        little = back <= LAG_INTERVALS * (self.every or 0)
        lags = grown < 0 or (not grown and back > 0 and little and not self._wraps(step))
        self._behind = self._behind + 1 if lags else 0
        return lags and self._behind < STRANGERS

    def _grown(self, reading: Reading) -> int:
        """By how much the number of the epoch has increased; 0 if none is named."""
        known = reading.epoch is not None and self.epoch is not None
        return int(reading.epoch or 0) - (self.epoch or 0) if known else 0

    def _wraps(self, step: int) -> bool:
        """Whether it started over from the present step, which was near the total."""
        if not self.total or self.step is None or step >= self.step:
            return False
        reach = 1.5 * (self.every or 1)
        ended = self.step >= 0.8 * self.total or self.step + reach >= self.total
        return ended and step <= max(reach, 0.2 * self.total)

    def _go_on(self, reading: Reading, step: int, is_fresh: bool) -> None:
        assert self.step is not None
        grown, moved = self._grown(reading), step - self.step
        wraps = self._wraps(step)
        if self.unit is None or (self._judged and moved > 0):
            self._decide(grown, moved)
        elif self.unit == "run" and moved < 0:
            if wraps or grown > 0:
                self.unit, self.presumed = "epoch", False
            elif is_fresh and step <= max(1.5 * (self.every or 1), 0.05 * (self.total or 0)):
                # started over before its total: epochs end early, or this is another run
                self.unit, self.presumed, self.rounds = "epoch", False, None
        elif self.unit == "run" and grown > 0:
            self.presumed, self.confirmed = False, True  # a bar that continues across epochs
        if moved > 0 and (not grown or self.unit == "run"):
            self.every = moved
            self._widest = max(self._widest, moved)
        if grown < 0:
            self._add(None, step)
        elif grown > 0 and self.unit in ("epoch", "samples"):
            self._add(None if not self.total else grown * self.total + moved, step)
        elif moved >= 0:
            self._add(moved, step)
        else:
            if wraps and self.rounds is not None:
                self.rounds += 1
            self._add((self.total or 0) + moved if wraps else None, step)

    def _decide(self, grown: int, moved: int) -> None:
        """Infer what it counts from how it moved when the epoch changed."""
        if grown <= 0:
            return
        if moved <= 0:
            self.unit = "epoch"
        elif self._widest:
            if moved <= 1.5 * self._widest:
                self.unit, self._judged = "run", False
        else:
            self._climbs += 1
            if self._climbs >= CLIMBS:
                self.unit, self._judged = "run", False

    def count_run(self) -> None:
        """Note that it is known to count the run."""
        self.unit, self._judged, self.presumed, self.confirmed = "run", False, False, True

    def judge(self, first: int, last: int, epochs: int) -> None:
        """Check whether it can count the run, given the range of the current epoch, from 0.

        Half an epoch of tolerance allows for epochs of different lengths. A single epoch is the
        run.
        """
        if self.unit is not None or not self.total or self.step is None:
            return
        passed = epochs * self.step / self.total
        if epochs == 1 or not first - 0.5 <= passed <= last + 1.5:
            self.unit, self._judged = "epoch", True

    def _add(self, moved: int | None, step: int) -> None:
        """None if the new step is unrelated to those before."""
        if moved is None or moved < 0:
            self.pace.clear()
            self.position = step
        else:
            self.position += moved

    def update_estimates(self, at_s: float) -> None:
        """Take the last reading's estimates, which were printed at that time."""
        if self._last is None:
            return
        reading, self.at_s = self._last, at_s
        self.rate_per_s = reading.rate_per_s or None
        self.estimate = None if reading.eta_s is None else (at_s, reading.eta_s)
        self.run_estimate = None if reading.run_eta_s is None else (at_s, reading.run_eta_s)

    def share(self) -> float | None:
        """The fraction of the total that is done; None if unknown or more than 1."""
        if not self.total or self.step is None or not 0 <= self.step <= self.total:
            return None
        return self.step / self.total

    def left_s(self, further: int, now_s: float, last_read_s: float | None = None) -> float | None:
        """Seconds until the total is reached, and `further` times more.

        Based on the measured speed, or else on the output's own estimate.

        Args:
            further: how many more times it counts up to the total.
            now_s: Unix seconds.
            last_read_s: when anything at all was last read.
        """
        if self.step is None or not self.total:
            return None
        rest = self.total * (1 + further) - self.step
        seen = self.pace.left_s(rest, now_s, last_read_s)
        if seen is not None:
            return seen
        age_s = 0.0 if self.at_s is None else max(0.0, now_s - self.at_s)
        if (estimate := self.run_estimate or (None if further else self.estimate)) is not None:
            return max(0.0, estimate[1] - age_s)
        return max(0.0, rest / self.rate_per_s - age_s) if self.rate_per_s else None


def _unit(reading: Reading) -> ProgressUnit:
    return "epoch" if reading.counts == "epochs" else reading.counts


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
