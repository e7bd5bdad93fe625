"""The message of a rank's probe: one datagram, decoded.

Sent by `probe/sender.py`. Counters cover the life of the process, so that a lost datagram does no
harm; `pid` and `attempt` distinguish a process from a later one with the same rank.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ddptop_runner.model.snapshot import Measured, Name, RankNumber, Seconds, Whole
from ddptop_runner.model.words import Base, ProgressSource

VERSION = 1
MAX_BYTES = 2048
"""Maximum size of a datagram."""
MAX_METRICS = 32
"""Number of the script's own metrics to keep per rank; further names are ignored."""

Pid = Annotated[int, Meta(ge=1, le=2**31)]


class SavedFile(Base, frozen=True, kw_only=True):
    """A file or folder that the process saved with `torch.save` or a similar function.

    Files saved together (in one folder, seconds apart, without a step between them) are reported as
    one: the largest, from the start of the first to the end of the last.
    """

    path: str
    n: Whole
    """Number of files saved by the process so far, including these."""
    began_t: Seconds
    """CLOCK_BOOTTIME in seconds."""
    ended_t: Seconds
    steps: Whole | None = None
    """Value of `steps` when saving started."""
    size_bytes: Whole | None = None
    data_position: Annotated[list[Whole], Meta(min_length=2, max_length=2)] | None = None
    """Where the process was in its data, as in ProbeMessage."""
    inode: int | None = None
    """Remains the same if the script renames a complete file."""
    mtime_ns: int | None = None


class LoadedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file or folder that the process loaded with `torch.load` or a similar function."""

    size_bytes: Whole
    inode: int
    mtime_ns: int


class ProbeMessage(Measured, frozen=True, kw_only=True):
    """What one process knows about its training; None if unknown."""

    v: int
    job: str | None = None
    """DDPTOP_JOB_ID, `name@nonce`."""
    pid: Pid
    """In the process's own pid namespace."""
    rank: RankNumber | None = None
    local_rank: RankNumber | None = None
    world_size: RankNumber | None = None
    attempt: Whole | None = None
    seq: Whole
    """1, 2, ... in order of sending."""
    t: Seconds
    """CLOCK_BOOTTIME of the message, in seconds."""
    steps: Whole | None = None
    """Optimizer steps of this process; None before the first. Not by itself a sign of progress."""
    last_step_t: Seconds | None = None
    """CLOCK_BOOTTIME of the last progress."""
    loss_step: Whole | None = None
    """Value of `steps` that the loss belongs to."""
    loss_sum: float | None = None
    """Sum of the `loss_n` finite losses so far."""
    loss_n: Whole = 0
    step_time_s: Seconds | None = None
    """Mean duration of the latest steps."""
    global_step: Whole | None = None
    total_steps: Whole | None = None
    metrics: dict[Name, float | None] = {}
    metric_reports: dict[Name, Whole] = {}
    """How often the process has reported each of them, the same value too."""
    stack_signal: Whole | None = None
    """The signal that makes the process write its stacks; None if it must not be sent one."""
    final: bool = False
    """Whether the process is about to end."""
    phase_t: Seconds | None = None
    """CLOCK_BOOTTIME at which the phase started, in seconds."""
    collectives: dict[str, Annotated[list[Whole], Meta(min_length=2, max_length=2)]] = {}
    """By process group: [last enqueued, last completed] collective, from torch's flight recorder;
    empty if unknown."""
    saved: SavedFile | None = None
    """The last one."""
    loaded: Annotated[list[LoadedFile], Meta(max_length=16)] = []
    """The largest files that the process loaded before its first step."""
    save_signals: list[Whole] = []
    """Those of SIGUSR1 and SIGUSR2 for which the script has its own handler in Python."""
    optimizers: dict[str, Annotated[list[float | None], Meta(min_length=2, max_length=2)]] = {}
    """By optimizer ("Adam 1"): [steps, last loss]; empty if there is only one."""
    total_source: ProgressSource | None = None
    """Source of `total_steps`: `report` (api) or a framework's trainer."""
    epoch: float | None = None
    """From a framework's trainer."""
    epochs: Whole | None = None
    raised: str | None = None
    """With `final`: the exception that ends the process, `Type: message`, cut to 200 characters."""
    raised_at: str | None = None
    """`file:line in function` that raised it."""


_decoder = msgspec.json.Decoder(ProbeMessage)


def decode_message(datagram: bytes) -> ProbeMessage | None:
    """The message in a datagram; None unless it is one of this version."""
    try:
        message = _decoder.decode(datagram)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return message if message.v == VERSION else None
