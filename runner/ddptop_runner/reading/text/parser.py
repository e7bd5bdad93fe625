"""Reads losses and steps from the output of a training, whichever framework printed it.

Pure: bytes in, readings out, with no knowledge of files or processes. `LossParser` splits an output
into lines and redraws and compares each with those before it; `statements` parses a single line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from ddptop_runner.reading.text import bars, fields
from ddptop_runner.reading.text.fields import Reading

__all__ = ["MAX_LINE_BYTES", "LossParser", "Reading"]

MAX_LINE_BYTES = 8192
"""Of a longer line or redraw, the rest is ignored."""

MAX_RANKS = 1024
"""An output that names more ranks is not trusted: what is known of them is dropped."""

MIN_LONE_TOTAL = 20
"""A smaller total beside no loss counts something else, such as the parts of an installation."""


_REDRAWN = bytes.maketrans(b"\r\b", b"\n\n")
"""A carriage return or backspaces begin a redraw, which is read like a line."""


class _Drawn(NamedTuple):
    """The last state of a progress bar."""

    epoch: float | None
    step: int | None
    loss: float | None
    given: bool
    """Whether a reading with the loss of this step was returned."""


class LossParser:
    """Parses one output, fed in pieces of any size. Not thread-safe; memory is bounded.

    A redraw of a progress bar counts as a line. One that shows a new step with the previous step's
    loss results in a reading without a loss.
    """

    def __init__(self) -> None:
        self._carry = b""
        self._skipping = False
        """Whether the next bytes belong to the ignored end of a long line."""
        self._epoch: tuple[float | None, int | None] = (None, None)
        """From the last line with nothing but an epoch, which Keras prints above each bar."""
        self._drawn: dict[tuple[int | None, bool], _Drawn] = {}
        self._gave = False
        """Whether the last redraw added anything."""
        self._second_losses: dict[tuple[int | None, int | None], float | None] = {}
        """By rank, the last second loss of a bar, which stays there until the next evaluation."""
        self._counted: dict[int | None, Reading] = {}

    def feed(self, data: bytes) -> list[Reading]:
        """Parse the next bytes; return readings of the lines and redraws they complete."""
        readings: list[Reading] = []
        pieces = (self._carry + data.lower().translate(_REDRAWN)).split(b"\n")
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
            for form, reading in statements(piece):
                if form == "line" and not self._is_headed(reading):
                    readings.append(reading)
                else:
                    self._take(form, reading, readings)
        return readings

    def settle(self) -> list[Reading]:
        """Parse the progress bar in the unfinished line; call this while nothing is printed.

        Only the next redraw ends a bar, and that may be minutes away. Nothing else is read from an
        unfinished line, since it may end inside a number.
        """
        return self.peek(self._carry)

    def peek(self, line: bytes) -> list[Reading]:
        """Parse the progress bar in an unfinished line, such as one read from a screen."""
        readings: list[Reading] = []
        lower = line.lower()
        if (bar := bars.bar(clean(lower))) is not None and bar.complete:
            for form, reading in statements(lower[:MAX_LINE_BYTES]):
                self._take(form, reading, readings)
        return readings

    def _take(self, form: str, reading: Reading, readings: list[Reading]) -> None:
        """Append the readings that a statement adds to those before it."""
        if form == "line":
            readings.append(self._headed(reading))
        elif form == "bar":
            self._redraw(reading, readings)
        elif form == "with bar":
            key = reading.rank, reading.local_rank
            if self._gave and self._second_losses.get(key) != reading.loss:
                if len(self._second_losses) >= MAX_RANKS:
                    self._second_losses.clear()
                self._second_losses[key] = reading.loss
                readings.append(self._in_epoch(reading, reading.loss))
        elif form == "epoch":
            self._epoch = (reading.epoch, reading.epochs)
            readings.append(reading)
        else:
            self._count(reading, readings)

    def _is_headed(self, reading: Reading) -> bool:
        """Whether a line above names its epoch, so that its total may be that of the epoch."""
        return self._epoch[0] is not None and reading.epoch is None and reading.total is not None

    def _headed(self, reading: Reading) -> Reading:
        if not self._is_headed(reading) or reading.counts != "run":
            return reading
        epoch, epochs = self._epoch
        return msgspec.structs.replace(
            reading, epoch=epoch, epochs=epochs, counts="epoch", open=True
        )

    def _in_epoch(self, reading: Reading, loss: float | None) -> Reading:
        """The reading of a bar, whose epoch Keras prints on the line above."""
        reading = self._headed(reading)
        epoch, epochs = reading.epoch, reading.epochs
        if epoch is None and reading.counts == "epoch":
            epoch, epochs = self._epoch
        done = (
            reading.total is not None and reading.step is not None and reading.step >= reading.total
        )
        eta_s = 0.0 if done else reading.eta_s  # a finished bar shows the time it took
        return msgspec.structs.replace(reading, loss=loss, epoch=epoch, epochs=epochs, eta_s=eta_s)

    def _redraw(self, reading: Reading, readings: list[Reading]) -> None:
        """Append what a redraw of a progress bar adds to its previous state."""
        counts_steps = reading.counts in ("epoch", "run")
        epoch = self._epoch[0] if reading.epoch is None and counts_steps else reading.epoch
        key = (
            reading.rank if reading.rank is not None else reading.local_rank,
            reading.kind == "val",
        )
        before = self._drawn.get(key)
        loss = given = reading.loss
        self._gave = True
        if before is not None:
            same = before.step == reading.step and before.epoch == epoch
            stale = before.loss == loss or (loss != loss and before.loss != before.loss)  # NaN
            if same and stale and (before.given or loss is None):
                self._gave = False
                return
            if stale and not same:
                given = None
        if len(self._drawn) >= MAX_RANKS:
            self._drawn.clear()
        self._drawn[key] = _Drawn(epoch, reading.step, loss, given is not None)
        readings.append(self._in_epoch(reading, given))

    def _count(self, reading: Reading, readings: list[Reading]) -> None:
        """`Step 100/5000` without a loss: progress if the step changes while the total does not."""
        rank = reading.rank if reading.rank is not None else reading.local_rank
        before = self._counted.get(rank)
        if len(self._counted) >= MAX_RANKS:
            self._counted.clear()
        self._counted[rank] = reading
        assert reading.step is not None and reading.total is not None
        if reading.total < MIN_LONE_TOTAL or reading.step > reading.total:
            return
        if before is not None and before.total == reading.total and before.step != reading.step:
            readings.append(self._headed(reading))


# -- a single line ----------------------------------------------------------------------------

Form = Literal["line", "bar", "with bar", "epoch", "count"]
"""A complete line, a progress bar, a second loss in a bar, a line with nothing but an epoch, or one
with nothing but a step."""

_ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[px^_][^\x1b]*(?:\x1b\\|$)"
    rb"|[ -/]*[0-~])|\xc2\x9b[0-?]*[ -/]*[@-~]",
    re.IGNORECASE,
)

Statement = tuple[Form, Reading]


def statements(line: bytes) -> list[Statement]:
    """Parse a lowercase line into its statements, in order."""
    return list(_statements_of(clean(line)))


def clean(line: bytes) -> bytes:
    """Remove control sequences from a line."""
    return _ANSI.sub(b"", line) if b"\x1b" in line or b"\x9b" in line else line


def _statements_of(line: bytes) -> Iterator[Statement]:
    if line[:1] == b"[" or b"]<std" in line or b"]:" in line:
        found = fields.prefixes(line)
        if found:
            if found[0].at:
                yield from _of_rank(line[: found[0].at], None, None)
            ends = [*(prefix.at for prefix in found[1:]), len(line)]
            for prefix, end in zip(found, ends, strict=True):
                yield from _of_rank(line[prefix.start : end], prefix.rank, prefix.local_rank)
            return
    yield from _of_rank(line, None, None)


def _of_rank(line: bytes, rank: int | None, local: int | None) -> Iterator[Statement]:
    has_loss = b"loss" in line
    if not has_loss and not (
        b"step" in line or b"epoch" in line or b"iter" in line or b"/s" in line or b"s/" in line
    ):
        return
    if b"train_runtime" in line:  # a Hugging Face Trainer's summary: a mean over the run
        return
    found = fields.losses(line) if has_loss else []
    others = fields.scalars(line) if found else ()
    if (bar := bars.bar(line)) is not None:
        for form, reading in _bar(bar, found, rank, local):
            yield form, replace(reading, scalars=others) if others else reading
        return
    if rank is None and local is None and found:
        rank = fields.rank_in_words(line)
    if not found:
        yield from _lone(line, rank, local)
        return
    where = bars.with_timing(fields.progress(line), line)
    if others:
        where = replace(where, scalars=others)
    for loss in found:
        yield _statement("line", where, rank, local, loss)


def _lone(line: bytes, rank: int | None, local: int | None) -> Iterator[Statement]:
    """Statements of a line without a loss."""
    if (step := fields.resumed_at(line)) is not None:
        yield "line", Reading(rank, local, step=step, kind="resume")
        return
    where = fields.lone_progress(line)
    if where is not None:
        yield _statement("line", bars.with_timing(where, line), rank, local)
    elif b"epoch" in line and fields.names_epoch_alone(line):
        of = fields.epoch(line)
        if of.number is not None:
            yield "epoch", Reading(rank, local, epoch=of.number, epochs=of.of)
    elif (count := fields.counted(line)) is not None:
        yield _statement("count", bars.with_timing(count, line), rank, local)


def _bar(
    bar: bars.Bar, found: list[fields.Loss], rank: int | None, local: int | None
) -> Iterator[Statement]:
    shown = [loss for loss in found if not loss.validation]
    validation = bar.validation or (bool(found) and not shown)
    if not found and (bar.validation or not bar.training):
        return
    loss = (shown or found)[0] if found else None
    if loss is not None and validation:
        loss = loss._replace(validation=True)
    yield _statement("bar", bar.reading, rank, local, loss)
    if shown and len(found) > 1:
        yield _statement("with bar", bar.reading, rank, local, found[1])


def _statement(
    form: Form,
    where: Reading,
    rank: int | None,
    local: int | None,
    loss: fields.Loss | None = None,
) -> Statement:
    if loss is None:
        return form, replace(where, rank=rank, local_rank=local)
    kind = "val" if loss.validation else "train"
    return form, replace(where, rank=rank, local_rank=local, loss=loss.value, kind=kind)
