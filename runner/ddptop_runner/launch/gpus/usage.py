"""Determines who uses a device, whether it is busy, and which devices live jobs have reserved.

A device is busy if a live ddptop job has it, if a compute process holds more than a small context
on it, or if more memory is in use than the listed processes explain. A small context is one of less
than 256 MiB on an idle device, such as that of a display server or monitor. Even a CUDA program
that has just started holds more.

A job has its devices from the moment that `job.json` names them, long before a rank holds memory.
Taking devices requires holding `taking()` from checking claims until `job.json` is written and
published to other users.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import msgspec

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import runs_dir
from ddptop_runner.base.units import duration_in_words, size
from ddptop_runner.devices.owners import labeled
from ddptop_runner.devices.words import names_of
from ddptop_runner.host import procs
from ddptop_runner.job import registry
from ddptop_runner.job.registry import JobSource, JobView
from ddptop_runner.launch.gpus import shared
from ddptop_runner.launch.gpus.shared import UserQueue
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device, JobSpec

SMALL_CONTEXT_BYTES = 256 * 2**20
IDLE_UTIL_PERCENT = 5.0
"""Below this utilization, or if it is unknown, a small context does not count."""
UNSEEN_SHARE = 0.05
"""Fraction of a device's memory that may be in use without a process that explains it."""
IDLE_AFTER_S = 120.0
"""A device in use is called idle after this time without computation."""
SHARED_AT_MOST = 0.2
"""With --share-idle, others may hold up to this fraction of a device's memory."""
NEAR_SLOWDOWN_C = 5.0
"""A temperature this close to the slowdown threshold is mentioned."""
_HOLDERS_NAMED = 2


class DeviceUse(msgspec.Struct, frozen=True):
    """A device that a job may get, and its present use."""

    device: Device
    holders: tuple[str, ...] = ()
    """Who uses it, in words, most memory first; () if it is free."""
    held_bytes: int = 0
    """Memory in use; all of it if that is unknown and the device is busy."""
    util_percent: float | None = None
    temperature_c: float | None = None
    gone: bool = False
    """Whether it is lost, missing, or divided into MIG instances."""
    pids: tuple[int, ...] = ()
    """Of the processes among the holders."""
    may_share: bool = False
    """Whether no job has it, and most of its memory is free."""
    idle_s: float | None = None
    """For how long the same processes have been watched while they did not compute."""

    @property
    def busy(self) -> bool:
        """Whether someone else uses it."""
        return bool(self.holders)

    @property
    def idles(self) -> bool:
        """Whether its holders have been idle for a while."""
        return self.idle_s is not None and self.idle_s >= IDLE_AFTER_S


def use_of(device: Device, gpu: GpuSample | None, claimed_by: Sequence[str] = ()) -> DeviceUse:
    """The present use of a device.

    Args:
        device: the device.
        gpu: its sample, with job and rank of processes that are ranks, if there is one.
        claimed_by: live jobs that have the device, whether or not they use it yet, in words.
    """
    if gpu is None or gpu.lost:
        lost = "lost" if gpu is not None else "does not exist"
        return DeviceUse(device, (lost,), gone=True)
    if not device.is_mig and in_mig_mode(gpu):
        return DeviceUse(device, ("in MIG mode; cannot be used as a whole",), gone=True)
    processes = gpu.processes or []
    idle = gpu.util_percent is None or gpu.util_percent < IDLE_UTIL_PERCENT
    memory = {process.pid: _memory_of(process, gpu) for process in processes}
    held = [process for process in processes if not (idle and _is_small(memory[process.pid]))]
    held.sort(key=lambda process: -(memory[process.pid] or 0))
    holders = [f"{_who(process)} {_holds(memory[process.pid])}" for process in held]
    seen = {f"job {process.job}" for process in held}
    holders += [f"reserved by {job}" for job in claimed_by if job not in seen]
    if (unknown := unknown_holder(gpu)) is not None:
        holders.append(unknown)
    in_use = gpu.mem_used_bytes
    if in_use is None:
        in_use = (gpu.mem_total_bytes or 0) if holders else 0
    is_claimed = bool(claimed_by) or any(process.job is not None for process in held)
    is_small = gpu.mem_total_bytes is not None and in_use <= SHARED_AT_MOST * gpu.mem_total_bytes
    return DeviceUse(
        device,
        tuple(holders),
        in_use,
        gpu.util_percent,
        gpu.temperature_c,
        pids=tuple(sorted(process.pid for process in held)),
        may_share=is_small and not is_claimed,
    )


def in_mig_mode(gpu: GpuSample) -> bool:
    """Whether this whole device is divided, so that only its instances can be used."""
    return gpu.mig_mode or bool(gpu.mig_instances)


def is_hot(gpu: GpuSample) -> bool:
    """Whether its temperature is near or above the slowdown threshold."""
    celsius, threshold = gpu.temperature_c, gpu.temperature_slowdown_c
    if celsius is None or threshold is None:
        return False
    return celsius >= threshold - NEAR_SLOWDOWN_C


def unknown_holder(gpu: GpuSample) -> str | None:
    """`unknown process, 39.0 GiB`, for memory that no listed process explains.

    This is how a process in another container appears, which the driver does not list here. None if
    there is no such memory, or that is unknown.
    """
    unseen = _unseen_bytes(gpu, [_memory_of(process, gpu) for process in gpu.processes or []])
    return None if unseen is None else f"unknown process, {size(unseen)}"


def _memory_of(process: GpuProcess, gpu: GpuSample) -> int | None:
    if process.mem_used_bytes is None and len(gpu.processes or ()) == 1:
        return gpu.mem_used_bytes
    return process.mem_used_bytes


def _is_small(mem_used_bytes: int | None) -> bool:
    return mem_used_bytes is not None and mem_used_bytes < SMALL_CONTEXT_BYTES


def _unseen_bytes(gpu: GpuSample, of_processes: Sequence[int | None]) -> int | None:
    """Memory in use that no listed process explains, if it is significant."""
    if gpu.mem_used_bytes is None or None in of_processes:
        return None
    unseen = gpu.mem_used_bytes - sum(value or 0 for value in of_processes)
    enough = SMALL_CONTEXT_BYTES
    if gpu.mem_total_bytes is not None:
        enough = max(enough, int(gpu.mem_total_bytes * UNSEEN_SHARE))
    return unseen if unseen > enough else None


def _who(process: GpuProcess) -> str:
    if process.job is not None:
        rank = "" if process.rank is None else f"rank {process.rank} of "
        return f"{rank}job {process.job} (pid {process.pid})"
    if process.user is None and process.command is None:
        return f"a process hidden from ddptop (pid {process.pid})"
    user = f"{process.user}'s " if process.user else ""
    return f"{user}{program_of(process.command)} (pid {process.pid})"


def program_of(command: str | None) -> str:
    """The script or program of a command line."""
    words = (command or "").split()
    for number, word in enumerate(words[1:], 1):
        if word == "-m" and number + 1 < len(words):
            return words[number + 1]
        if word.endswith(".py"):
            return PurePath(word).name
    return PurePath(words[0]).name if words else "process"


def _holds(mem_bytes: int | None) -> str:
    if mem_bytes is None:
        return "uses an unknown amount of memory"
    return f"uses {size(mem_bytes)}"


# --- choosing ----------------------------------------------------------------------------------


def idlest(uses: Sequence[DeviceUse], count: int) -> list[DeviceUse]:
    """The `count` idlest devices, in the order of `uses`.

    Prefers free devices, then the least memory in use by others, then utilization, temperature, and
    the order of `uses`. Memory of a free device does not count. Unknown values come last.
    """
    ranked = sorted(uses, key=_idleness)[:count]
    return [use for use in uses if use in ranked]


def _idleness(use: DeviceUse) -> tuple[bool, bool, int, float, float]:
    util = 101.0 if use.util_percent is None else use.util_percent
    temperature = 1000.0 if use.temperature_c is None else use.temperature_c
    return use.gone, use.busy, use.held_bytes if use.busy else 0, util, temperature


def grant(
    uses: Sequence[DeviceUse], count: int, *, share_idle: bool = False
) -> list[Device] | None:
    """The devices that a queued job may take now, in the order of `uses`; None if too few.

    With `share_idle`, these are also devices whose holders are idle, if there are too few others.
    """
    free = [use for use in uses if not use.busy or (share_idle and use.may_share and use.idles)]
    return None if len(free) < count else [use.device for use in idlest(free, count)]


def key(device: Device) -> str:
    """The device's identity on its machine."""
    return device.uuid or f"index {device.index}"


# --- words -------------------------------------------------------------------------------------


def holders_in_words(use: DeviceUse) -> str:
    """`alice's train.py (pid 7) uses 71.2 GiB, idle for 3 h`, for two holders, or `free`."""
    named = list(use.holders[:_HOLDERS_NAMED])
    if rest := len(use.holders) - len(named):
        named.append(f"{rest} more")
    idle = f", idle for {duration_in_words(use.idle_s)}" if use.idles and use.idle_s else ""
    return (" and ".join(named) or "free") + idle


def busy_in_words(uses: Sequence[DeviceUse], most: int = 4) -> str:
    """`GPU 0: alice's ...; GPUs 2, 3: reserved by job resnet`, for busy devices."""
    devices: dict[str, list[Device]] = {}
    for use in uses:
        if use.busy:
            devices.setdefault(holders_in_words(use), []).append(use.device)
    parts = [f"{names_of(held)}: {words}" for words, held in devices.items()]
    if len(parts) > most:
        parts = [*parts[:most], f"and {len(parts) - most} more"]
    return "; ".join(parts)


def choice_in_words(chosen: Sequence[DeviceUse], uses: Sequence[DeviceUse]) -> str:
    """`using GPUs 3, 5; busy: GPU 0: alice's train.py ... uses 71.2 GiB`."""
    words = f"using {names_of([use.device for use in chosen])}"
    busy = busy_in_words(uses)
    return f"{words}; busy: {busy}" if busy else words


# --- reservations of live jobs ---------------------------------------------------------------

LOCK_NAME = f".gpus.{procs.host_name()}.lock"
"""Named after the host, so that machines that share a state folder do not block each other."""


def jobs_here(source: JobSource | None = None) -> list[JobView]:
    """All jobs of this state folder, and this machine's parts of jobs on several."""
    return [*(source or JobSource()).read(), *registry.parts_here()]


def is_here(view: JobView) -> bool:
    """Whether a job is live and may have devices of this machine."""
    return not view.on_other_host and view.is_live


def claims(
    besides: str | None = None,
    jobs: Sequence[JobView] | None = None,
    others: Sequence[UserQueue] | None = None,
) -> list[tuple[str, str]]:
    """(job, key of a device) of each live job on this machine, except that with the ID `besides`.

    `jobs` are all of this user's, and `others` other users' queues, if already read.
    """
    own = [
        (f"job {view.job}", key(device))
        for view in (jobs_here() if jobs is None else jobs)
        if view.spec.devices and view.spec.job_id != besides and is_here(view)
        for device in view.spec.devices
    ]
    return own + [
        (f"{procs.user_name(queue.uid)}'s job {entry.job}", device)
        for queue in (shared.others(utc_now()) if others is None else others)
        for entry in queue.has
        for device in entry.devices
    ]


def holders_of(spec: JobSpec) -> list[JobView]:
    """Other live jobs on this machine that have devices of a job."""
    return [
        view
        for view in jobs_here()
        if view.spec.job_id != spec.job_id and _shared(view.spec, spec) and is_here(view)
    ]


def _shared(one: JobSpec, other: JobSpec) -> list[Device]:
    return [d for d in other.devices or () if any(is_same(d, e) for e in one.devices or ())]


def taken_in_words(spec: JobSpec, holders: Sequence[JobView]) -> str:
    """`GPU 0 is reserved by job resnet`, for each job that has devices of this one."""
    return "; ".join(
        f"{names_of(devices)} {'is' if len(devices) == 1 else 'are'} reserved by job {view.job}"
        for view in holders
        if (devices := _shared(view.spec, spec))
    )


def will_yield(holders: Sequence[JobView], spec: JobSpec) -> bool:
    """Whether those that have devices of a node's part may be about to give them back.

    Two launches on several machines may each have got one of them. The later one gives up at once.
    """
    return all(
        view.spec.membership is not None and _launched(view.spec) > _launched(spec)
        for view in holders
    )


def _launched(spec: JobSpec) -> tuple[dt.datetime, str]:
    return spec.created_at, spec.job_id.rpartition(".")[0]  # the same in all parts of a job


def uses(
    devices: Sequence[Device],
    present: Sequence[GpuSample],
    besides: str | None = None,
    jobs: Sequence[JobView] | None = None,
    others: Sequence[UserQueue] | None = None,
) -> list[DeviceUse]:
    """The present use of each of these devices.

    Args:
        devices: the devices, in the order of the result.
        present: the machine's samples from the driver.
        besides: the ID of a job whose own devices do not count.
        jobs: all jobs, if already read.
        others: other users' queues, if already read.
    """
    jobs = jobs_here() if jobs is None else jobs
    gpus, claimed = labeled(present, registry.rank_of_pid(jobs)), claims(besides, jobs, others)
    found = []
    for device in devices:
        gpu = next((gpu for gpu in gpus if is_same(gpu, device)), None)
        names = [job for job, held in claimed if held == key(device)]
        found.append(use_of(device, gpu, names))
    return found


def is_same(one: GpuSample | Device, other: Device) -> bool:
    """Whether both are the same device, by UUID if both have one."""
    if one.uuid and other.uuid:
        return one.uuid == other.uuid
    return one.index == other.index and not other.is_mig


@contextlib.contextmanager
def taking(timeout_s: float = 10.0, name: str = LOCK_NAME) -> Iterator[bool]:
    """Hold this state folder's lock for taking devices, or another lock `name`.

    Yields:
        Whether it was acquired in time (0 tries once), or the file system does not support locks.
    """
    try:
        runs_dir().mkdir(mode=0o700, parents=True, exist_ok=True)  # a node may not have it yet
        held = lock(runs_dir() / name, timeout_s)
    except OSError:  # neither a full disk nor another user's lock may block a job forever
        yield True
        return
    is_for_devices = name == LOCK_NAME and held is not None
    try:
        with shared.locked(timeout_s) if is_for_devices else contextlib.nullcontext(True) as had:
            yield held is not None and had
    finally:
        if held is not None:
            os.close(held)
