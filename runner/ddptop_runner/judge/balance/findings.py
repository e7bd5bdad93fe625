"""Named findings: how a job's ranks sit on its devices, and what is wrong with that.

Pure functions over joined samples (see `rank_devices.join`), for own and foreign jobs. Unknown
values lead to no findings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from ddptop_runner.base.units import is_or_are, name_gpus, name_ranks, size
from ddptop_runner.devices import codes
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.rank_devices import is_own
from ddptop_runner.model.snapshot import GpuProcess, GpuSample, RankSample
from ddptop_runner.model.words import ENDED, Severity

CONTEXT_BYTES = 100 * 1024**2
"""Minimum memory of a CUDA context."""

LARGEST_STRAY = 0.75
"""A stray context holds less than this fraction of the memory that its rank holds on its own
device; with more, the rank works on both."""

IDLE_PERCENT = 1.0


def find(
    ranks: Sequence[RankSample], gpus: Sequence[GpuSample], job: str, *, given: bool = True
) -> list[Finding]:
    """What is wrong with the job's balance and devices.

    Each finding has a time for which it must hold before it is shown (`hold_s`); see AlertBook.

    Args:
        ranks: the job's ranks on this host, joined with their devices.
        gpus: the job's devices; the job's processes carry `job` (and their rank, if they have
            one), so all others are unrelated.
        job: the job's name, as in `GpuProcess.job`.
        given: whether `gpus` were assigned to the job (--gpus, CUDA_VISIBLE_DEVICES). If they are
            only those that it can see, an unused one is not a finding.
    """
    placement = Placement(ranks, gpus, job)
    found = [
        *_stray_contexts(placement),
        *(_unused(placement) if given else ()),
        *_throttled(placement),
    ]
    for device in placement.devices:
        found += _xid(placement, device)
        found += _memory_errors(placement, device)
        found += _somebody_else(placement, device)
    return found


def _stray_contexts(placement: Placement) -> list[Finding]:
    """Ranks that hold a little memory on the device of another rank."""
    found = []
    for device in placement.devices:
        strays: dict[int, int] = {}
        for rank, used in device.memory.items():
            own = placement.own(rank)
            if own is None or own is device or used is None or used < CONTEXT_BYTES:
                continue
            there = own.memory[rank]
            if there is not None and used < LARGEST_STRAY * there:
                strays[rank] = used
        owners = placement.owners(device)
        if not strays or not owners:
            continue
        message = (
            f"{name_ranks(list(strays))} {'use' if len(strays) > 1 else 'uses'} "
            f"{size(sum(strays.values()))} on GPU {device.index}, which belongs "
            f"to {name_ranks(owners)}: torch.cuda.set_device(local_rank) is missing before the "
            "first CUDA call, or torch.load is missing map_location"
        )
        found.append(
            Finding(
                f"stray-context-{device.index}",
                "warning",
                message,
                tuple(sorted(strays)),
                (device.index,),
                hold_s=5.0,
            )
        )
    return found


def _unused(placement: Placement) -> list[Finding]:
    """Devices that the job does not use, once each rank is at work elsewhere."""
    if not placement.complete or not placement.stepping:
        return []
    if not all(placement.held(rank.rank) for rank in placement.ranks):
        return []
    unused = [
        device
        for device in placement.devices
        if device.is_listed
        and not device.of_job
        and (device.others or (device.gpu.util_percent or 0.0) <= IDLE_PERCENT)
    ]
    if not unused:
        return []
    gpus = tuple(device.index for device in unused)
    message = (
        f"{name_gpus(gpus)} {is_or_are(gpus)} assigned to the job, but no rank "
        f"uses {'them' if len(gpus) > 1 else 'it'}: {_why_unused(placement)}"
    )
    return [Finding("unused-gpu", "warning", message, (), gpus, hold_s=20.0)]


def _why_unused(placement: Placement) -> str:
    number, devices = len(placement.ranks), len(placement.devices)
    shared = [device for device in placement.devices if len(device.memory) > 1]
    if shared and number >= devices:
        fullest = max(shared, key=lambda device: len(device.memory))
        return (
            f"{name_ranks(list(fullest.memory))} are all on GPU {fullest.index}: is "
            "torch.cuda.set_device(local_rank) missing, or .cuda() used instead of .to(device)?"
        )
    ranks = f"{number} rank{'s' if number > 1 else ''}"
    return f"{ranks} for {devices} GPUs; pass fewer GPUs (--gpus) or start more ranks (--nproc)"


class Device(msgspec.Struct, frozen=True):
    """One device of the job with the processes that the driver lists."""

    gpu: GpuSample
    memory: Mapping[int, int | None]
    """By rank, the bytes that its processes hold here; None if the driver does not report them.
    Ranks without processes here are missing."""
    others: tuple[GpuProcess, ...]
    """Processes that do not belong to the job."""
    of_job: tuple[GpuProcess, ...]
    """Processes of the job, whether or not they belong to a rank."""

    @property
    def index(self) -> int:
        """Machine index."""
        return self.gpu.index

    @property
    def is_listed(self) -> bool:
        """Whether the driver lists its processes."""
        gpu = self.gpu
        return gpu.processes is not None and not gpu.lost and not gpu.mig_instances


class Placement:
    """A job's live ranks on its devices at one moment."""

    def __init__(self, ranks: Sequence[RankSample], gpus: Sequence[GpuSample], job: str) -> None:
        self.ranks = [rank for rank in ranks if rank.state not in ENDED]
        self.complete = len(self.ranks) == len(ranks) and all(rank.pid for rank in ranks)
        """Whether all ranks have started and none has ended."""
        self.devices = [_device(gpu, job) for gpu in gpus]
        self.seen = any(device.memory for device in self.devices)
        """Whether the driver's pids match the ranks'. If not (another namespace, or nothing on a
        device yet), its processes prove nothing about the job."""
        self._own = {
            rank.rank: device
            for rank in self.ranks
            for device in self.held(rank.rank)
            if is_own(rank, device.gpu)
        }

    def held(self, rank: int) -> list[Device]:
        """Devices on which that rank holds memory."""
        return [device for device in self.devices if rank in device.memory]

    def own(self, rank: int) -> Device | None:
        """The device on which that rank works; None if unclear."""
        return self._own.get(rank)

    def owners(self, device: Device) -> list[int]:
        """Ranks that work on that device."""
        return [rank for rank, own in self._own.items() if own is device]

    @property
    def stepping(self) -> bool:
        """Whether every live rank is known to have taken a step, so that startup is over."""
        return bool(self.ranks) and all((rank.step or 0) > 0 for rank in self.ranks)


def _device(gpu: GpuSample, job: str) -> Device:
    memory: dict[int, int | None] = {}
    processes = gpu.processes or []
    of_job = [process for process in processes if process.job == job]
    for process in of_job:
        if process.rank is None:
            continue
        before = memory.get(process.rank, 0)
        used = process.mem_used_bytes
        memory[process.rank] = None if before is None or used is None else before + used
    others = tuple(process for process in processes if process.job != job)
    return Device(gpu, memory, others, tuple(of_job))


OTHERS_BYTES = 256 * 1024**2
"""Minimum memory of unrelated processes for a finding."""


def _throttled(placement: Placement) -> list[Finding]:
    found: list[tuple[Device, str]] = []
    for device in placement.devices:
        gpu = device.gpu
        reasons = gpu.throttle_reasons or ()
        if gpu.lost or (gpu.util_percent or 0) < 10:
            continue
        held_back = sorted(one for one in reasons if codes.throttle(one).weight == "slowed")
        if held_back:
            found.append((device, ", ".join(held_back)))
    if not found:
        return []
    gpus = tuple(device.index for device, _ in found)
    ranks = tuple(sorted({rank for device, _ in found for rank in _ranks(placement, device)}))
    device, reason = min(found, key=lambda item: item[0].gpu.sm_clock_mhz or math.inf)
    which = f"GPU {device.index}: " if len(found) > 1 else ""
    whose = f" ({name_ranks(ranks)})" if ranks else ""
    wait = ": every rank waits for the slowest one" if len(placement.ranks) > 1 else ""
    message = (
        f"{name_gpus(gpus)}{whose} {is_or_are(gpus)} running at reduced "
        f"clocks ({which}{reason}{_heat_and_clock(device.gpu)}){wait}; check cooling and the power "
        "supply"
    )
    return [Finding("throttled", "warning", message, ranks, gpus, hold_s=20.0)]


def _heat_and_clock(gpu: GpuSample) -> str:
    heat = "" if gpu.temperature_c is None else f"; {gpu.temperature_c:.0f} °C"
    most = "" if gpu.sm_clock_max_mhz is None else f" of {gpu.sm_clock_max_mhz}"
    return heat if gpu.sm_clock_mhz is None else f"{heat}; {gpu.sm_clock_mhz}{most} MHz"


def _xid(placement: Placement, device: Device) -> list[Finding]:
    gpu = device.gpu
    found = []
    for code in sorted(set(gpu.xid or ()) - {codes.KILLED_PROCESS}):
        xid = codes.xid(code)
        severity: Severity = "info"
        if xid.fault == "device":
            severity = "warning" if xid.is_usable else "error"
        meaning = f" ({xid.meaning})" if code in codes.XIDS else ""
        message = f"{_with_ranks(placement, device)} reported XID {code}{meaning}: {xid.remedy}"
        id_ = f"xid-{code}-{gpu.index}"
        found.append(Finding(id_, severity, message, _ranks(placement, device), (gpu.index,)))
    return found


def _memory_errors(placement: Placement, device: Device) -> list[Finding]:
    if not device.gpu.remap_failed:
        return []
    message = (
        f"{_with_ranks(placement, device)} has no spare memory rows left: results may be wrong; "
        "replace the device"
    )
    where = (_ranks(placement, device), (device.index,))
    return [Finding(f"remap-{device.index}", "error", message, *where)]


def _somebody_else(placement: Placement, device: Device) -> list[Finding]:
    """Unrelated processes on the job's devices, if the driver's pids are known to match ours."""
    if not placement.seen or not device.is_listed:
        return []
    others = [process for process in device.others if _counts(process)]
    if not others:
        return []
    others.sort(key=lambda process: process.mem_used_bytes or 0, reverse=True)
    first = others[0]
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    held = size(sum(process.mem_used_bytes or 0 for process in others))
    message = (
        f"{_describe(first)}{more}, not part of this job, {'use' if more else 'uses'} {held} on "
        f"{_with_ranks(placement, device)}, leaving less memory and compute time for the job"
    )
    ranks = _ranks(placement, device)
    id_ = f"other-process-{device.index}"
    return [Finding(id_, "warning", message, ranks, (device.index,), hold_s=5.0)]


def _counts(process: GpuProcess) -> bool:
    if process.mem_used_bytes is None or process.mem_used_bytes < OTHERS_BYTES:
        return False
    if process.command is None:  # not in this pid namespace
        return False
    return "nvidia-cuda-mps" not in process.command


def _describe(process: GpuProcess) -> str:
    command = (process.command or "").strip()
    words = [process.user, command[:60].rstrip() + ("..." if len(command) > 60 else "")]
    known = ", ".join(word for word in words if word)
    return f"pid {process.pid}" + (f" ({known})" if known else "")


def _ranks(placement: Placement, device: Device) -> tuple[int, ...]:
    there = placement.owners(device) or list(device.memory)
    if not there and not placement.seen:  # assumed only from the order of devices
        there = [rank.rank for rank in placement.ranks if is_own(rank, device.gpu)]
    return tuple(sorted(there))


def _with_ranks(placement: Placement, device: Device) -> str:
    """`GPU 3 (rank 3)`."""
    ranks: Sequence[int] = _ranks(placement, device)
    return f"GPU {device.index}" + (f" ({name_ranks(ranks)})" if ranks else "")
