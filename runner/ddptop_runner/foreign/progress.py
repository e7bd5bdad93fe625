"""How far a rank is, as far as its log tells."""

from __future__ import annotations

import datetime as dt
import math
from collections import deque
from collections.abc import Iterable

from ddptop_runner.loss_text import Reading
from ddptop_runner.model_words import LossState

RATE_WINDOW_S = 120.0
"""Steps per second are counted over about this time, or over the last two steps seen."""
MAX_MARKS = 128
SILENT_FACTOR = 10.0
"""A log that is silent for so many of its usual intervals says nothing of the speed any more."""


STRANGERS = 10
"""So many steps in a row of another counter, and it is the one that goes on."""


class RankProgress:
    """What the readings of one rank add up to."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self.loss_state: LossState | None = None
        self.loss_step: int | None = None
        self.step: int | None = None
        """As printed: within the epoch where the log counts so."""
        self.epoch: float | None = None
        self.validation_loss: float | None = None
        self.last_at: dt.datetime | None = None
        """When something new was read."""
        self.loss_min: float | None = None
        self.loss_max: float | None = None
        self._total: int | None = None
        self._of_run = True
        """Whether the step counts the whole run: it never went back."""
        self._marks: deque[tuple[float, int]] = deque(maxlen=MAX_MARKS)
        self._counter: tuple[int, int | None] | None = None
        """What `step` is read from, as (source, total): a log may hold a bar and lines as well."""
        self._counts_run = False
        self._strangers = 0

    @property
    def total_steps(self) -> int | None:
        """Of the whole run; None where the log counts each epoch anew."""
        return self._total if self._of_run else None

    @property
    def counts_run(self) -> bool:
        """Whether `step` counts the whole run, as far as the log tells."""
        return self._of_run

    def begin_look(self) -> None:
        """Smallest and largest loss are since the previous look."""
        self.loss_min = self.loss_max = None

    def hear(self, reading: Reading, at: dt.datetime | None, source: int = 0) -> None:
        """Fold in one reading.

        Args:
            reading: of this rank.
            at: when it was written; None for what stood there before the first look, of which
                nobody knows when.
            source: which output it was read from.
        """
        if at is not None:
            self.last_at = at
        if reading.epoch is not None:
            self.epoch = reading.epoch
        if reading.kind == "val":
            if reading.loss is not None:
                self.validation_loss = reading.loss
            return
        step = reading.step if reading.counts != "samples" else None
        if step is not None and self._is_counter(reading, source):
            self._count(reading, step, at)
        if reading.loss is not None:
            self._take_loss(reading.loss, reading)

    def _take_loss(self, loss: float, reading: Reading) -> None:
        self.loss_step = reading.step if reading.counts != "samples" else None
        if math.isfinite(loss):
            self.loss, self.loss_state = loss, "ok"
            self.loss_min = loss if self.loss_min is None else min(self.loss_min, loss)
            self.loss_max = loss if self.loss_max is None else max(self.loss_max, loss)
        else:
            self.loss, self.loss_state = None, "nan" if math.isnan(loss) else "inf"

    def _is_counter(self, reading: Reading, source: int) -> bool:
        """Whether this is what the step is read from: one that counts the run, if there is one."""
        counter = (source, reading.total)
        counts_run = reading.counts == "run"
        if counter == self._counter:
            self._strangers = 0
            return True
        self._strangers += 1
        better = counts_run and not self._counts_run
        if self._counter is not None and not better and self._strangers < STRANGERS:
            return False
        self._counter, self._counts_run, self._strangers = counter, counts_run, 0
        self._of_run, self.step, self._total = counts_run, None, None
        self._marks.clear()
        return True

    def _count(self, reading: Reading, step: int, at: dt.datetime | None) -> None:
        if self.step is not None and step < self.step:
            self._marks.clear()
            # in what stood there before, an earlier run may have ended half-way
            if at is not None or (self._total and self.step >= 0.8 * self._total):
                self._of_run = False
        self.step = step
        if reading.total is not None:
            self._total = reading.total
        if at is None or (self._marks and step == self._marks[-1][1]):
            return
        at_s = at.timestamp()
        if self._marks and at_s <= self._marks[-1][0]:
            self._marks[-1] = (self._marks[-1][0], step)  # several in one look
            return
        self._marks.append((at_s, step))
        while len(self._marks) > 2 and self._marks[1][0] < at_s - RATE_WINDOW_S:
            self._marks.popleft()

    def steps_per_s(self, now: dt.datetime) -> float | None:
        """By the log; None before two different steps were seen, and for a log that fell silent."""
        if len(self._marks) < 2:
            return None
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        usual_s = (last_s - first_s) / (len(self._marks) - 1)
        if now.timestamp() - last_s > SILENT_FACTOR * usual_s + 5.0 or last <= first:
            return None
        return (last - first) / (last_s - first_s)

    def eta_s(self, now: dt.datetime) -> float | None:
        """Seconds to the last step of the run; None where its number is not known."""
        rate, total = self.steps_per_s(now), self.total_steps
        if rate is None or total is None or self.step is None:
            return None
        return max(0, total - self.step) / rate


def eta_of(all_ranks: Iterable[RankProgress], now: dt.datetime) -> float | None:
    """Of the slowest rank; None where no rank tells."""
    known = [eta for one in all_ranks if (eta := one.eta_s(now)) is not None]
    return max(known, default=None)
