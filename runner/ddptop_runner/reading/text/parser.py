"""Reads losses and steps from the output of a training, whichever framework printed it.

Pure: bytes go in, readings come out. Nothing here knows of files or processes. What a line means is
in `line`; here outputs are cut into lines and redraws, and what a progress bar adds to
its state before is seen.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ddptop_runner.reading.text import bars
from ddptop_runner.reading.text.fields import Reading, ReadingKind, StepUnit
from ddptop_runner.reading.text.line import clean, says

__all__ = ["MAX_LINE_BYTES", "LossParser", "Reading", "ReadingKind", "StepUnit"]

MAX_LINE_BYTES = 8192
"""What is looked at of one line or redraw; of a longer one the end is passed over."""

MAX_RANKS = 1024
"""Numbers of ranks that are remembered; an output that names more is not trusted with any."""

MIN_LONE_TOTAL = 20
"""A count without a loss up to less is of something else: parts of an installation, say."""


class _Drawn(NamedTuple):
    """What a progress bar showed last."""

    epoch: float | None
    step: int | None
    loss: float | None
    given: bool
    """Whether the loss of this step was handed out."""


class LossParser:
    """Readings of one output, fed in pieces of any size. Confined to one thread.

    Takes any bytes. A redraw of a progress bar counts as a line; one that shows a new step with
    the loss of the step before gives a reading without a loss. Memory does not grow.
    """

    def __init__(self) -> None:
        self._carry = b""
        self._skipping = False
        """Inside the passed-over end of a long line."""
        self._epoch: tuple[float | None, int | None] = (None, None)
        """Of the last line that named one alone, as Keras does above each bar."""
        self._drawn: dict[tuple[int | None, bool], _Drawn] = {}
        self._gave = False
        """Whether the last redraw said anything new."""
        self._bare: dict[int, Reading] = {}
        """The last line of a rank that held a step and a number without a name."""
        self._proven: set[int] = set()
        """Ranks whose steps in such lines were seen to grow."""
        self._counted: dict[int | None, Reading] = {}

    def feed(self, data: bytes) -> list[Reading]:
        """Take the next bytes; the readings of all lines and redraws that ended in them."""
        readings: list[Reading] = []
        pieces = (self._carry + data.lower()).replace(b"\r", b"\n").split(b"\n")
        self._carry = pieces.pop()
        if self._skipping:
            if not pieces:
                self._carry = b""
                return readings
            del pieces[0]
            self._skipping = False
        if len(self._carry) > MAX_LINE_BYTES:
            pieces.append(self._carry)
            self._carry, self._skipping = b"", True
        for piece in pieces:
            if not piece:
                continue
            if len(piece) > MAX_LINE_BYTES:
                piece = piece[: piece.rfind(b" ", 0, MAX_LINE_BYTES) + 1]
            for form, said in says(piece):
                if (form == "line" and not self._is_headed(said)) or (
                    form == "pair" and said.rank in self._proven
                ):
                    readings.append(said)
                else:
                    self._take(form, said, readings)
        return readings

    def settle(self) -> list[Reading]:
        """What the progress bar in the unfinished line says, to be asked while the output rests.

        A bar is ended only by its next redraw, which may be minutes away. Nothing else is read from
        an unfinished line: it may end inside a number.
        """
        return self.peek(self._carry)

    def peek(self, line: bytes) -> list[Reading]:
        """The same of an unfinished line at hand, as it stands on a screen."""
        readings: list[Reading] = []
        lower = line.lower()
        if (bar := bars.bar(clean(lower))) is not None and bar.complete:
            for form, said in says(lower[:MAX_LINE_BYTES]):
                self._take(form, said, readings)
        return readings

    def _take(self, form: str, said: Reading, readings: list[Reading]) -> None:
        """Add what a statement adds to those before it."""
        if form == "line":
            readings.append(self._headed(said))
        elif form == "bar":
            self._redraw(said, readings)
        elif form == "with bar":
            if self._gave:
                readings.append(self._in_epoch(said, said.loss))
        elif form == "pair":
            self._pair(said, readings)
        elif form == "epoch":
            self._epoch = (said.epoch, said.epochs)
        else:
            self._count(said, readings)

    def _is_headed(self, said: Reading) -> bool:
        """Whether its epoch stands on a line above it, so that its total may be of that epoch."""
        return self._epoch[0] is not None and said.epoch is None and said.total is not None

    def _headed(self, said: Reading) -> Reading:
        if not self._is_headed(said) or said.counts != "run":
            return said
        epoch, epochs = self._epoch
        return msgspec.structs.replace(said, epoch=epoch, epochs=epochs, counts="epoch", open=True)

    def _in_epoch(self, said: Reading, loss: float | None) -> Reading:
        """The reading of a bar; Keras names the epoch above it."""
        said = self._headed(said)
        epoch, epochs = said.epoch, said.epochs
        if epoch is None and said.counts == "epoch":
            epoch, epochs = self._epoch
        done = said.total is not None and said.step is not None and said.step >= said.total
        eta_s = 0.0 if done else said.eta_s  # the time of an ended bar is what it took
        return msgspec.structs.replace(said, loss=loss, epoch=epoch, epochs=epochs, eta_s=eta_s)

    def _redraw(self, said: Reading, readings: list[Reading]) -> None:
        """One state of a progress bar: what it adds to the state before."""
        counts_steps = said.counts in ("epoch", "run")
        epoch = self._epoch[0] if said.epoch is None and counts_steps else said.epoch
        key = (said.rank if said.rank is not None else said.local_rank, said.kind == "val")
        before = self._drawn.get(key)
        loss = give = said.loss
        self._gave = True
        if before is not None:
            same = before.step == said.step and before.epoch == epoch
            stale = before.loss == loss or (loss != loss and before.loss != before.loss)  # NaN
            if same and stale and (before.given or loss is None):
                self._gave = False
                return
            if stale and not same:
                give = None
        if len(self._drawn) >= MAX_RANKS:
            self._drawn.clear()
        self._drawn[key] = _Drawn(epoch, said.step, loss, give is not None)
        readings.append(self._in_epoch(said, give))

    def _pair(self, said: Reading, readings: list[Reading]) -> None:
        """`[rank] step number`: a loss by custom only, so its steps must be seen to grow first."""
        rank = said.rank
        assert rank is not None and said.step is not None
        if rank in self._proven:
            readings.append(said)
            return
        before = self._bare.get(rank)
        if before is not None and before.step is not None and said.step > before.step:
            readings += [before, said]
            if len(self._proven) >= MAX_RANKS:
                self._proven.clear()
            self._proven.add(rank)
        if len(self._bare) >= MAX_RANKS:
            self._bare.clear()
        self._bare[rank] = said

    def _count(self, said: Reading, readings: list[Reading]) -> None:
        """`Step 100/5000` without a loss: of the training if it goes on by the same total."""
        rank = said.rank if said.rank is not None else said.local_rank
        before = self._counted.get(rank)
        if len(self._counted) >= MAX_RANKS:
            self._counted.clear()
        self._counted[rank] = said
        assert said.step is not None and said.total is not None
        if said.total < MIN_LONE_TOTAL or said.step > said.total:
            return
        if before is not None and before.total == said.total and before.step != said.step:
            readings.append(self._headed(said))
