"""Named findings: how a job's ranks sit on its devices, and what is wrong with that.

Pure functions over joined samples (see `rank_devices.join`), for ddptop's own jobs and for those
that it did not start. What is not known makes no finding.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ddptop_runner.base.units import name_gpus, name_ranks, size, span
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance import device_findings
from ddptop_runner.judge.balance.findings_help import explain
from ddptop_runner.judge.balance.placement import Device, Placement, median, sizes
from ddptop_runner.model.devices import GpuSample
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.model.words import Severity

__all__ = ["explain", "find"]

CONTEXT_BYTES = 100 * 1024**2
"""The least memory that is taken for a CUDA context."""

LARGEST_STRAY = 0.75
"""A stray context holds less than this share of what its rank holds on its own device; a rank
that holds more there works on both."""

FULLER = 1.2
"""The first device of a DataParallel holds this much more than the others ..."""
FULLER_BYTES = 512 * 1024**2
"""... and at least so much more."""
EVEN = 1.25
"""Replicas differ by less than this factor."""
TOGETHER_PERCENT = 110.0
"""Devices that take turns, as stages of a model do, reach 100 % together and no more."""

IDLE_PERCENT = 1.0
BUSY_PERCENT = 50.0
WORKING_POWER = 0.4
"""Of the limit: more than a device draws that only waits for others."""


def find(
    ranks: Sequence[RankSample], gpus: Sequence[GpuSample], job: str, *, given: bool = True
) -> list[Finding]:
    """What is wrong with the job's balance and devices, worst first.

    Each finding says for how long it has to hold before it is shown (`hold_s`): see AlertBook.

    Args:
        ranks: the job's ranks on this host, joined with their devices.
        gpus: the job's devices; each process of the job carries `job` (and its rank, where it has
            one), so that any other is somebody else's.
        job: the job's name, as in `GpuProcess.job`.
        given: whether `gpus` were given to the job (--gpus, CUDA_VISIBLE_DEVICES). False where
            they are only what it happens to see: then one that it leaves alone is no finding.
    """
    placement = Placement(ranks, gpus, job)
    found = [
        *_stray_contexts(placement),
        *_data_parallel(placement),
        *(_unused(placement) if given else ()),
        *_nothing_on_a_device(placement),
        *_idle_device(placement),
        *device_findings.find(placement),
    ]
    order = ("error", "warning", "info")
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _stray_contexts(placement: Placement) -> list[Finding]:
    """Ranks that hold a little on the device on which another rank works."""
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
        total = f" ({size(sum(strays.values()))} in total)" if len(strays) > 1 else ""
        message = (
            f"{_with_pid(placement, list(strays))} {'use' if len(strays) > 1 else 'uses'} "
            f"{sizes(list(strays.values()))}{total} on GPU {device.index}, which belongs "
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


def _data_parallel(placement: Placement) -> list[Finding]:
    """The only rank, one process, works on several devices, and gathers on the first."""
    if len(placement.ranks) != 1 or not placement.complete:
        return []
    rank = placement.ranks[0].rank
    pid, on = _widest_process(placement.held(rank), rank)
    if pid is None or len(on) < 2:
        return []
    memory = [_memory_of(device, pid) for device in on]
    util = [device.gpu.util_percent for device in on]
    known = [used for used in memory if used is not None]
    busy = [percent for percent in util if percent is not None]
    if len(known) < len(on) or len(busy) < len(on):
        return []
    first = known.index(max(known))
    rest = [used for place, used in enumerate(known) if place != first]
    usual = statistics.median(rest)
    fuller = known[first] >= FULLER * usual and known[first] - usual >= FULLER_BYTES
    together = sum(busy) > TOGETHER_PERCENT and min(busy) > IDLE_PERCENT
    if not (fuller and together and max(rest) <= EVEN * min(rest)):
        return []
    gpus = tuple(device.index for device in on)
    message = (
        f"one process (pid {pid}) uses {name_gpus(gpus)}, with {size(known[first])} on GPU "
        f"{on[first].index} and {size(usual)} on each of the others: this looks like "
        "torch.nn.DataParallel, which copies the model and gathers all outputs on the first GPU at "
        "every step; DistributedDataParallel with one process per GPU avoids both "
        f"(--nproc {len(on)})"
    )
    return [Finding("data-parallel", "warning", message, (rank,), gpus, hold_s=30.0)]


def _widest_process(held: Sequence[Device], rank: int) -> tuple[int | None, list[Device]]:
    """The rank's process that is on most devices, and those."""
    by_pid: dict[int, list[Device]] = {}
    for device in held:
        for process in device.of_job:
            if process.rank == rank:
                by_pid.setdefault(process.pid, []).append(device)
    if not by_pid:
        return None, []
    return max(by_pid.items(), key=lambda item: len(item[1]))


def _memory_of(device: Device, pid: int) -> int | None:
    return next(process.mem_used_bytes for process in device.of_job if process.pid == pid)


def _unused(placement: Placement) -> list[Finding]:
    """Devices of the job on which it has nothing, once each rank is at work elsewhere."""
    if not placement.complete or not all(placement.held(rank.rank) for rank in placement.ranks):
        return []
    if not (placement.stepping or placement.at_work):
        return []
    unused = [
        device
        for device in placement.devices
        if device.told
        and not device.of_job
        and (device.others or (device.gpu.util_percent or 0.0) <= IDLE_PERCENT)
    ]
    if not unused:
        return []
    gpus = tuple(device.index for device in unused)
    message = (
        f"{name_gpus(gpus)} {'are' if len(gpus) > 1 else 'is'} assigned to the job, but no rank "
        f"uses {'them' if len(gpus) > 1 else 'it'}{_lying_idle(unused)}: {_why_unused(placement)}"
    )
    hold_s = 20.0 if placement.stepping else 60.0
    return [Finding("unused-gpu", "warning", message, (), gpus, hold_s)]


def _lying_idle(unused: Sequence[Device]) -> str:
    totals = [device.gpu.mem_total_bytes for device in unused if not device.others]
    known = [total for total in totals if total is not None]
    return f" ({size(sum(known))} of memory idle)" if len(known) == len(unused) else ""


def _why_unused(placement: Placement) -> str:
    number, devices = len(placement.ranks), len(placement.devices)
    shared = [device for device in placement.devices if len(device.memory) > 1]
    if shared and number >= devices:
        fullest = max(shared, key=lambda device: len(device.memory))
        return (
            f"{name_ranks(list(fullest.memory))} are all on GPU {fullest.index}: is "
            "torch.cuda.set_device(local_rank) missing, or .cuda() used instead of .to(device)?"
        )
    used = span(device.index for device in placement.devices if device.memory)
    if number == 1:
        return (
            f"the only rank uses GPU{'s' if ',' in used or '-' in used else ''} {used}; pass "
            f"fewer GPUs (--gpus) or start one rank per GPU (--nproc {devices})"
        )
    return (
        f"{number} ranks for {devices} GPUs; pass fewer GPUs (--gpus) or start more ranks (--nproc)"
    )


def _nothing_on_a_device(placement: Placement) -> list[Finding]:
    """Ranks without any context, while most ranks have one."""
    if not all(device.told for device in placement.devices):
        return []
    without = [rank for rank in placement.ranks if not placement.held(rank.rank)]
    holding = [rank.rank for rank in placement.ranks if placement.held(rank.rank)]
    if not without or len(without) >= len(holding):
        return []
    if not (placement.stepping or placement.at_work):
        return []
    numbers = tuple(rank.rank for rank in without if rank.pid is not None)
    if not numbers:
        return []
    several = len(numbers) > 1
    message = (
        f"{_with_pid(placement, numbers)} {'are' if several else 'is'} not using any of the "
        f"job's GPUs, but {name_ranks(holding)} {'are' if len(holding) > 1 else 'is'}: "
        f"{'are they' if several else 'is it'} training on the CPU? Check how the script chooses "
        "its device, torch.cuda.is_available(), and CUDA_VISIBLE_DEVICES"
    )
    hold_s = 20.0 if placement.stepping else 180.0
    return [Finding("no-gpu-work", "warning", message, numbers, (), hold_s)]


def _idle_device(placement: Placement) -> list[Finding]:
    """A rank whose own device does nothing while those of the others compute.

    Others that only wait (for a checkpoint or an evaluation of one rank) read full utilization as
    well: so the rank has to step meanwhile, or the others have to draw the power of work.
    """
    own: dict[int, GpuSample] = {}
    for rank in placement.ranks:
        device = placement.own(rank.rank)
        if device is not None and device.alone(rank.rank):
            own[rank.rank] = device.gpu
    idle: dict[int, GpuSample] = {}
    steps = True
    for rank in placement.ranks:
        gpu = own.get(rank.rank)
        if gpu is None or gpu.util_percent is None or gpu.util_percent > IDLE_PERCENT:
            continue
        others = [other for number, other in own.items() if number != rank.rank]
        usual = median(other.util_percent for other in others)
        if usual is None or usual < BUSY_PERCENT:
            continue
        if rank.steps_per_s or _others_compute(placement, others):
            idle[rank.rank] = gpu
            steps = steps and bool(rank.steps_per_s)
    if not idle:
        return []
    ranks, gpus = tuple(idle), tuple(gpu.index for gpu in idle.values())
    several = len(ranks) > 1
    usual = median(gpu.util_percent for rank, gpu in own.items() if rank not in idle) or 0.0
    reason = (
        "computing elsewhere (its steps continue); is .to(device) missing for the model or batch?"
    )
    if not steps:
        reason = "idle or waiting on the CPU (see its stack)"
    message = (
        f"{name_gpus(gpus)} {'are' if several else 'is'} at 0% utilization while the "
        f"others' median is {usual:.0f}%: {_with_pid(placement, ranks)} "
        f"{'are' if several else 'is'} {reason}"
    )
    severity: Severity = "warning" if steps else "info"
    hold_s = 60.0 if steps else 120.0
    return [Finding("idle-gpu", severity, message, ranks, gpus, hold_s)]


def _others_compute(placement: Placement, others: Sequence[GpuSample]) -> bool:
    if any(rank.step is not None for rank in placement.ranks):
        return False  # where steps are known they tell, and power need not
    if len(others) < 2:
        return False  # a single other one may evaluate while this rank waits for it
    power = median(
        gpu.power_w / gpu.power_limit_w
        for gpu in others
        if gpu.power_w is not None and gpu.power_limit_w
    )
    return power is not None and power >= WORKING_POWER


def _with_pid(placement: Placement, ranks: Sequence[int]) -> str:
    """`ranks 1-7`, `rank 1 (pid 4242)`."""
    if len(ranks) > 1:
        return name_ranks(ranks)
    pid = next((rank.pid for rank in placement.ranks if rank.rank == ranks[0]), None)
    return name_ranks(ranks) + (f" (pid {pid})" if pid is not None else "")
