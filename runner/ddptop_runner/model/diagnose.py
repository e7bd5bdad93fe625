"""How a rank and an attempt ended: what causes and restarts are judged by."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddptop_runner.base.exit_status import status_in_words

QUOTED_CHARACTERS = 400
"""Of a line or message in a cause: a progress bar may write a megabyte without a line's end."""


def clipped(text: str, limit: int = QUOTED_CHARACTERS) -> str:
    """`text`, or its two ends where it is longer than a sentence can hold."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [...] {text[-half:]}"


class PythonException(msgspec.Struct, frozen=True):
    """An exception that ended a rank."""

    type: str
    message: str
    """Its first line."""
    place: str | None
    """`file:line in function` of the script's innermost frame, or None for one without frames."""
    because: str | None = None
    """The exception that it was raised from, in words."""
    origin: str | None = None
    """Where it was raised, if not in the rank itself: "in DataLoader worker process 0"."""
    detail: str = ""
    """The message's further lines."""

    @property
    def short_type(self) -> str:
        """The type without its module, as a person says it."""
        return self.type.rpartition(".")[2]

    @property
    def whole_message(self) -> str:
        """All lines of the message, and what it was raised from."""
        return "\n".join(filter(None, [self.message, self.detail, self.because]))

    def in_words(self, limit: int = QUOTED_CHARACTERS) -> str:
        """As Python prints it, with its place; the message at most `limit` characters long."""
        text = f"{self.type}: {clipped(self.message, limit)}" if self.message else self.type
        if self.origin:
            text = f"{text} {self.origin}"
        if self.place:
            text = f"{text} (at {self.place})"
        return f"{text}, caused by {clipped(self.because, limit)}" if self.because else text


class RankExit(msgspec.Struct, frozen=True):
    """How one rank of an attempt ended."""

    rank: int
    pid: int
    returncode: int | None
    """As in subprocess, negative for a signal; None if it could not be collected."""
    at_boottime_s: float
    ended_by_us: bool = False
    """Whether ddptop or torch's agent had already begun to end this rank."""

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than with 0."""
        return self.returncode != 0

    def in_words(self) -> str:
        """`exited with status 1`, `was killed by SIGKILL`, or `exited with an unknown status`."""
        return status_in_words(self.returncode)


Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Held(msgspec.Struct, frozen=True):
    """The device memory of a rank's tensors when it ran out."""

    total_bytes: Bytes
    by_place: dict[Annotated[str, msgspec.Meta(max_length=200)], Bytes]
    """Of the lines that allocated most of it, most first; "" is none of the script's."""


AT_ONCE_S = 60.0
"""Without a probe: an attempt that ran for less did not get to train. With one, and where nothing
reports checkpoints or steps of the whole run: what ran for longer made progress."""

STEPLESS_S = 600.0
"""An attempt that ran this long without an optimizer step did not fail to start: its script may
take no such steps at all."""


class AttemptOutcome(msgspec.Struct, frozen=True):
    """How one attempt failed."""

    attempt: int
    lived_s: float
    steps: int | None
    """The most steps that any rank took; None when no probe could tell."""
    exit_code: int | None
    signal: str | None
    exception: PythonException | None
    hung: bool = False
    bad_loss: bool = False
    """It was ended because its loss was NaN or infinite."""
    new_checkpoint: bool | None = None
    """Whether a checkpoint was written in it; None when nothing could tell."""
    global_step: int | None = None
    """The furthest step of the whole run, where something reported it."""
    kind: str = "unknown"
    """Of the cause, as `model.Cause.kind` has it: exception, cuda_oom, early_exit, ..."""
    checkpoint_step: int | None = None
    """The step of the whole run that its last checkpoint holds."""
    startup_s: float | None = None
    """From its start to its first step."""
    unopened: str | None = None
    """Why Python could not read the script, in words."""

    @property
    def never_came_up(self) -> bool:
        """Whether it failed by itself, before its first step and soon."""
        if self.signal is not None or self.hung or self.bad_loss or self.steps:
            return False
        return self.lived_s < (AT_ONCE_S if self.steps is None else STEPLESS_S)
