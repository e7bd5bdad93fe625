"""The message of a rank's probe: one datagram, decoded.

Sent by `probe/sender.py`. Counters cover the life of the process, so that a lost datagram does no
harm; `pid` and `attempt` distinguish a process from a later one with the same rank.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ddptop_runner.model.snapshot import (
    MAX_WEIGHT_GROUPS,
    BatchHash,
    DdpUse,
    Resources,
    WeightHashes,
)
from ddptop_runner.model.words import (
    Base,
    LossIs,
    LossSource,
    LossState,
    NotLearning,
    Phase,
    ProgressSource,
)

VERSION = 1
MAX_BYTES = 2048
"""Maximum size of a datagram."""
MAX_METRICS = 32
"""Number of the script's own metrics to keep per rank; further names are ignored."""
MAX_NAME_LENGTH = 64

# Any process of the user may send to the socket, so all values are bounded.
Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
RankNumber = Annotated[int, Meta(ge=-1, le=2**20)]
Pid = Annotated[int, Meta(ge=1, le=2**31)]
Seconds = Annotated[float, Meta(ge=-1e10, le=1e10)]
Name = Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]


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


class ProbeMessage(Base, frozen=True, kw_only=True):
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
    loss: float | None = None
    loss_state: LossState | None = None
    loss_step: Whole | None = None
    """Value of `steps` that the loss belongs to."""
    loss_sum: float | None = None
    """Sum of the `loss_n` finite losses so far."""
    loss_n: Whole = 0
    loss_min: float | None = None
    """Smallest finite loss since the previous datagram; None without a new one."""
    loss_max: float | None = None
    loss_source: LossSource | None = None
    step_time_s: Seconds | None = None
    """Mean duration of the latest steps."""
    data_wait_s: Seconds | None = None
    """Mean time per step that the training thread waited for its data loader."""
    sync_s: Seconds | None = None
    """Mean time per step that it waited for other ranks in collectives, not overlapped with
    compute."""
    compute_s: Seconds | None = None
    """The rest of a mean step; None unless both waits are known."""
    input_s: Seconds | None = None
    """As in RankSample."""
    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    optimizer_s: Seconds | None = None
    until_backward_total_s: Seconds | None = None
    """Time from the end of each step to the next backward pass so far."""
    cpu_wait_total_s: Seconds | None = None
    """How long the training thread has waited for a CPU."""
    batch_hashes: Annotated[list[BatchHash], Meta(max_length=16)] = []
    """The latest batches that were hashed, latest last."""
    data_position: Annotated[list[Whole], Meta(min_length=2, max_length=2)] | None = None
    """Pass over the training data, from 0, and the batches taken in it."""
    epoch_batches: Whole | None = None
    """As in RankSample."""
    batch_size: Whole | None = None
    unpinned_bytes: Whole | None = None
    repeated_epoch: Whole | None = None
    """The epoch by which its sampler shuffled two passes in a row: without `set_epoch`."""
    loader_workers: RankNumber | None = None
    """Worker processes of the DataLoader."""
    ddp_world_size: RankNumber | None = None
    """Ranks whose gradients DistributedDataParallel averages."""
    batches_skipped: Whole | None = None
    """Batches of the first pass over the data that were taken and not trained on before the first
    step, as by a script that resumes."""
    weight_hashes: WeightHashes | None = None
    """The last hashes of the weights that DistributedDataParallel keeps equal on all ranks."""
    weight_groups: Annotated[list[Name], Meta(max_length=MAX_WEIGHT_GROUPS)] = []
    """By group of `weight_hashes`, what its parameters have in common in their names; of rank 0."""
    optimizer_steps: Whole | None = None
    """Steps that the state of the optimizer counts."""
    learning_rate: float | None = None
    """That of its first group of parameters."""
    python_blocks: Whole | None = None
    """Blocks of memory that Python objects have; counted every five seconds."""
    device_allocated_bytes: Whole | None = None
    """Memory of its tensors on its CUDA device at the end of a step."""
    ddp: DdpUse | None = None
    not_learning: NotLearning | None = None
    """Why no step had anything to learn from so far; None once one had."""
    resources: Resources | None = None
    """What the process has used since it started."""
    global_step: Whole | None = None
    total_steps: Whole | None = None
    metrics: dict[Name, float | None] = {}
    metric_reports: dict[Name, Whole] = {}
    """How often the process has reported each of them, the same value too."""
    stack_signal: Whole | None = None
    """The signal that makes the process write its stacks; None if it must not be sent one."""
    final: bool = False
    """Whether the process is about to end."""
    phase: Phase | None = None
    """What the process is doing; None if unknown."""
    phase_t: Seconds | None = None
    """CLOCK_BOOTTIME at which the phase started, in seconds."""
    stands_at: str | None = None
    """`file:line in function` of the innermost frame of the script, while no step is taken."""
    batches: Whole | None = None
    """Batches taken from data loaders; None without a loader."""
    collectives: dict[str, Annotated[list[Whole], Meta(min_length=2, max_length=2)]] = {}
    """By process group: [last enqueued, last completed] collective, from torch's flight recorder;
    empty if unknown."""
    saved: SavedFile | None = None
    """The last one."""
    loaded: Annotated[list[LoadedFile], Meta(max_length=16)] = []
    """The largest files that the process loaded before its first step."""
    save_signals: list[Whole] = []
    """Those of SIGUSR1 and SIGUSR2 for which the script has its own handler in Python."""
    loss_bad_since: Whole | None = None
    """Value of `steps` since which no loss was finite; None if the last was."""
    loss_last_good: float | None = None
    """The last finite loss."""
    loss_parts: Whole | None = None
    """Number of backward passes that the loss combines."""
    loss_is: LossIs | None = None
    """How the loss combines them; None with one."""
    optimizers: dict[str, Annotated[list[float | None], Meta(min_length=2, max_length=2)]] = {}
    """By optimizer ("Adam 1"): [steps, last loss]; empty if there is only one."""
    frameworks: list[str] = []
    """Training frameworks that the process has imported."""
    replicas: Whole | None = None
    """Number of devices on which this process trains replicas."""
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
