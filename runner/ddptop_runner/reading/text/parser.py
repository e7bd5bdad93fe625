"""Reads losses and steps from the output of a training, whichever framework printed it.

Pure: bytes go in, readings come out. Nothing here knows of files or processes. `LossParser` cuts an
output into lines and redraws, and sees what each adds to those before it; `says` returns what one
line says by itself.
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


# -- one line by itself ----------------------------------------------------------------------------

Form = Literal["line", "bar", "with bar", "epoch", "count", "pair"]
"""What a statement is: a line that stands for itself, a progress bar, a second loss in a bar, a
line that names an epoch alone, a step without more, or a step and a number without a name."""

_ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[px^_][^\x1b]*(?:\x1b\\|$)"
    rb"|[ -/]*[0-~])|\xc2\x9b[0-?]*[ -/]*[@-~]",
    re.IGNORECASE,
)
_BACKSPACES = re.compile("\x08+")
_SHORTEST = len("step 1")
"""A state of a line that is shorter says nothing."""
_MAX_STATES = 256
"""Of one line, the last: with more it shows a spinner, not progress bars."""


Said = tuple[Form, Reading]
"""One statement of a line."""


def says(line: bytes) -> list[Said]:
    """All statements of a line in lowercase, in order."""
    line = clean(line)
    if 8 in line:
        return [said for drawn in _without_backspaces(line) for said in _says(drawn)]
    return list(_says(line))


def clean(line: bytes) -> bytes:
    """The line without control sequences."""
    return _ANSI.sub(b"", line) if b"\x1b" in line or b"\x9b" in line else line


def _without_backspaces(line: bytes) -> list[bytes]:
    """The states that a line was in: backspaces to its start begin a new one.

    As on a screen, a backspace moves and takes nothing away until something is written.
    """
    states = []
    text: list[str] = []
    decoded = line.strip(b"\x08").decode("utf-8", "replace")
    position = 0
    for run in _BACKSPACES.finditer(decoded):
        text += decoded[position : run.start()]
        position = run.end()
        back = run.end() - run.start()
        if back >= len(text):
            states.append("".join(text))
            text.clear()
        else:
            del text[-back:]
    states.append("".join(text) + decoded[position:])
    long_enough = [state for state in states if len(state) >= _SHORTEST]
    return [state.encode("utf-8", "replace") for state in long_enough[-_MAX_STATES:]]


def _says(line: bytes) -> Iterator[Said]:
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


def _of_rank(line: bytes, rank: int | None, local: int | None) -> Iterator[Said]:
    has_loss = b"loss" in line
    if not has_loss and not (
        b"step" in line or b"epoch" in line or b"iter" in line or b"/s" in line or b"s/" in line
    ):
        if rank is not None and (pair := fields.step_and_value(line)) is not None:
            yield "pair", Reading(rank=rank, step=pair[0], loss=pair[1])
        return
    if b"train_runtime" in line:  # the summary of a Hugging Face Trainer: a mean over the run
        return
    found = fields.losses(line) if has_loss else []
    others = fields.scalars(line) if found else ()
    if (bar := bars.bar(line)) is not None:
        for form, said in _bar(bar, found, rank, local):
            yield form, replace(said, scalars=others) if others else said
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
        yield _said("line", where, rank, local, loss)


def _lone(line: bytes, rank: int | None, local: int | None) -> Iterator[Said]:
    """A line without a loss."""
    where = fields.lone_progress(line)
    if where is not None:
        yield _said("line", bars.with_timing(where, line), rank, local)
    elif b"epoch" in line and fields.names_epoch_alone(line):
        of = fields.epoch(line)
        if of.number is not None:
            yield "epoch", Reading(rank, local, epoch=of.number, epochs=of.of)
    elif (count := fields.counted(line)) is not None:
        yield _said("count", bars.with_timing(count, line), rank, local)


def _bar(
    bar: bars.Bar, found: list[fields.Loss], rank: int | None, local: int | None
) -> Iterator[Said]:
    shown = [loss for loss in found if not loss.validation]
    validation = bar.validation or (bool(found) and not shown)
    if not found and (bar.validation or not bar.training):
        return
    loss = (shown or found)[0] if found else None
    if loss is not None and validation:
        loss = loss._replace(validation=True)
    yield _said("bar", bar.reading, rank, local, loss)
    if shown and len(found) > 1:
        yield _said("with bar", bar.reading, rank, local, found[1])


def _said(
    form: Form,
    where: Reading,
    rank: int | None,
    local: int | None,
    loss: fields.Loss | None = None,
) -> Said:
    if loss is None:
        return form, replace(where, rank=rank, local_rank=local)
    kind = "val" if loss.validation else "train"
    return form, replace(where, rank=rank, local_rank=local, loss=loss.value, kind=kind)
