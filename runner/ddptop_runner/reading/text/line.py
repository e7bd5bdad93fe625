"""What one line of output says of a training, without looking at other lines.

Pure: a line of lowercase bytes goes in, with its control sequences; what it says comes out. That a
progress bar shows what it showed before is for `loss_text` to see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from ddptop_runner.reading.text import bars, fields

ReadingKind = Literal["train", "val"]
StepUnit = Literal["run", "epoch", "samples", "epochs"]


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one line of output, or one redraw of a progress bar, says of a training."""

    rank: int | None = None
    """Of the line's own prefix, such as `[0]<stdout>:`; None where it does not say."""
    local_rank: int | None = None
    """The same where the prefix counts on its host, as `[default0]:` of torchrun does."""
    step: int | None = None
    """As printed; see `counts`."""
    total: int | None = None
    """What `step` counts up to: of the whole run or of one epoch, see `counts`."""
    counts: StepUnit = "run"
    """What `step` counts: steps of the whole run, as far as the line tells, steps of the epoch,
    samples of the epoch, or epochs themselves."""
    loss: float | None = None
    """May be NaN or infinite, as printed; None where the line tells only how far it is."""
    epoch: float | None = None
    """As printed, counted from 0 or from 1."""
    kind: ReadingKind = "train"
    eta_s: float | None = None
    """Seconds until `total` is reached, as the output itself reckons."""
    rate_per_s: float | None = None
    """How much of what `step` counts is done in a second, as the output says."""
    run_eta_s: float | None = None
    """Seconds until the whole run ends, where the output says that beside a count of the epoch."""
    epochs: int | None = None
    """What stands behind the slash of `epoch`: how many there are, or the number of the last."""
    written_at_s: float | None = None
    """Unix seconds at which it was written; None where the output does not say."""
    open: bool = False
    """Whether `counts` is only what is usual: `total` may be of an epoch as well as of the run."""
    unnamed: bool = False
    """Whether no word says what is counted: it may be samples."""
    from_zero: bool = False
    """Whether such outputs count epochs from 0, and `epochs` is the number of the last."""


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
    return says_clean(clean(line))


def says_clean(line: bytes) -> list[Said]:
    """The same of a line without control sequences, which may hold backspaces."""
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
    if (bar := bars.bar(line)) is not None:
        yield from _bar(bar, found, rank, local)
        return
    if rank is None and local is None and found:
        rank = fields.rank_in_words(line)
    if not found:
        yield from _lone(line, rank, local)
        return
    where, of = fields.progress(line)
    timing = bars.line_timing(line)
    for loss in found:
        yield _said("line", rank, local, where, of, loss, timing)


def _lone(line: bytes, rank: int | None, local: int | None) -> Iterator[Said]:
    """A line without a loss."""
    where = fields.lone_progress(line)
    if where is not None:
        timing = bars.line_timing(line)
        yield _said("line", rank, local, where, fields.Epoch(), None, timing)
    elif b"epoch" in line and fields.names_epoch_alone(line):
        of = fields.epoch(line)
        if of.number is not None:
            yield "epoch", Reading(rank, local, epoch=of.number, epochs=of.of)
    elif (count := fields.counted(line)) is not None:
        timing = bars.line_timing(line)
        yield _said("count", rank, local, *count, None, timing)


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
    yield _said("bar", rank, local, bar.progress, bar.epoch, loss, bar.timing)
    if shown and len(found) > 1:
        yield _said("with bar", rank, local, bar.progress, bar.epoch, found[1], bar.timing)


def _said(
    form: Form,
    rank: int | None,
    local: int | None,
    where: fields.Progress,
    of: fields.Epoch,
    loss: fields.Loss | None,
    timing: bars.Timing,
) -> Said:
    return form, Reading(
        rank,
        local,
        where.step,
        where.total,
        where.counts,  # type: ignore[arg-type]  # one of the three words
        None if loss is None else loss.value,
        of.number,
        "val" if loss is not None and loss.validation else "train",
        timing.eta_s,
        timing.rate_per_s,
        timing.run_eta_s,
        of.of,
        None,
        where.open,
        where.unnamed,
        of.from_zero,
    )
