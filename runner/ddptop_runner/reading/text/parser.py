"""Reads losses and steps from the output of a training, whichever framework printed it.

Pure: bytes in, readings out, with no knowledge of files or processes. `LossParser` splits an output
into lines and redraws and compares each with those before it; `statements` parses a single line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec.structs import replace

from ddptop_runner.reading.text import fields
from ddptop_runner.reading.text.fields import Reading

__all__ = ["MAX_LINE_BYTES", "LossParser", "Reading"]

MAX_LINE_BYTES = 8192
"""Of a longer line or redraw, the rest is ignored."""

MAX_RANKS = 1024
"""An output that names more ranks is not trusted: what is known of them is dropped."""

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
        """By rank and whether it is a validation's."""

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
        if (bar := fields.bar(clean(lower))) is not None and bar.complete:
            for form, reading in statements(lower[:MAX_LINE_BYTES]):
                self._take(form, reading, readings)
        return readings

    def _take(self, form: Form, reading: Reading, readings: list[Reading]) -> None:
        """Append the reading that a statement adds to those before it."""
        if form == "epoch":
            self._epoch = (reading.epoch, reading.epochs)
            readings.append(reading)
        elif form == "line":
            readings.append(self._headed(reading))
        else:
            self._redraw(reading, readings)

    def _headed(self, reading: Reading) -> Reading:
        """The reading with the epoch that a line above names."""
        epoch, epochs = self._epoch
        if epoch is None or reading.epoch is not None or reading.total is None:
            return reading
        if reading.counts == "run":  # or its total may be that of the epoch
            return replace(reading, epoch=epoch, epochs=epochs, counts="epoch", open=True)
        if reading.counts == "epoch":
            return replace(reading, epoch=epoch, epochs=epochs)
        return reading

    def _redraw(self, reading: Reading, readings: list[Reading]) -> None:
        """Append what a redraw of a progress bar adds to its previous state."""
        rank = reading.rank if reading.rank is not None else reading.local_rank
        key = rank, reading.kind == "val"
        reading, before = self._headed(reading), self._drawn.get(key)
        loss = given = reading.loss
        if before is not None:
            same = before.step == reading.step and before.epoch == reading.epoch
            stale = before.loss == loss or (loss != loss and before.loss != before.loss)  # NaN
            if same and stale and (before.given or loss is None):
                return
            if stale and not same:
                given = None
        if len(self._drawn) >= MAX_RANKS:
            self._drawn.clear()
        self._drawn[key] = _Drawn(reading.epoch, reading.step, loss, given is not None)
        readings.append(replace(reading, loss=given))


# -- a single line ----------------------------------------------------------------------------

Form = Literal["line", "bar", "epoch"]
"""A complete line, a progress bar, or a line with nothing but an epoch."""

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
    if (bar := fields.bar(line)) is not None:
        if found or (bar.training and not bar.validation):
            loss = found[0] if found else None
            if loss is not None and bar.validation:
                loss = loss._replace(validation=True)
            yield "bar", _reading(replace(bar.reading, scalars=others), rank, local, loss)
        return
    if not found:
        yield from _without_loss(line, rank, local)
        return
    if rank is None and local is None:
        rank = fields.rank_in_words(line)
    where = replace(fields.progress(line), scalars=others)
    for loss in found:
        yield "line", _reading(where, rank, local, loss)


def _without_loss(line: bytes, rank: int | None, local: int | None) -> Iterator[Statement]:
    if (step := fields.resumed_at(line)) is not None:
        yield "line", Reading(rank, local, step=step, kind="resume")
    elif (step := fields.lone_step(line)) is not None:
        yield "line", Reading(rank, local, step=step)
    elif b"epoch" in line and fields.names_epoch_alone(line):
        of = fields.epoch(line)
        if of.number is not None:
            yield "epoch", Reading(rank, local, epoch=of.number, epochs=of.of)


def _reading(
    where: Reading, rank: int | None, local: int | None, loss: fields.Loss | None
) -> Reading:
    if loss is None:
        return replace(where, rank=rank, local_rank=local)
    kind: fields.ReadingKind = "val" if loss.validation else "train"
    return replace(where, rank=rank, local_rank=local, loss=loss.value, kind=kind)
