"""What is known of a job at one moment: the types behind every snapshot, event and `--json`.

Unknown is None everywhere. The field names of RankSample, GpuSample, GpuProcess, Alert, Cause,
Imbalance and Event are the outside contract: extend them, never rename them.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from ddptop_runner import bounded
from ddptop_runner.model_base import Base as Base
from ddptop_runner.model_gpus import GpuProcess as GpuProcess
from ddptop_runner.model_gpus import GpuSample as GpuSample
from ddptop_runner.model_words import (
    JobState,
    LossIs,
    LossSource,
    LossState,
    PauseState,
    Phase,
    ProgressSource,
    ProgressUnit,
    RankState,
    Severity,
    StepCounts,
)

SCHEMA = 1
"""Version of every on-disk and `--json` format in this module."""

LAUNCHER = -1
"""Stands among rank numbers for the launcher of a job that is a command: its output is everyone's,
and its end is the attempt's. Never a rank's number in a snapshot, an event or `--json`."""


class ProcessId(Base, frozen=True, kw_only=True):
    """One process, told apart from a later one of the same pid."""

    host: str
    boot_id: str | None
    pid_ns: int | None
    """Inode of the pid namespace, from /proc/self/ns/pid."""
    pid: int
    start_ticks: int | None
    """Field 22 of /proc/<pid>/stat: clock ticks after boot."""


class RankSample(Base, frozen=True, kw_only=True):
    """One rank at one moment."""

    rank: int
    local_rank: int
    host: str
    pid: int | None = None
    gpu: int | None = None
    """Machine index (PCI order) of the rank's own device; None when none of those it holds is."""
    gpus: list[str] = []
    """UUIDs of every device the rank's process holds."""
    state: RankState = "unknown"
    step: int | None = None
    """Optimizer steps in this attempt; as printed where `step_source` is "log"."""
    step_source: LossSource | None = None
    """Who counted `step`: the rank's probe, or its output."""
    global_step: int | None = None
    """Step of the whole training, only where something said it (report, log, checkpoint)."""
    loss: float | None = None
    loss_step: int | None = None
    """The step (of this attempt) that `loss` belongs to."""
    loss_state: LossState | None = None
    loss_source: LossSource | None = None
    step_time_s: float | None = None
    """Mean duration of the latest steps."""
    steps_per_s: float | None = None
    data_wait_s: float | None = None
    """Mean time per step that the main thread waited for its data loader."""
    sync_s: float | None = None
    """Mean time per step that it waited for other ranks in collectives, beyond what computing hid;
    None where torch does not tell. The longer it is, the slower are the others."""
    compute_s: float | None = None
    """What is left of a mean step; None where one of both waits is not known."""
    cpu_percent: float | None = None
    """CPU of the rank and its descendants; 100 is one core."""
    rss_bytes: int | None = None
    """Resident memory of the rank and its descendants."""
    gpu_util_percent: float | None = None
    gpu_mem_used_bytes: int | None = None
    last_progress_at: dt.datetime | None = None
    exit_code: int | None = None
    """Exit status; None while alive and when ended by a signal."""
    signal: str | None = None
    """Name of the signal that ended the rank, such as "SIGKILL"."""
    loss_min: float | None = None
    """Smallest loss since the previous snapshot."""
    loss_max: float | None = None
    """Largest loss since the previous snapshot."""
    metrics: dict[str, float | None] = {}
    """What the script reported besides loss and step."""
    state_reason: str | None = None
    """Why the state is what it is, in words, where that is not plain."""
    cuda_device: int | None = None
    """The i of `cuda:i` by which the rank's own process names `gpu`; None when not known."""
    gpu_power_w: float | None = None
    """Of the rank's own device, where no other rank is on it."""
    has_probe: bool | None = None
    """Whether the rank's probe has been heard; None when the job was launched with --no-probe."""
    phase: Phase | None = None
    """What the rank is doing; None when nothing tells."""
    phase_since: dt.datetime | None = None
    stands_at: str | None = None
    """`file:line in function` of the script where the rank's main thread stands, while it takes no
    step; None while steps go on, and when nothing tells."""
    quiet_since: dt.datetime | None = None
    """The last progress of a rank that takes longer than usual for its next; None otherwise."""
    collectives: int | None = None
    """Collectives completed in this attempt, over all process groups (flight recorder)."""
    collectives_enqueued: int | None = None
    batches: int | None = None
    """Batches taken from data loaders in this attempt, for training and evaluation alike."""
    gpu_mem_peak_bytes: int | None = None
    """The most of `gpu_mem_used_bytes` in this attempt."""
    loss_bad_since: int | None = None
    """The step since which no loss was finite; None while they are, and when nothing tells."""
    loss_last_good: float | None = None
    """The last finite loss."""
    loss_parts: int | None = None
    """Backward passes that `loss` is made of, with gradient accumulation; None when not known."""
    loss_is: LossIs | None = None
    """What `loss` is of its `loss_parts`; None with one, and when not known."""
    losses: dict[str, float | None] = {}
    """By optimizer ("Adam 1"), where there are several; `loss` is the first's."""
    frameworks: list[str] = []
    """Training frameworks that the rank has imported, such as "lightning" or "deepspeed"."""
    replicas: int | None = None
    """Devices that this one process trains on as replicas (DataParallel, MirroredStrategy)."""
    rank_source: str | None = None
    """Where ddptop did not number it: "probe", or a `foreign.types.RankEvidence`."""
    log_bytes: int | None = None
    """How much the rank's log of this attempt holds; of a command all ranks share one."""
    run_step: int | None = None
    """Step of the whole run, over restarts; None where only `step` is known."""
    step_counts: StepCounts | None = None
    """What `step` counts where `run_step` is None; also None in snapshots of an older ddptop."""


class Imbalance(Base, frozen=True, kw_only=True):
    """max/median - 1 over the job's ranks or devices; None with fewer than two known values."""

    memory: float | None = None
    utilization: float | None = None
    power: float | None = None
    step_time: float | None = None


class Cause(Base, frozen=True, kw_only=True):
    """Why a job failed."""

    kind: str
    """exception, exit_code, signal, hang, launch, early_exit, cuda_oom, host_oom, nan, gpu or
    unknown; may grow."""
    rank: int | None = None
    signal: str | None = None
    exit_code: int | None = None
    summary: str
    """One paragraph that a person understands."""
    evidence: str | None = None
    """Path of the file or folder that proves it."""
    exception: str | None = None
    """Type of the Python exception, such as "ValueError"."""
    place: str | None = None
    """`file:line in function` that raised it, or where a hung rank stood."""
    work_lost_steps: int | None = None
    """Steps of this attempt since the last checkpoint that was seen; all of it without one."""
    work_lost_s: float | None = None


class Pause(Base, frozen=True, kw_only=True):
    """A running job that has taken no step for longer than its steps take."""

    state: PauseState
    since: dt.datetime
    """When any rank took its last step."""
    reason: str | None = None
    """What is known of it, in words: `rank 0 saves a checkpoint`."""
    ranks: list[int] = []
    """Whom the others wait for; empty where that is nobody."""


class Checkpoint(Base, frozen=True, kw_only=True):
    """A checkpoint that was seen being written."""

    path: str
    at: dt.datetime
    """When it was complete."""
    rank: int | None = None
    attempt: int | None = None
    step: int | None = None
    """Optimizer steps of the attempt when it was written."""
    global_step: int | None = None
    """Steps of the whole run by then, where something told them."""
    size_bytes: int | None = None
    """Of all its files."""
    took_s: float | None = None
    """From the beginning of its first file to the end of its last."""
    files: int = 1
    """How many were seen being saved for it, by all ranks; `path` is the largest."""
    inode: int | None = None
    """Of `path`: a script may rename it later."""


class Alert(Base, frozen=True, kw_only=True):
    """Something a person should look at."""

    id: str
    severity: Severity
    ranks: list[int] = []
    gpus: list[int] = []
    message: str
    since: dt.datetime


class Event(Base, frozen=True, kw_only=True):
    """One line of the job's story."""

    schema: int = SCHEMA
    ts: dt.datetime
    seq: int = 0
    """1, 2, ... in the order of the job's history; 0 before it is stored."""
    type: str
    attempt: int | None = None
    rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    message: str
    evidence: str | None = None


class Progress(Base, frozen=True, kw_only=True):
    """How far a job is, of a total that something said."""

    step: int | None = None
    """In `counts`; for the run as a whole it may be ahead of the attempt's steps."""
    total: int | None = None
    counts: ProgressUnit = "run"
    epoch: float | None = None
    """As the script numbers them; None where it does not."""
    epochs: int | None = None
    """How many there are to be."""
    fraction: float | None = None
    """Of the whole run, 0 to 1; None where that is not known."""
    eta_s: float | None = None
    """To the end of the run, by its speed; None where that is not known."""
    estimated: bool = False
    """Whether `fraction` and `eta_s` are estimates: the command line gives the number of epochs,
    or a bar does not say whether it counts the run or one epoch."""
    epoch_fraction: float | None = None
    """Of the present epoch, 0 to 1; None where steps count the run."""
    epoch_eta_s: float | None = None
    """To the end of the present epoch."""
    source: ProgressSource


class RunStep(Base, frozen=True, kw_only=True):
    """The step at which a job is: the slowest rank's."""

    step: int
    counts: StepCounts
    """Other than "run" where nothing tells the step of the whole run."""
    attempt: int | None = None
    began: int | None = None
    """The step of the run at which the attempt began, where `counts` is "run" and it is known."""


class LauncherSample(Base, frozen=True, kw_only=True):
    """The process that a command started: another launcher, or the only process."""

    name: str
    """As in `ls`: torchrun, accelerate, deepspeed, horovod, mpirun, mp.spawn, lightning, python."""
    pid: int | None = None
    state: RankState = "unknown"
    exit_code: int | None = None
    signal: str | None = None
    cpu_percent: float | None = None
    """Of the whole tree; 100 is one core."""
    rss_bytes: int | None = None
    """Of the whole tree."""


class NodeSnapshot(Base, frozen=True, kw_only=True):
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
    world_size: int | None = None
    started_at: dt.datetime
    attempt_started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    step: int | None = None
    """The slowest rank's own, in this attempt; the run's is `run_step`."""
    total_steps: int | None = None
    eta_s: float | None = None
    guardian: ProcessId | None = None
    supervisor: ProcessId | None = None
    agent: ProcessId | None = None
    ranks: list[RankSample] = []
    gpus: list[GpuSample] = []
    imbalance: Imbalance = Imbalance()
    alerts: list[Alert] = []
    source: str | None = None
    """Back end of the device figures: "nvml", or None without devices."""
    driver: str | None = None
    device_note: str | None = None
    """Why devices are missing or incomplete, in words; None when all is well."""
    requeue: bool | None = None
    """After a failure: whether running it again may help (False: exit status 93)."""
    checkpoint: Checkpoint | None = None
    """The last one that was seen being written."""
    policy: str | None = None
    """Why the restart policy did what it did last, in words."""
    previous_cause: Cause | None = None
    """Why the attempt before this one failed; None where it did not."""
    restarts_refilled: str | None = None
    """The progress that filled the budget of restarts again last, in words."""
    restart_at: dt.datetime | None = None
    """When the next attempt begins; None when none is waited for."""
    set_aside: list[int] = []
    """Machine indices of the job's devices that its attempts go on without."""
    ran_s: float | None = None
    """For how long the job has lived by `ts`, over all its attempts, without the time between its
    end and a later restart."""
    boottime_s: float | None = None
    """CLOCK_BOOTTIME at `ts`: how old the snapshot is does not depend on the wall clock."""
    launcher: LauncherSample | None = None
    """Of a job that is a command; None of one whose ranks ddptop starts itself."""
    progress: Progress | None = None
    """None where nothing said a total."""
    run_step: RunStep | None = None
    """None before any step was told, and in snapshots of an older ddptop."""
    attempts_began: dict[int, int] = {}
    """By attempt, the step of the run at which it began, where that is known."""
    pause: Pause | None = None
    """None while steps come, and where nothing tells whether they do."""
    memory: dict[str, Any] = {}
    """What a supervisor that is started again has to know; nobody else reads it."""


_snapshot_decoder = msgspec.json.Decoder(NodeSnapshot)
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
    return bounded.decode_json(_snapshot_decoder, data)
