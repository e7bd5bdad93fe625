"""What is known of a job at one moment: the types behind every snapshot, event and `--json`.

Unknown is None everywhere. The field names of RankSample, GpuSample, GpuProcess, Alert, Cause,
Imbalance and Event are the outside contract: extend them, never rename them.
"""

import datetime as dt
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ddptop_runner.base import bounded
from ddptop_runner.model.words import Base as Base
from ddptop_runner.model.words import (
    JobState,
    LossIs,
    LossSource,
    LossState,
    NodePart,
    NotLearning,
    PauseState,
    Phase,
    ProgressSource,
    ProgressUnit,
    RankState,
    Severity,
    StepCounts,
    WaitKind,
)

MAX_NAME_LENGTH = 64

# Any process of the user may send to the probes' socket, so all values from there are bounded.
_Count = Annotated[int, Meta(ge=0, le=2**53)]
Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
RankNumber = Annotated[int, Meta(ge=-1, le=2**20)]
Seconds = Annotated[float, Meta(ge=-1e10, le=1e10)]
Name = Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]

SCHEMA = 1
"""Version of every on-disk and `--json` format in this module."""


class ProcessId(Base, frozen=True, kw_only=True):
    """One process, distinguished from a later one with the same PID."""

    host: str
    boot_id: str | None
    pid_ns: int | None
    """Inode of the pid namespace, from /proc/self/ns/pid."""
    pid: int
    start_ticks: int | None
    """Field 22 of /proc/<pid>/stat: clock ticks after boot."""


class GpuProcess(Base, frozen=True, kw_only=True):
    """A compute process on a device."""

    pid: int
    user: str | None = None
    command: str | None = None
    mem_used_bytes: int | None = None
    """Memory that it uses on this device, including its CUDA context."""
    sm_util_percent: float | None = None
    """Share of the last few seconds during which its kernels ran on the device."""
    job: str | None = None
    """Job that it belongs to, if known."""
    rank: int | None = None
    note: str | None = None
    """Why its user or command is unknown."""
    has_exited: bool = False
    """Whether the driver lists it although it has exited."""


class GpuSample(Base, frozen=True, kw_only=True):
    """A device at one moment; null for values that NVML does not report."""

    index: int
    """Machine index in PCI order; a MIG instance has the index of its device."""
    uuid: str | None = None
    host: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    parent_uuid: str | None = None
    """UUID of the device that this MIG instance belongs to; None for a whole device."""
    mig_instances: list[str] = []
    """UUIDs of the MIG instances of this device."""
    mig_mode: bool = False
    """Whether it is divided into MIG instances, so that it cannot be used as a whole."""
    util_percent: float | None = None
    """Share of time during which a kernel was running."""
    mem_util_percent: float | None = None
    """Share of time during which memory was being read or written."""
    mem_used_bytes: int | None = None
    """Memory in use, excluding memory reserved by the driver (NVML memory v2)."""
    mem_total_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    """Memory reserved by the driver."""
    temperature_c: float | None = None
    temperature_slowdown_c: float | None = None
    """Temperature at which the device lowers its clocks."""
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Energy used since the driver was loaded."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_mhz: int | None = None
    fan_percent: float | None = None
    pstate: int | None = None
    """Performance state, from 0 (P0, highest) to 15."""
    throttle_reasons: list[str] | None = None
    """Why the clocks are lowered; empty if they are not."""
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remapped_rows: int | None = None
    """Memory rows replaced by spare rows after uncorrectable errors."""
    remap_pending: bool | None = None
    """Whether a row will be remapped at the next reset."""
    remap_failed: bool | None = None
    """Whether a remap failed because no spare rows were left; replace the device."""
    xid: list[int] | None = None
    """Recent XID error codes from the driver."""
    xid_meanings: list[str] | None = None
    """Meaning of each entry of `xid`, in the same order."""
    pcie_rx_bytes_per_s: float | None = None
    """Always null, like the other rates of links: they are not measured."""
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    lost: bool = False
    """Whether the driver lost the device."""
    note: str | None = None
    """What is wrong with the device, and how to fix it; None if there is no problem."""
    unknown: dict[str, str] = {}
    """Why a value is null, by key: `not supported`, `no permission`, and so on."""
    processes: list[GpuProcess] | None = None
    """Compute processes on the device; None if the driver does not report them."""


class BatchHash(msgspec.Struct, frozen=True, array_like=True):
    """A batch that a rank trained on: `[epoch, position, crc32]`."""

    epoch: _Count
    """Pass over the training data in this attempt, from 0."""
    position: _Count
    """Of the batch in the pass, from 0."""
    crc32: _Count
    """Of 512 bytes of each of its first two tensors."""


MAX_WEIGHT_GROUPS = 32


class WeightHashes(msgspec.Struct, frozen=True, array_like=True):
    """Hashes of a rank's weights: `[step, layout, groups]`."""

    step: _Count
    """Of this attempt, after which they were taken."""
    layout: _Count
    """Hash of the parameters' names and shapes, and of how often the models were called; only
    where it is equal can weights be compared."""
    groups: Annotated[list[_Count], Meta(max_length=MAX_WEIGHT_GROUPS)]
    """Hash by group of parameters, in the order of the model."""


_Amount = Annotated[float, Meta(ge=0, le=1e10)]


class DdpUse(Base, frozen=True, kw_only=True):
    """How a rank uses its only DistributedDataParallel module, from the module's own figures."""

    iteration: _Count
    """The iteration at which they were taken: one of the first ten, or every hundredth."""
    syncs_per_step: _Amount | None = None
    """Backward passes with an all-reduce per step of this attempt."""
    comm_s: _Amount
    """How long the all-reduces of the iteration took, from the first one's start."""
    hidden_s: _Amount
    """The part of `comm_s` in which the backward pass usually still computes."""
    finds_unused: bool
    """Whether `find_unused_parameters` is set."""
    unused_bytes: _Count | None = None
    """Parameters that it found to get no gradient in the iteration."""
    is_static: bool
    """Whether the unused parameters were the same in every iteration."""
    tf32_off: bool = False
    """Whether its float32 matrices could be multiplied on tensor cores: the device has TF32, torch
    does not use it, and the process has never entered autocast."""


class Resources(Base, frozen=True, kw_only=True):
    """What a rank's own process has used since it started, and what it may use."""

    data_wait_total_s: _Amount | None = None
    """Time that the training thread waited for its data loader, up to its last step."""
    cpu_total_s: _Amount | None = None
    """CPU time of the training thread."""
    other_threads_total_s: _Amount | None = None
    """CPU time of all other threads."""
    gc_total_s: _Amount | None = None
    """Time that Python's garbage collector ran."""
    read_total_bytes: _Count | None = None
    """What the training thread read from disks; what was in memory already does not count."""
    batch_elements_total: _Count | None = None
    """Elements of the first tensor of each batch, of those taken for training."""
    threads: _Count | None = None
    """Threads that torch computes with on the CPU (`torch.get_num_threads()`)."""
    cpus: _Count | None = None
    """CPUs on which the training thread may run."""


class Measured(Base, frozen=True, kw_only=True):
    """What a rank's probe reports and its samples contain; None if unknown."""

    loss: float | None = None
    """Latest loss."""
    loss_state: LossState | None = None
    """Whether `loss` is finite."""
    loss_source: LossSource | None = None
    """Where `loss` comes from; see `step_source`."""
    loss_min: float | None = None
    """Smallest loss since the previous snapshot."""
    loss_max: float | None = None
    """Largest loss since the previous snapshot."""
    loss_last_good: float | None = None
    """Last finite loss."""
    loss_bad_since: Whole | None = None
    """First step since which every loss was NaN or infinite; None if the loss is finite or
    unknown."""
    loss_parts: Whole | None = None
    """Number of backward passes that `loss` combines (gradient accumulation); None if unknown."""
    loss_is: LossIs | None = None
    """How `loss` combines its `loss_parts`; None for one part, or if unknown."""
    data_wait_s: Seconds | None = None
    """Mean time per step that the main thread spends waiting for its data loader."""
    sync_s: Seconds | None = None
    """Mean time per step spent waiting for other ranks in collectives and not overlapped with
    compute; None if torch does not report it. A long wait means that other ranks are slower."""
    compute_s: Seconds | None = None
    """Rest of the mean step time; None unless both waits are known."""
    forward_s: Seconds | None = None
    """Mean time per step in forward passes: from the batch, or else from the end of the previous
    step, to the backward pass, including `input_s`. Like `backward_s` and `optimizer_s`, it
    includes waits for other ranks. On a CUDA device, all of them are measured by events on the
    device, in 1 of 50 steps."""
    input_s: Seconds | None = None
    """The part of `forward_s` from the batch to the start of DistributedDataParallel's forward
    pass: copying the batch to the device, and whatever else the script does there. None without a
    torch DataLoader or DDP, and where `no_sync` or torch.compile hides a forward pass."""
    backward_s: Seconds | None = None
    """Mean time per step in backward passes; several in a step are summed."""
    optimizer_s: Seconds | None = None
    """Mean time per step in optimizers; None if they are compiled, which hides their steps."""
    until_backward_total_s: Seconds | None = None
    """Time from the end of each step to the next backward pass, where ranks first wait for each
    other, summed over this attempt: loading, the forward pass, and all else the script does."""
    cpu_wait_total_s: Seconds | None = None
    """How long the training thread was ready to run and waited for a CPU in this attempt."""
    phase: Phase | None = None
    """What the rank is doing; None if unknown."""
    stands_at: str | None = None
    """`file:line in function` where the rank's main thread is in the script while it is not taking
    steps; None otherwise, or if unknown."""
    batches: Whole | None = None
    """Batches taken from data loaders in this attempt, for training and evaluation."""
    frameworks: list[str] = []
    """Training frameworks that the rank imported, such as `lightning` or `deepspeed`."""
    replicas: Whole | None = None
    """Number of devices that this one process trains on (DataParallel, MirroredStrategy)."""
    batch_hashes: Annotated[list[BatchHash], Meta(max_length=16)] = []
    """The latest batches that were hashed: in each pass over the data, those at positions 0 to 3
    and at powers of two. Ranks with equal hashes train on equal data."""
    data_position: Annotated[list[Whole], Meta(min_length=2, max_length=2)] | None = None
    """Pass over the training data in this attempt, from 0, and the batches taken in it."""
    epoch_batches: Whole | None = None
    """Batches of the pass over the training data, as a sampler of torch knows them; only in the
    first pass with training, and not within `join()` of DistributedDataParallel."""
    batch_size: Whole | None = None
    """Samples per batch of its DataLoader; None without one, or if its batch sampler is the
    script's."""
    unpinned_bytes: Whole | None = None
    """Size of the first two tensors of a batch, if they are on the CPU and the DataLoader does not
    copy them to pinned memory (`pin_memory`); None otherwise."""
    repeated_epoch: Whole | None = None
    """The epoch by which its sampler shuffled the last two passes over the data, because
    `set_epoch` was not called; None otherwise."""
    loader_workers: RankNumber | None = None
    """Worker processes of its DataLoader (`num_workers`); None without a loader."""
    ddp_world_size: RankNumber | None = None
    """Number of ranks whose gradients DistributedDataParallel averages; None without it."""
    batches_skipped: Whole | None = None
    """Batches of the first pass over the data that this attempt took without training on them
    before its first step, as a script does that resumes in the middle of an epoch."""
    weight_hashes: WeightHashes | None = None
    """The last hashes of the weights that DistributedDataParallel keeps equal on all ranks."""
    weight_groups: Annotated[list[Name], Meta(max_length=MAX_WEIGHT_GROUPS)] = []
    """By group of `weight_hashes`, what its parameters have in common in their names; of rank 0."""
    optimizer_steps: Whole | None = None
    """Steps that the state of the optimizer counts, over all attempts if it was restored."""
    learning_rate: float | None = None
    """That of its first group of parameters."""
    python_blocks: Whole | None = None
    """Blocks of memory that Python objects have, of up to 512 bytes each."""
    device_allocated_bytes: Whole | None = None
    """Memory of its tensors on its CUDA device at the end of a step (`memory_allocated` of
    torch)."""
    ddp: DdpUse | None = None
    """How it uses DistributedDataParallel; None without it, with several such modules, or
    before DDP has measured some iterations."""
    not_learning: NotLearning | None = None
    """Why no step of this attempt had anything to learn from; None once one had."""
    resources: Resources | None = None
    """What its own process has used; None unless its main thread trains, or if unknown."""


class RankSample(Measured, frozen=True, kw_only=True):
    """One rank at one moment."""

    rank: int
    """Global rank."""
    local_rank: int
    """Rank on its host."""
    host: str
    pid: int | None = None
    gpu: int | None = None
    """Machine index (PCI order) of the rank's own device; None if it has none."""
    gpus: list[str] = []
    """UUIDs of all devices that the rank's process uses."""
    state: RankState = "unknown"
    """See `state_reason` for why. `quiet`: no step for much longer than usual; `paused`: stopped by
    SIGSTOP; `blocked`: in uninterruptible sleep (D); `exited`: exit status 0; `stopped`: ended by
    ddptop."""
    step: int | None = None
    """Optimizer steps in this attempt, or the printed step if `step_source` is `log`."""
    step_source: LossSource | None = None
    """Where `step` comes from: the probe, `ddptop.report` (`api`), or the output (`log`)."""
    global_step: int | None = None
    """Step of the whole run, if given by a report, the log, or a checkpoint."""
    loss_step: int | None = None
    """Step of this attempt that `loss` belongs to."""
    step_time_s: float | None = None
    """Mean duration of the latest steps."""
    steps_per_s: float | None = None
    cpu_percent: float | None = None
    """CPU usage of the rank and its descendants; 100 is one core."""
    rss_bytes: int | None = None
    """Resident memory of the rank and its descendants."""
    children_rss_bytes: int | None = None
    """The part of `rss_bytes` that its descendants have, such as the workers of its DataLoader."""
    gpu_util_percent: float | None = None
    """Utilization of the rank's own device."""
    gpu_mem_used_bytes: int | None = None
    """Memory that the rank uses on its devices."""
    last_progress_at: dt.datetime | None = None
    """When the rank last made progress."""
    exit_code: int | None = None
    """Exit status; None while the rank is alive, or if a signal killed it."""
    signal: str | None = None
    """Signal that killed the rank, such as `SIGKILL`."""
    metrics: dict[str, float | None] = {}
    """Other values passed to `ddptop.report`."""
    metric_reports: dict[str, int] = {}
    """How often each of `metrics` was reported, the same value too; without those unknown."""
    state_reason: str | None = None
    """Why the rank is in this state, unless that is obvious."""
    cuda_device: int | None = None
    """Index i of `cuda:i`, the name of `gpu` inside the rank's process; None if unknown."""
    gpu_power_w: float | None = None
    """Power of the rank's own device, unless it shares the device with another rank."""
    has_probe: bool | None = None
    """Whether the rank's probe has reported; None if the job was launched with `--no-probe`."""
    phase_since: dt.datetime | None = None
    """When the phase started."""
    quiet_since: dt.datetime | None = None
    """Time of the last progress, if the next step is taking longer than usual; None otherwise."""
    collectives: int | None = None
    """Collectives completed in this attempt, across all process groups (from the flight
    recorder)."""
    collectives_enqueued: int | None = None
    """Collectives started in this attempt, including those still pending."""
    gpu_mem_peak_bytes: int | None = None
    """Peak `gpu_mem_used_bytes` in this attempt."""
    losses: dict[str, float | None] = {}
    """Loss by optimizer (`Adam 1`), if there are several; `loss` is that of the first."""
    rank_source: str | None = None
    """Where the rank's number comes from, if ddptop did not assign it: probe, environment, single,
    or start order."""
    log_bytes: int | None = None
    """Size of the rank's log in this attempt; all ranks of a launched command share one log."""
    run_step: int | None = None
    """Step of the whole run, across restarts; None if only `step` is known."""
    step_counts: StepCounts | None = None
    """What `step` counts if `run_step` is None."""


class Imbalance(Base, frozen=True, kw_only=True):
    """max/median - 1 over the job's ranks or devices; null with fewer than two known values."""

    memory: float | None = None
    utilization: float | None = None
    power: float | None = None
    step_time: float | None = None


class Cause(Base, frozen=True, kw_only=True):
    """Why an attempt or a job failed."""

    kind: str
    """exception, exit_code, signal, hang, launch, early_exit, cuda_oom, host_oom, nan, gpu, or
    unknown; new versions may add kinds."""
    rank: int | None = None
    """Rank that failed first."""
    host: str | None = None
    """Its node, if the job has several."""
    signal: str | None = None
    """Signal that killed it, such as `SIGKILL`."""
    exit_code: int | None = None
    """Exit status of that rank."""
    headline: str | None = None
    """The same on one line, such as `rank 1: ValueError: bad at train.py:10`."""
    summary: str
    """Explanation in one paragraph."""
    evidence: str | None = None
    """Path of the file or folder with the evidence."""
    exception: str | None = None
    """Type of the Python exception, such as `ValueError`."""
    place: str | None = None
    """`file:line in function` that raised it, or where a hung rank was."""
    work_lost_steps: int | None = None
    """Steps in this attempt since the last detected checkpoint, or all steps if there is none."""
    work_lost_s: float | None = None
    """The same, as a duration."""


class Pause(Base, frozen=True, kw_only=True):
    """A live job that has taken no steps for longer than usual."""

    state: PauseState
    """`no_step`: longer than usual, as during an evaluation or a checkpoint; `stalled`: most of
    the time until the hang detector acts is used; `hung`: confirmed by the hang detector."""
    since: dt.datetime
    """Time of the last step of any rank."""
    reason: str | None = None
    """What is known about it, such as `rank 0 is evaluating`."""
    ranks: list[int] = []
    """Ranks that the others are waiting for; may be empty."""
    verdict_at: dt.datetime | None = None
    """When the hang detector will act unless there is a sign of life; null if the pause is
    explained, as by an evaluation, or if the detector is off."""
    verdict: Literal["restart", "failure"] | None = None
    """What the restart policy would decide then."""


class Checkpoint(Base, frozen=True, kw_only=True):
    """A checkpoint that ddptop saw being written."""

    path: str
    """Its file or folder; the largest one if there are several files."""
    at: dt.datetime
    """When it was complete."""
    rank: int | None = None
    """Rank that wrote it."""
    attempt: int | None = None
    step: int | None = None
    """Steps taken in the attempt when it was written."""
    global_step: int | None = None
    """Steps taken in the whole run when it was written, if known."""
    size_bytes: int | None = None
    """Total size of its files."""
    took_s: float | None = None
    """Time from the start of its first file to the end of its last."""
    files: int = 1
    """Number of files written for it by all ranks."""
    inode: int | None = None
    """Inode of `path`, which a script may rename later."""
    data_position: list[int] | None = None
    """Pass over the training data, from 0, and the batches taken in it, when it was written."""

    @property
    def name(self) -> str:
        """The last part of its path, for sentences."""
        return PurePath(self.path).name or self.path


class Resume(Base, frozen=True, kw_only=True):
    """What came back when an attempt resumed, as far as the attempt before tells."""

    step: int
    """Of the run, at which it began."""
    batch: int | None = None
    """Where its data began in the epoch; 0 if its first batches were those of the start again."""
    checkpoint_batch: int | None = None
    """Where the data was when the checkpoint was written."""
    optimizer_kept: bool | None = None
    """Whether the optimizer's own count of steps goes on, rather than from 0."""
    learning_rate: float | None = None
    learning_rate_before: float | None = None
    """That of the attempt before at the same step of the run, if `learning_rate` is the one with
    which that attempt began instead; None if it came back, or if unknown."""


class WaitedFor(Base, frozen=True, kw_only=True):
    """A job that a queued one waits for."""

    job: str
    user: str | None = None
    """Who launched it; None for the same user."""
    state: JobState | None = None
    """None if it was removed, or is another user's."""


class WaitReason(Base, frozen=True, kw_only=True):
    """Why a queued job does not start yet."""

    kind: WaitKind
    """What it waits for first; see [Queue](queue.md)."""
    jobs: list[WaitedFor] = []
    """The jobs that it waits for, next one first."""
    until: dt.datetime | None = None
    """With `time`: when it may start."""


class Alert(Base, frozen=True, kw_only=True):
    """A problem that needs attention."""

    id: str
    """Kind of problem, such as `straggler`."""
    severity: Severity
    ranks: list[int] = []
    """Affected ranks."""
    gpus: list[int] = []
    """Machine indices of affected devices."""
    host: str | None = None
    """In a job on several machines, the host of the affected devices; otherwise None."""
    message: str
    since: dt.datetime
    evidence: dict[str, float | None] = {}
    """The figures that a finding on the training rests on, by name with unit."""
    waits_for: WaitReason | None = None
    """Of `queued`: what the job waits for."""


SILENT = "state"
"""The type of events that change the state and are no news to a person: no list shows them."""


class Event(Base, frozen=True, kw_only=True):
    """One entry of a job's history."""

    schema: int = SCHEMA
    ts: dt.datetime
    seq: int = 0
    """Position in the job's history, from 1; 0 before it is stored."""
    type: str
    """See [Events](#events)."""
    attempt: int | None = None
    rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    message: str
    evidence: str | None = None
    """Path of the saved evidence, if any."""
    data: dict[str, Any] | None = None
    """What happened as values, with their `kind`; null in a job that ddptop did not launch."""


class Progress(Base, frozen=True, kw_only=True):
    """A job's progress toward a known total."""

    step: int | None = None
    """Position, in units of `counts`; for a whole run it may be ahead of the attempt's steps."""
    total: int | None = None
    """Total, in units of `counts`."""
    counts: ProgressUnit = "run"
    """`run`: steps of the whole run; `epoch`: steps of the current epoch; `samples`: samples of the
    current epoch."""
    epoch: float | None = None
    """Current epoch, as numbered by the script; None if it does not number them."""
    epochs: int | None = None
    """Total number of epochs."""
    fraction: float | None = None
    """Completed fraction of the whole run, 0 to 1; None if unknown."""
    eta_s: float | None = None
    """Estimated time until the run ends; None if unknown."""
    estimated: bool = False
    """Whether `fraction` and `eta_s` are estimates: the number of epochs comes from the command
    line, or a progress bar may count either the run or one epoch."""
    epoch_fraction: float | None = None
    """Completed fraction of the current epoch, 0 to 1; None if `counts` is `run`."""
    epoch_eta_s: float | None = None
    """Estimated time until the current epoch ends."""
    source: ProgressSource
    """Where the total comes from: `ddptop.report` (`api`), a framework's trainer object, or
    the output (`log`)."""


class RunStep(Base, frozen=True, kw_only=True):
    """Step of a job: that of its slowest rank."""

    step: int
    counts: StepCounts
    """Other than `run` if the step of the whole run is unknown."""
    attempt: int | None = None
    began: int | None = None
    """Step of the run at which the attempt started, if known; only if `counts` is `run`."""


class LauncherSample(Base, frozen=True, kw_only=True):
    """The process for a launched command: a launcher, or the only process."""

    name: str
    """Name of the launcher, as in `ls`."""
    pid: int | None = None
    state: RankState = "unknown"
    exit_code: int | None = None
    signal: str | None = None
    cpu_percent: float | None = None
    """CPU usage of the whole process tree; 100 is one core."""
    rss_bytes: int | None = None
    """Resident memory of the whole process tree."""


class NodeStatus(Base, frozen=True, kw_only=True):
    """One node of a job on several."""

    host: str
    """As the person or Slurm names it."""
    state: NodePart
    """See `why` for the reason."""
    unknown_since: dt.datetime | None = None
    """Since when it cannot be reached; its ranks may be training."""
    attempt: int | None = None
    """The attempt that it takes part in; None before its first."""
    ranks: list[int] = []
    """Its ranks in that attempt."""
    clock_offset_s: float | None = None
    """Its wall clock minus the head's."""
    why: str | None = None
    """Why it is in this state, unless that is obvious."""


class Sampled(Base, frozen=True, kw_only=True):
    """The part of a snapshot that does not follow from the job's state alone."""

    world_size: int | None = None
    started_at: dt.datetime
    step: int | None = None
    """Steps of the slowest rank in this attempt; `run_step` is that of the run."""
    total_steps: int | None = None
    eta_s: float | None = None
    agent: ProcessId | None = None
    ranks: list[RankSample] = []
    gpus: list[GpuSample] = []
    alerts: list[Alert] = []
    source: str | None = None
    """Source of the device metrics: `nvml`, or None without devices."""
    driver: str | None = None
    device_note: str | None = None
    """Why devices are missing or incomplete; None if there is no problem."""
    checkpoint: Checkpoint | None = None
    """Last detected checkpoint."""
    launcher: LauncherSample | None = None
    """Process for the launched command; None if ddptop starts the ranks itself."""
    progress: Progress | None = None
    """None if no total is known."""
    run_step: RunStep | None = None
    """None before the first known step."""
    attempts_began: dict[int, int] = {}
    """By attempt, the step of the run at which it started, if known."""
    pause: Pause | None = None
    """None while the job is taking steps, or if unknown."""


class NodeSnapshot(Sampled, frozen=True, kw_only=True):
    """One host's share of a job, written whole to `nodes/<host>.json` once a second."""

    schema: int = SCHEMA
    job: str
    job_id: str
    """`name@nonce`, which every process of the job carries as DDPTOP_JOB_ID."""
    host: str
    seq: int
    ts: dt.datetime
    boot_id: str | None = None
    pid_ns: int | None = None
    state: JobState
    attempt: int | None = None
    restarts_used: int = 0
    restarts_left: int = 0
    attempt_started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    guardian: ProcessId | None = None
    supervisor: ProcessId | None = None
    imbalance: Imbalance = Imbalance()
    requeue: bool | None = None
    """After a failure, whether running the job again may help (False: exit status 93)."""
    policy: str | None = None
    """Latest restart policy decision and its reason."""
    previous_cause: Cause | None = None
    """Why the previous attempt failed; None if it did not."""
    resume: Resume | None = None
    """What came back when the attempt resumed; None for the first one, or if unknown."""
    restarts_refilled: str | None = None
    """Progress that last refilled the restart budget."""
    restart_at: dt.datetime | None = None
    """When the next attempt starts; None unless a restart is pending."""
    set_aside: list[int] = []
    """Machine indices of failed devices that the job continues without."""
    ran_s: float | None = None
    """Time that the job has been live by `ts`, over all attempts, excluding the time between its
    end and a later relaunch."""
    boottime_s: float | None = None
    """CLOCK_BOOTTIME at `ts`, so that the snapshot's age does not depend on the wall clock."""
    nodes: list[NodeStatus] = []
    """Of a job on several nodes, in their order; empty on one."""
    memory: dict[str, Any] = {}
    """State that a restarted supervisor restores; not for other readers."""


class RankStacks(Base, frozen=True, kw_only=True):
    """Where one rank stands."""

    rank: int
    pid: int | None = None
    text: str | None = None
    """faulthandler's or py-spy's words; None where none could be had."""
    note: str | None = None
    """Why there is no text."""
    loader: str | None = None
    """Stacks of its data loader's processes, one after the other, while it waits for them."""


_encoder = msgspec.json.Encoder()


def encode(value: object) -> bytes:
    """JSON of any type of this module; NaN and infinities become null.

    What stands for bytes that are no UTF-8, as in the names of some files, becomes U+FFFD.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_as_text(msgspec.to_builtins(value)))


def _as_text(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    return [_as_text(item) for item in value] if isinstance(value, list) else value


def decode_snapshot(data: bytes) -> NodeSnapshot:
    """Read what `encode` wrote.

    Raises:
        msgspec.DecodeError: when `data` is not a node snapshot.
    """
    return bounded.decode_json(msgspec.json.Decoder(NodeSnapshot), data)


def read_snapshot(path: Path) -> NodeSnapshot | None:
    """The snapshot in a file; None if that is missing or damaged."""
    try:
        return decode_snapshot(bounded.read_bytes(path))
    except (OSError, msgspec.MsgspecError):
        return None
