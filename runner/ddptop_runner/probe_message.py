"""What a rank's probe says: one datagram, decoded.

Sent by `probe/sender.py`. Counters go on for the life of the process, so that a lost datagram costs
nothing; a process is told from a later one of the same rank by `pid` and `attempt`.
"""

from __future__ import annotations

import msgspec

from ddptop_runner.model import Base
from ddptop_runner.model_words import LossIs, LossSource, LossState, Phase, ProgressSource

VERSION = 1
MAX_BYTES = 2048
"""A probe sends no more than this in one datagram."""


class SavedFile(Base, frozen=True, kw_only=True):
    """One file or folder that the process saved: `torch.save` and its like have returned.

    Files saved together (one folder, seconds apart, no step between) are told as one: the largest,
    from the beginning of the first to the end of the last.
    """

    path: str
    n: int
    """How many files the process has saved so far, these included."""
    began_t: float
    """CLOCK_BOOTTIME in seconds."""
    ended_t: float
    steps: int | None = None
    """Value of `steps` at its beginning."""
    size_bytes: int | None = None
    inode: int | None = None
    """Scripts rename a file once it is whole; the inode stays."""


class ProbeMessage(Base, frozen=True, kw_only=True):
    """All that one process knows of its training; None where it does not know."""

    v: int
    job: str | None = None
    """DDPTOP_JOB_ID, `name@nonce`."""
    pid: int
    """As the process sees itself, in its own pid namespace."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    attempt: int | None = None
    seq: int
    """1, 2, ... in the order of sending."""
    t: float
    """CLOCK_BOOTTIME when it was written, in seconds."""
    steps: int | None = None
    """Optimizer steps of this process; None before the first, and no sign of progress by itself."""
    last_step_t: float | None = None
    """CLOCK_BOOTTIME of the last progress."""
    loss: float | None = None
    loss_state: LossState | None = None
    loss_step: int | None = None
    """Value of `steps` that the loss belongs to."""
    loss_sum: float | None = None
    """Sum of the `loss_n` finite losses that were read so far."""
    loss_n: int = 0
    loss_min: float | None = None
    """Smallest finite loss since the datagram before; None without a new one."""
    loss_max: float | None = None
    loss_source: LossSource | None = None
    step_time_s: float | None = None
    """Mean duration of the latest steps."""
    data_wait_s: float | None = None
    """Mean time per step that the training thread waited for its data loader."""
    sync_s: float | None = None
    """Mean time per step that it waited for other ranks in collectives, beyond what computing
    hid."""
    compute_s: float | None = None
    """What is left of a mean step; None where one of both waits is not known."""
    global_step: int | None = None
    total_steps: int | None = None
    metrics: dict[str, float | None] = {}
    stack_signal: int | None = None
    """The signal that makes the process write its stacks; None where none may be sent."""
    final: bool = False
    """Whether the process is about to end."""
    phase: Phase | None = None
    """What the process is doing; None when it cannot tell."""
    phase_t: float | None = None
    """CLOCK_BOOTTIME since when, in seconds."""
    stands_at: str | None = None
    """`file:line in function` of the innermost frame of the script, while no step is taken."""
    batches: int | None = None
    """Batches taken from data loaders; None where no loader was seen."""
    collectives: dict[str, list[int]] = {}
    """By process group: [last enqueued, last completed] collective, from torch's flight recorder;
    empty where it does not tell."""
    saved: SavedFile | None = None
    """The last that was saved."""
    save_signals: list[int] = []
    """Signals (of SIGUSR1, SIGUSR2) for which the script has a handler of its own in Python."""
    flight_record: str | None = None
    """Path of the whole flight record, once the process has written one."""
    loss_bad_since: int | None = None
    """Value of `steps` since which no loss was finite; None while they are."""
    loss_last_good: float | None = None
    """The last finite loss."""
    loss_parts: int | None = None
    """Backward passes that the loss is made of."""
    loss_is: LossIs | None = None
    """What the loss is of them; None with one."""
    optimizers: dict[str, list[float | None]] = {}
    """By optimizer ("Adam 1"): [steps, loss of the last]; empty where there is only one."""
    frameworks: list[str] = []
    """Training frameworks that the process has imported."""
    replicas: int | None = None
    """Devices that this one process trains on as replicas."""
    total_source: ProgressSource | None = None
    """Who said `total_steps`: `report` (api) or a framework's trainer."""
    epoch: float | None = None
    """By the trainer of a framework."""
    epochs: int | None = None
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
