"""How far a rank is, as far as its output tells."""

from __future__ import annotations

import datetime as dt
import math

from ddptop_runner.loss_text import Reading
from ddptop_runner.model import Progress
from ddptop_runner.model_words import LossState, ProgressUnit
from ddptop_runner.progress.pace import Pace

STRANGERS = 10
"""So many steps in a row of another counter, and it is the one that goes on."""
HOLD_S = 600.0
"""For so long a bar stays the one that counts while a smaller one without a loss moves: evaluations
draw such bars, also after the last step, and nothing in them says so."""


class _Count:
    """Something that is counted up to a total."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self.pace = Pace()
        self.at_s: float | None = None
        self.told: tuple[float, float] | None = None
        """(when, seconds to the total) as the output reckoned last."""
        self.told_of_run: tuple[float, float] | None = None
        """The same to the end of the run, where it tells both."""
        self.rate_per_s: float | None = None
        """As the output reckons."""
        self.last: Reading | None = None
        self.every: int | None = None
        """How far apart the last two steps were."""

    def begin_anew(self) -> None:
        self.step = self.total = self.told = self.told_of_run = self.rate_per_s = self.last = None
        self.every = None
        self.pace.clear()

    def take(self, reading: Reading, at_s: float | None, epochs_before: float) -> None:
        """Fold in a reading with a step."""
        if reading.step is None:
            return
        if self.step is not None and reading.step > self.step:
            self.every = reading.step - self.step
        self.step = reading.step
        if reading.total is not None:
            self.total = reading.total
        self.last = reading
        if at_s is None:
            return
        self.reckoned(at_s)
        self.pace.mark(at_s, epochs_before * (self.total or 0) + reading.step)

    def reckoned(self, at_s: float) -> None:
        """Take over what the last reading reckons, which was written at that time."""
        if self.last is None:
            return
        reading, self.at_s = self.last, at_s
        self.rate_per_s = reading.rate_per_s or None
        self.told = None if reading.eta_s is None else (at_s, reading.eta_s)
        self.told_of_run = None if reading.run_eta_s is None else (at_s, reading.run_eta_s)

    def share(self) -> float | None:
        """Done of the total; None where that is not known, or more was done than there is."""
        if not self.total or self.step is None or not 0 <= self.step <= self.total:
            return None
        return self.step / self.total

    def left_s(self, further: int, now_s: float) -> float | None:
        """Seconds until the total was reached, and `further` times more.

        By the speed that was seen; else as the output itself says.
        """
        if self.step is None or not self.total:
            return None
        rest = self.total * (1 + further) - self.step
        seen = self.pace.left_s(rest, now_s)
        if seen is not None:
            return seen
        age_s = 0.0 if self.at_s is None else max(0.0, now_s - self.at_s)
        if (told := self.told_of_run or (None if further else self.told)) is not None:
            return max(0.0, told[1] - age_s)
        return max(0.0, rest / self.rate_per_s - age_s) if self.rate_per_s else None


class TextProgress:
    """What the readings of one rank add up to."""

    def __init__(self) -> None:
        self.loss: float | None = None
        self.loss_state: LossState | None = None
        self.loss_step: int | None = None
        self.loss_last_good: float | None = None
        self.loss_since: dt.datetime | None = None
        """When the first loss was read; of one that stood there before, nobody knows."""
        self.step_since: dt.datetime | None = None
        self.epoch: float | None = None
        self.epochs: int | None = None
        self.validation_loss: float | None = None
        self.last_at: dt.datetime | None = None
        """When something new was read."""
        self.loss_min: float | None = None
        self.loss_max: float | None = None
        self._steps = _Count()
        self._samples = _Count()
        """Of the epoch, for an output that counts samples."""
        self._epochs_done: float | None = None
        """For an output that only has a line at the end of each epoch."""
        self._epoch_pace = Pace()
        self._from_zero = False
        """Whether an epoch 0 was seen."""
        self._of_run = True
        """Whether the step counts the whole run: it never went back."""
        self._counter: tuple[int, int | None] | None = None
        """What `step` is read from, as (source, total): a log may hold a bar and lines as well."""
        self._counts_run = False
        self._strangers = 0

    @property
    def step(self) -> int | None:
        """As printed: within the epoch where the log counts so."""
        return self._steps.step

    @property
    def every(self) -> int | None:
        """How far apart the last two steps were that were told."""
        return self._steps.every

    @property
    def total_steps(self) -> int | None:
        """Of the whole run; None where the log counts each epoch anew."""
        return self._steps.total if self._of_run else None

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
            self._take_epoch(reading, at)
        if reading.kind == "val":
            if reading.loss is not None:
                self.validation_loss = reading.loss
            return
        at_s = None if at is None else at.timestamp()
        if reading.counts == "samples":
            self._samples.take(reading, at_s, self._epochs_before(reading))
        elif reading.step is not None and self._is_counter(reading, source, at_s):
            self._count(reading, reading.step, at)
        if reading.loss is not None:
            self._take_loss(reading.loss, reading, at)

    def written_last(self, at: dt.datetime) -> None:
        """The last of what was heard without a time was written then."""
        self.last_at = at
        self._steps.reckoned(at.timestamp())
        self._samples.reckoned(at.timestamp())

    def _take_epoch(self, reading: Reading, at: dt.datetime | None) -> None:
        self.epoch = reading.epoch
        self.epochs = reading.epochs or self.epochs
        self._from_zero = self._from_zero or reading.epoch == 0
        ended = reading.step is None and reading.loss is not None and reading.kind == "train"
        self._epochs_done = reading.epoch if ended else None
        if ended and at is not None and reading.epoch is not None:
            self._epoch_pace.mark(at.timestamp(), reading.epoch)

    def _take_loss(self, loss: float, reading: Reading, at: dt.datetime | None) -> None:
        self.loss_since = self.loss_since or at
        self.loss_step = reading.step if reading.counts != "samples" else None
        if math.isfinite(loss):
            self.loss, self.loss_state = loss, "ok"
            self.loss_last_good = loss
            self.loss_min = loss if self.loss_min is None else min(self.loss_min, loss)
            self.loss_max = loss if self.loss_max is None else max(self.loss_max, loss)
        else:
            self.loss, self.loss_state = None, "nan" if math.isnan(loss) else "inf"

    # -- what is counted -------------------------------------------------------------------------

    def _is_counter(self, reading: Reading, source: int, at_s: float | None) -> bool:
        """Whether this is what the step is read from: one that counts the run, if there is one."""
        counter = (source, reading.total)
        counts_run = reading.counts == "run"
        if counter == self._counter:
            self._strangers = 0
            return True
        self._strangers += 1
        better = self._counter is None or (counts_run and not self._counts_run)
        if not better and (self._strangers < STRANGERS or self._holds(reading, at_s)):
            return False
        self._counter, self._counts_run, self._strangers = counter, counts_run, 0
        self._of_run = counts_run
        self._steps.begin_anew()
        return True

    def _holds(self, reading: Reading, at_s: float | None) -> bool:
        """Whether what counts now was heard of not long ago, and the other is a lesser bar."""
        known, other = self._steps, reading.total
        if not known.total or known.step is None:
            return False
        if reading.loss is not None or other is None or other >= known.total:
            return False
        return at_s is None or known.at_s is None or at_s - known.at_s < HOLD_S

    def _count(self, reading: Reading, step: int, at: dt.datetime | None) -> None:
        known = self._steps
        self.step_since = self.step_since or at
        if known.step is not None and step < known.step:
            if reading.counts == "run" or reading.epoch is None:
                known.pace.clear()
            # in what stood there before, an earlier run may have ended half-way
            if at is not None or (known.total and known.step >= 0.8 * known.total):
                self._of_run = False
        known.take(reading, None if at is None else at.timestamp(), self._epochs_before(reading))

    @staticmethod
    def _epochs_before(reading: Reading) -> float:
        """So many times the total lies before the step: speed goes on from epoch to epoch."""
        return float(int(reading.epoch)) if reading.counts != "run" and reading.epoch else 0.0

    # -- what it adds up to ----------------------------------------------------------------------

    def steps_per_s(self, now: dt.datetime) -> float | None:
        """By the log; None before two different steps were seen, and for a log that fell silent."""
        return self._steps.pace.per_s(now.timestamp())

    def eta_s(self, now: dt.datetime) -> float | None:
        """Seconds to the end of the run; None where its end is not known."""
        progress = self.progress(now)
        return None if progress is None else progress.eta_s

    def progress(self, now: dt.datetime) -> Progress | None:
        """How far it is; None where nothing said a total."""
        now_s = now.timestamp()
        if self._steps.total and self._steps.step is not None:
            return self._of_count(self._steps, "run" if self._of_run else "epoch", now_s)
        if self._samples.total and self._samples.step is not None:
            return self._of_count(self._samples, "samples", now_s)
        if not self.epochs:
            return None
        fraction = eta_s = None
        done = self._epochs_done
        if done is not None and not self._from_zero and 0 < done <= self.epochs:
            fraction = done / self.epochs
            eta_s = self._epoch_pace.left_s(self.epochs - done, now_s)
        return Progress(
            epoch=self.epoch, epochs=self.epochs, fraction=fraction, eta_s=eta_s, source="log"
        )

    def _of_count(self, count: _Count, unit: ProgressUnit, now_s: float) -> Progress:
        share, eta_s, fraction = count.share(), None, None
        if unit == "run":
            fraction = share
            eta_s = count.left_s(0, now_s)
        elif share is not None and (place := self._place()) is not None:
            before, of = place
            fraction = min(1.0, (before + share) / of)
            eta_s = count.left_s(of - before - 1, now_s)
        return Progress(
            step=count.step,
            total=count.total,
            counts=unit,
            epoch=self.epoch,
            epochs=self.epochs,
            fraction=fraction,
            eta_s=None if fraction is None else eta_s,
            source="log",
        )

    def _place(self) -> tuple[int, int] | None:
        """(epochs before this one, how many there are); None where that is not known.

        Of `epoch 0/4` nobody knows whether it is of four or of five, until epoch 4 comes.
        """
        if self.epoch is None or not self.epochs:
            return None
        number = int(self.epoch)
        if not self._from_zero:
            return (number - 1, self.epochs) if 1 <= number <= self.epochs else None
        return (number, self.epochs + 1) if number == self.epochs else None
