"""Reads losses and steps out of what a training printed, whichever framework printed it.

Pure: bytes go in, readings come out. Nothing here knows of files or processes. What a line means is
in `loss_text_fields`; here outputs are cut into lines and redraws.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from ddptop_runner import loss_text_fields as fields

ReadingKind = Literal["train", "val"]
StepUnit = Literal["run", "epoch", "samples"]

MAX_LINE_BYTES = 8192
"""What is looked at of one line or redraw; of a longer one the end is passed over."""

MAX_RANKS = 1024
"""Numbers of ranks that are remembered; an output that names more is not trusted with any."""

_ANSI = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[P^_X][^\x1b]*(?:\x1b\\|$)"
    rb"|[ -/]*[0-~])|\xc2\x9b[0-?]*[ -/]*[@-~]"
)
_BACKSPACES = re.compile(rb"\x08+")
_NO_RATE = re.compile(rb"step|it/s|s/it|/s|iteration|epoch")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one line of output, or one redraw of a progress bar, says of a training."""

    rank: int | None = None
    """Of the line's own prefix, such as `[0]<stdout>:`; None where it does not say."""
    local_rank: int | None = None
    """The same where the prefix counts on its host, as `[default0]:` of torchrun does."""
    step: int | None = None
    """As printed; see `counts`."""
    total: int | None = None
    """What `step` counts up to."""
    counts: StepUnit = "run"
    """What `step` counts: steps of the whole run, as far as the line tells, steps of the epoch, or
    samples of the epoch."""
    loss: float | None = None
    """May be NaN or infinite, as printed; None where the line tells only how far it is."""
    epoch: float | None = None
    kind: ReadingKind = "train"
    eta_s: float | None = None
    """Seconds until `total` is reached, as the output itself reckons."""
    rate_per_s: float | None = None
    """How much of what `step` counts is done in a second, as the output says."""
    written_at_s: float | None = None
    """Unix seconds at which it was written; None where the output does not say."""


class _Drawn(NamedTuple):
    """What a progress bar showed last."""

    epoch: float | None
    step: int | None
    loss: bytes
    given: bool
    """Whether the loss of this step was handed out."""


class _Bare(NamedTuple):
    """The last line of a rank that held a step and a number without a name."""

    step: int
    value: float
    proven: bool
    """Whether the steps of such lines were seen to grow."""


class LossParser:
    """Readings of one output, fed in pieces of any size. Confined to one thread.

    Takes any bytes. A redraw of a progress bar counts as a line; one that shows a new step with
    the loss of the step before gives a reading without a loss. Memory does not grow.
    """

    def __init__(self) -> None:
        self._carry = b""
        self._skipping = False
        """Inside the passed-over end of a long line."""
        self._epoch: float | None = None
        """Of the last line that named one alone, as Keras does above each bar."""
        self._drawn: dict[tuple[int | None, bool], _Drawn] = {}
        self._bare: dict[int, _Bare] = {}

    def feed(self, data: bytes) -> list[Reading]:
        """Take the next bytes; the readings of all lines and redraws that ended in them."""
        readings: list[Reading] = []
        pieces = (self._carry + data).replace(b"\r", b"\n").split(b"\n")
        self._carry = pieces.pop()
        if self._skipping and pieces:
            del pieces[0]
            self._skipping = False
        if len(self._carry) > MAX_LINE_BYTES:
            pieces.append(self._carry)
            self._skipping = True
        if self._skipping:
            self._carry = b""
        for piece in pieces:
            if piece:
                self._piece(piece, readings)
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
        if (bar := fields.bar(_clean(line))) is not None and bar.complete:
            self._piece(line, readings)
        return readings

    def _piece(self, piece: bytes, readings: list[Reading]) -> None:
        if len(piece) > MAX_LINE_BYTES:
            piece = piece[: piece.rfind(b" ", 0, MAX_LINE_BYTES) + 1]
        if 8 in piece:
            for drawn in _without_backspaces(_ANSI.sub(b"", piece)):
                self._line(drawn.lower(), readings)
            return
        self._line(_clean(piece), readings)

    def _line(self, line: bytes, readings: list[Reading]) -> None:
        if line[:1] == b"[" or b"]<std" in line or b"]:" in line:
            found = fields.prefixes(line)
            if len(found) == 1 and not found[0].at:
                (one,) = found
                self._of_rank(line[one.start :], one.rank, one.local_rank, readings)
                return
            if found:
                if found[0].at:
                    self._of_rank(line[: found[0].at], None, None, readings)
                ends = [*(prefix.at for prefix in found[1:]), len(line)]
                for prefix, end in zip(found, ends, strict=True):
                    text = line[prefix.start : end]
                    self._of_rank(text, prefix.rank, prefix.local_rank, readings)
                return
        self._of_rank(line, None, None, readings)

    def _of_rank(
        self, line: bytes, rank: int | None, local: int | None, readings: list[Reading]
    ) -> None:
        has_loss = b"loss" in line
        if not has_loss and _NO_RATE.search(line) is None:
            if rank is not None and (pair := fields.step_and_value(line)) is not None:
                self._pair(rank, *pair, readings)
            return
        if b"train_runtime" in line:  # the summary of a Hugging Face Trainer: a mean over the run
            return
        found = fields.losses(line) if has_loss else []
        if (bar := fields.bar(line)) is not None:
            self._redraw(bar, found, rank, local, readings)
            return
        if rank is None and local is None and found:
            rank = fields.rank_in_words(line)
        if not found:
            self._lone(line, rank, local, readings)
            return
        where, epoch = fields.progress(line)
        readings.append(_reading(rank, local, where, epoch, found[0]))
        if len(found) > 1:
            readings.append(_reading(rank, local, where, epoch, found[1]))

    def _lone(
        self, line: bytes, rank: int | None, local: int | None, readings: list[Reading]
    ) -> None:
        """A line without a loss."""
        where = fields.lone_progress(line)
        if where is not None:
            readings.append(_reading(rank, local, where, None, None))
        elif line[:6] == b"epoch " and len(line) < 24 and (named := fields.epoch(line)) is not None:
            self._epoch = named

    def _redraw(
        self,
        bar: fields.Bar,
        found: list[fields.Loss],
        rank: int | None,
        local: int | None,
        readings: list[Reading],
    ) -> None:
        """One state of a progress bar: what it adds to the state before."""
        shown = [loss for loss in found if not loss.validation]
        validation = bar.validation or (bool(found) and not shown)
        if not found and (bar.validation or not bar.training):
            return
        loss = (shown or found)[0] if found else None
        where = bar.progress
        epoch = self._epoch if bar.epoch is None and where.counts == "epoch" else bar.epoch
        key = (rank if rank is not None else local, validation)
        before = self._drawn.get(key)
        text = loss.text if loss is not None else b""
        same = before is not None and (before.epoch, before.step) == (epoch, where.step)
        stale = before is not None and before.loss == text
        if same and stale and before is not None and (before.given or not text):
            return
        give = loss if (same or not stale) else None
        if len(self._drawn) >= MAX_RANKS:
            self._drawn.clear()
        self._drawn[key] = _Drawn(epoch, where.step, text, give is not None)
        readings.append(_reading(rank, local, where, epoch, give, validation))
        if shown and len(found) > 1:
            readings.append(_reading(rank, local, where, epoch, found[1]))

    def _pair(self, rank: int, step: int, value: float, readings: list[Reading]) -> None:
        """`[rank] step number`: a loss by custom only, so its steps must be seen to grow first."""
        before = self._bare.get(rank)
        proven = before is not None and (before.proven or step > before.step)
        if proven and before is not None and not before.proven:
            readings.append(Reading(rank=rank, step=before.step, loss=before.value))
        if proven:
            readings.append(Reading(rank=rank, step=step, loss=value))
        if len(self._bare) >= MAX_RANKS:
            self._bare.clear()
        self._bare[rank] = _Bare(step, value, proven)


def _clean(piece: bytes) -> bytes:
    if b"\x1b" in piece or b"\x9b" in piece:
        piece = _ANSI.sub(b"", piece)
    return piece.lower()


def _without_backspaces(line: bytes) -> list[bytes]:
    """The states that a line was in: backspaces to its start begin a new one."""
    states = []
    text = ""
    position = 0
    for run in _BACKSPACES.finditer(line):
        text += line[position : run.start()].decode("utf-8", "replace")
        position = run.end()
        back = run.end() - run.start()
        if back >= len(text):
            states.append(text)
            text = ""
        else:
            text = text[:-back]
    states.append(text + line[position:].decode("utf-8", "replace"))
    return [state.encode() for state in states if state]


def _reading(
    rank: int | None,
    local: int | None,
    where: fields.Progress,
    epoch: float | None,
    loss: fields.Loss | None,
    validation: bool = False,
) -> Reading:
    return Reading(
        rank=rank,
        local_rank=local,
        step=where.step,
        total=where.total,
        counts=where.counts,  # type: ignore[arg-type]  # one of the three words
        loss=None if loss is None else loss.value,
        epoch=epoch,
        kind="val" if validation or (loss is not None and loss.validation) else "train",
    )
