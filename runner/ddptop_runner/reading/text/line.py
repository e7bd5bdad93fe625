"""What one line of output says of a training, without looking at other lines.

Pure: a line of lowercase bytes goes in, with its control sequences; what it says comes out. That a
progress bar shows what it showed before is for `loss_text` to see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec.structs import replace

from ddptop_runner.reading.text import bars, fields
from ddptop_runner.reading.text.fields import Reading

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
    where = bars.with_timing(fields.progress(line), line)
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
