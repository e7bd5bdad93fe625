"""One counter in an output: what it counts, and how fast.

What a line says about its counter is believed until another line contradicts it. If a line leaves
open what its total is the total of, the change of the epoch decides: a counter that rises then
counts the run, one that falls counts the epoch.
"""

from __future__ import annotations

from typing import Literal

from ddptop_runner.model.words import ProgressUnit
from ddptop_runner.reading.progress.pace import Pace
from ddptop_runner.reading.text.parser import Reading

STRANGERS = 10
"""After so many steps in a row, another counter replaces the present one."""
LAG_INTERVALS = 3
"""How far a second process that writes to the same output may lag behind."""

Basis = Literal["guessed", "said", "seen"]
"""How it is known what a counter counts: by default, by its lines, or by how it moved."""


class Counter:
    """Something that an output counts, usually up to a total.

    Args:
        reading: the first one.
        source: the output that it was read from.
        from_start: whether counting began with this reading.
        of_run: whether it is known to count the run.
    """

    def __init__(
        self, reading: Reading, source: int, *, from_start: bool = False, of_run: bool = False
    ) -> None:
        self.source = source
        self.step = self.first = self.position = reading.step or 0
        """`position`: steps since the first, not affected by starting over."""
        self.total = reading.total
        self.epoch = None if reading.epoch is None else int(reading.epoch)
        """As the output numbers them."""
        self.unit: ProgressUnit | None = None
        """None while `total` may be that of an epoch or of the run."""
        self.basis: Basis = "guessed" if reading.open else "said"
        if of_run:
            self.unit, self.basis = "run", "seen"
        elif reading.counts != "epochs" and not (reading.open and reading.counts == "epoch"):
            self.unit = reading.counts
        self.rounds = 0 if from_start else None
        """How often it started over in the run, if no epoch is named; None if unknown."""
        self.every: int | None = None
        """The distance between the last two steps."""
        self.last = reading
        self.at_s: float | None = None
        """When that was written, in Unix seconds; None if unknown."""
        self.pace = Pace()
        self._lagging = 0

    def add(self, reading: Reading, at_s: float | None) -> None:
        """Fold in a reading with a step, of this counter.

        Args:
            reading: what was read.
            at_s: when it was written, in Unix seconds; None if unknown.
        """
        step, grown = reading.step or 0, 0
        if reading.epoch is not None and self.epoch is not None:
            grown = int(reading.epoch) - self.epoch
        moved, wraps = step - self.step, self._wraps(step)
        little_back = 0 < -moved <= LAG_INTERVALS * (self.every or 0) and not wraps
        lags = grown < 0 or (grown == 0 and little_back)  # another process wrote it
        self._lagging = self._lagging + 1 if lags else 0
        if lags and self._lagging < STRANGERS:
            return
        self._learn(grown, moved, wraps, may_restart=at_s is not None)
        if moved > 0 and (grown == 0 or self.unit == "run"):
            self.every = moved
        laps = grown if grown > 0 and self.unit != "run" else int(wraps)
        if wraps and self.rounds is not None:
            self.rounds += 1
        moved += laps * (self.total or 0)
        if grown < 0 or moved < 0 or (laps and not self.total):
            self.pace.clear()
            self.position = step
        else:
            self.position += moved
        self.step, self.last = step, reading
        self.total = self.total if reading.total is None else reading.total
        self.epoch = self.epoch if reading.epoch is None else int(reading.epoch)
        self.at_s = self.at_s if at_s is None else at_s
        if at_s is not None:
            self.pace.mark(at_s, self.position)

    def _wraps(self, step: int) -> bool:
        """Whether it started over from the present step, which was near the total."""
        if not self.total or step >= self.step:
            return False
        reach = 1.5 * (self.every or 1)
        ended = self.step >= 0.8 * self.total or self.step + reach >= self.total
        return ended and step <= max(reach, 0.2 * self.total)

    def _learn(self, grown: int, moved: int, wraps: bool, *, may_restart: bool) -> None:
        """Learn what it counts from how it moves."""
        if self.unit in ("epoch", "samples") and self.basis != "guessed":
            return
        if grown > 0 and moved > 0:
            self.unit, self.basis = "run", "seen"
        elif moved < 0 and (grown > 0 or wraps):
            self.unit, self.basis = "epoch", "seen"
        elif moved < 0 and self.unit == "run" and may_restart:
            near_zero = max(1.5 * (self.every or 1), 0.05 * (self.total or 0))
            if self.step + moved <= near_zero:  # epochs end early, or this is another run
                self.unit, self.basis, self.rounds = "epoch", "seen", None

    def judge(self, first: int, last: int, epochs: int) -> None:
        """Check whether it can count the run, given the range of the current epoch, from 0.

        Half an epoch of tolerance allows for epochs of different lengths. A single epoch is the
        run.
        """
        if self.unit is None and self.total:
            passed = epochs * self.step / self.total
            if epochs == 1 or not first - 0.5 <= passed <= last + 1.5:
                self.unit = "epoch"

    def share(self) -> float | None:
        """The fraction of the total that is done; None if unknown or more than 1."""
        return self.step / self.total if self.total and 0 <= self.step <= self.total else None

    def left_s(self, end: int, now_s: float, last_read_s: float | None = None) -> float | None:
        """Seconds until it reaches `end`, starting over if that is beyond its total.

        Based on the measured speed, or else on the output's own estimate.

        Args:
            end: the step at which it ends.
            now_s: Unix seconds.
            last_read_s: when anything at all was last read.
        """
        rest = end - self.step
        seen = self.pace.left_s(rest, now_s, last_read_s)
        if seen is not None or self.at_s is None:
            return seen
        eta_s = self.last.run_eta_s
        if eta_s is None and end == self.total:
            eta_s = self.last.eta_s
        if eta_s is None and self.last.rate_per_s:
            eta_s = rest / self.last.rate_per_s
        return None if eta_s is None else max(0.0, eta_s - max(0.0, now_s - self.at_s))
