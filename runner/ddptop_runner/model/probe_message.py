"""What a rank's probe says: one datagram, decoded.

Sent by `probe/sender.py`. Counters go on for the life of the process, so that a lost datagram costs
nothing; a process is told from a later one of the same rank by `pid` and `attempt`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ddptop_runner.model.words import Base, LossIs, LossSource, LossState, Phase, ProgressSource

VERSION = 1
MAX_BYTES = 2048
"""A probe sends no more than this in one datagram."""
MAX_METRICS = 32
"""Figures of the script's own that are kept of one rank; further names are left out."""
MAX_NAME_LENGTH = 64

# Any process of the user may send to the socket, so what the supervisor reckons with is bounded.
Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
RankNumber = Annotated[int, Meta(ge=-1, le=2**20)]
Pid = Annotated[int, Meta(ge=1, le=2**31)]
Seconds = Annotated[float, Meta(ge=-1e10, le=1e10)]
Name = Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]


class SavedFile(Base, frozen=True, kw_only=True):
    """One file or folder that the process saved: `torch.save` and its like have returned.

    Files saved together (one folder, seconds apart, no step between) are told as one: the largest,
    from the beginning of the first to the end of the last.
    """

    path: str
    n: Whole
    """How many files the process has saved so far, these included."""
    began_t: Seconds
    """CLOCK_BOOTTIME in seconds."""
    ended_t: Seconds
    steps: Whole | None = None
    """Value of `steps` at its beginning."""
    size_bytes: Whole | None = None
    inode: int | None = None
    """Scripts rename a file once it is whole; the inode stays."""


class ProbeMessage(Base, frozen=True, kw_only=True):
    """All that one process knows of its training; None where it does not know."""

    v: int
    job: str | None = None
    """DDPTOP_JOB_ID, `name@nonce`."""
    pid: Pid
    """As the process sees itself, in its own pid namespace."""
    rank: RankNumber | None = None
    local_rank: RankNumber | None = None
    world_size: RankNumber | None = None
    attempt: Whole | None = None
    seq: Whole
    """1, 2, ... in the order of sending."""
    t: Seconds
    """CLOCK_BOOTTIME when it was written, in seconds."""
    steps: Whole | None = None
    """Optimizer steps of this process; None before the first, and no sign of progress by itself."""
    last_step_t: Seconds | None = None
    """CLOCK_BOOTTIME of the last progress."""
    loss: float | None = None
    loss_state: LossState | None = None
    loss_step: Whole | None = None
    """Value of `steps` that the loss belongs to."""
    loss_sum: float | None = None
    """Sum of the `loss_n` finite losses that were read so far."""
    loss_n: Whole = 0
    loss_min: float | None = None
    """Smallest finite loss since the datagram before; None without a new one."""
    loss_max: float | None = None
    loss_source: LossSource | None = None
    step_time_s: Seconds | None = None
    """Mean duration of the latest steps."""
    data_wait_s: Seconds | None = None
    """Mean time per step that the training thread waited for its data loader."""
    sync_s: Seconds | None = None
    """Mean time per step that it waited for other ranks in collectives, beyond what computing
    hid."""
    compute_s: Seconds | None = None
    """What is left of a mean step; None where one of both waits is not known."""
    global_step: Whole | None = None
    total_steps: Whole | None = None
    metrics: dict[Name, float | None] = {}
    metric_reports: dict[Name, Whole] = {}
    """How often the process has reported each of them, the same value too."""
    stack_signal: Whole | None = None
    """The signal that makes the process write its stacks; None where none may be sent."""
    final: bool = False
    """Whether the process is about to end."""
    phase: Phase | None = None
    """What the process is doing; None when it cannot tell."""
    phase_t: Seconds | None = None
    """CLOCK_BOOTTIME since when, in seconds."""
    stands_at: str | None = None
    """`file:line in function` of the innermost frame of the script, while no step is taken."""
    batches: Whole | None = None
    """Batches taken from data loaders; None where no loader was seen."""
    collectives: dict[str, Annotated[list[Whole], Meta(min_length=2, max_length=2)]] = {}
    """By process group: [last enqueued, last completed] collective, from torch's flight recorder;
    empty where it does not tell."""
    saved: SavedFile | None = None
    """The last that was saved."""
    save_signals: list[Whole] = []
    """Signals (of SIGUSR1, SIGUSR2) for which the script has a handler of its own in Python."""
    flight_record: str | None = None
    """Path of the whole flight record, once the process has written one."""
    loss_bad_since: Whole | None = None
    """Value of `steps` since which no loss was finite; None while they are."""
    loss_last_good: float | None = None
    """The last finite loss."""
    loss_parts: Whole | None = None
    """Backward passes that the loss is made of."""
    loss_is: LossIs | None = None
    """What the loss is of them; None with one."""
    optimizers: dict[str, Annotated[list[float | None], Meta(min_length=2, max_length=2)]] = {}
    """By optimizer ("Adam 1"): [steps, loss of the last]; empty where there is only one."""
    frameworks: list[str] = []
    """Training frameworks that the process has imported."""
    replicas: Whole | None = None
    """Devices that this one process trains on as replicas."""
    total_source: ProgressSource | None = None
    """Who said `total_steps`: `report` (api) or a framework's trainer."""
    epoch: float | None = None
    """By the trainer of a framework."""
    epochs: Whole | None = None
    raised: str | None = None
    """With `final`: the exception that ends the process, `Type: message`, cut to 200 characters."""
    raised_at: str | None = None
    """`file:line in function` that raised it."""


_decoder = msgspec.json.Decoder(ProbeMessage)


def decode_message(datagram: bytes) -> ProbeMessage | None:
    """The message in a datagram, or None for anything that is not one of this version."""
    try:
        message = _decoder.decode(datagram)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return message if message.v == VERSION else None
