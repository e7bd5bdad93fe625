"""Findings about the devices themselves, next to the ranks that they slow down or endanger."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ddptop_runner.base.units import name_gpus, name_ranks, size
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.placement import Device, Placement, median
from ddptop_runner.model.devices import GpuProcess, GpuSample
from ddptop_runner.model.words import Severity

HELD_BACK = frozenset({"hardware slowdown", "thermal, by hardware", "power brake"})
"""Reasons for lower clocks that no healthy device gives under load."""
WARM = "thermal, by software"
"""Usual on a well used device; a finding where the job's others run faster."""
SLOWER = 0.9
"""Of the others' median clock."""

OTHERS_BYTES = 256 * 1024**2
"""The least memory of somebody else that is worth a word."""

XID_OF_A_KILLED_PROCESS = 45
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 44, 63, 68, 69})
"""Faults of a program on the device, and rows that were remapped as they should."""
XIDS_OF_DEVICES = frozenset({48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 121, 136, 140, 143, 154})
"""After these the device or its link needs a reset or a technician."""


def find(placement: Placement) -> list[Finding]:
    """What is wrong with the job's devices. `hold_s` of each is to be waited for."""
    found = _throttled(placement)
    for device in placement.devices:
        found += _xid(placement, device)
        found += _memory_errors(placement, device)
        found += _somebody_else(placement, device)
    return found


def _throttled(placement: Placement) -> list[Finding]:
    found: list[tuple[Device, str]] = []
    for device in placement.devices:
        gpu = device.gpu
        reasons = set(gpu.throttle_reasons or ())
        if gpu.lost or (gpu.util_percent or 0) < 10:
            continue
        held_back = sorted(reasons & HELD_BACK)
        if WARM in reasons and _slower_than_others(placement, gpu):
            held_back.append(WARM)
        if held_back:
            found.append((device, ", ".join(held_back)))
    if not found:
        return []
    gpus = tuple(device.index for device, _ in found)
    ranks = tuple(sorted({rank for device, _ in found for rank in _ranks(placement, device)}))
    device, reason = min(found, key=lambda item: item[0].gpu.sm_clock_mhz or math.inf)
    figures = [reason, *_heat_and_clock(device.gpu)]
    which = f"GPU {device.index}: " if len(found) > 1 else ""
    whose = f" ({name_ranks(ranks)})" if ranks else ""
    wait = ": every rank waits for the slowest one" if len(placement.ranks) > 1 else ""
    message = (
        f"{name_gpus(gpus)}{whose} {'are' if len(gpus) > 1 else 'is'} running at reduced "
        f"clocks ({which}{'; '.join(figures)}){wait}; check cooling and the power supply"
    )
    return [Finding("throttled", "warning", message, ranks, gpus, hold_s=20.0)]


def _slower_than_others(placement: Placement, gpu: GpuSample) -> bool:
    others = [device.gpu.sm_clock_mhz for device in placement.devices if device.gpu is not gpu]
    usual = median(others)
    return usual is not None and gpu.sm_clock_mhz is not None and gpu.sm_clock_mhz < SLOWER * usual


def _heat_and_clock(gpu: GpuSample) -> list[str]:
    figures = []
    if gpu.temperature_c is not None:
        figures.append(f"{gpu.temperature_c:.0f} °C")
    if gpu.sm_clock_mhz is not None:
        most = f" of {gpu.sm_clock_max_mhz}" if gpu.sm_clock_max_mhz is not None else ""
        figures.append(f"{gpu.sm_clock_mhz}{most} MHz")
    return figures


def _xid(placement: Placement, device: Device) -> list[Finding]:
    gpu = device.gpu
    meanings = dict(zip(gpu.xid or (), gpu.xid_meanings or (), strict=False))
    found = []
    for code in sorted(set(gpu.xid or ()) - {XID_OF_A_KILLED_PROCESS}):
        severity: Severity = "warning"
        if code in XIDS_OF_DEVICES:
            severity = "error"
        elif code in XIDS_OF_PROGRAMS:
            severity = "info"
        meaning = f" ({meanings[code]})" if meanings.get(code) else ""
        message = f"{_with_ranks(placement, device)} reported XID {code}{meaning}"
        if severity == "error":
            message += ": reset or check the device (nvidia-smi -q, dmesg)"
        id_ = f"xid-{code}-{gpu.index}"
        found.append(Finding(id_, severity, message, _ranks(placement, device), (gpu.index,)))
    return found


def _memory_errors(placement: Placement, device: Device) -> list[Finding]:
    gpu, ranks = device.gpu, _ranks(placement, device)
    who = _with_ranks(placement, device)
    found = []
    if gpu.remap_failed:
        message = f"{who} has no spare memory rows left: results may be wrong; replace the device"
        found.append(Finding(f"remap-{gpu.index}", "error", message, ranks, (gpu.index,)))
    if gpu.ecc_uncorrected:
        message = (
            f"{who} has had {gpu.ecc_uncorrected} uncorrectable memory "
            f"error{'s' if gpu.ecc_uncorrected > 1 else ''} since the driver was loaded"
        )
        if gpu.remap_pending:
            message += "; reset the device to remap the memory row"
        found.append(Finding(f"ecc-{gpu.index}", "info", message, ranks, (gpu.index,)))
    return found


def _somebody_else(placement: Placement, device: Device) -> list[Finding]:
    """Processes that are not the job's, where the driver's pids are known to be ours."""
    if not placement.seen or not device.told:
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
    if process.command is None:  # nobody of this pid namespace
        return False
    return "nvidia-cuda-mps" not in process.command


def _describe(process: GpuProcess) -> str:
    command = (process.command or "").strip()
    words = [process.user, command[:60].rstrip() + ("..." if len(command) > 60 else "")]
    known = ", ".join(word for word in words if word)
    return f"pid {process.pid}" + (f" ({known})" if known else "")


def _ranks(placement: Placement, device: Device) -> tuple[int, ...]:
    there = placement.owners(device) or list(device.memory)
    if not there and not placement.seen:  # by the order of the devices alone
        there = [rank.rank for rank in placement.ranks if rank.gpu == device.index]
    return tuple(sorted(there))


def _with_ranks(placement: Placement, device: Device) -> str:
    """`GPU 3 (rank 3)`."""
    ranks: Sequence[int] = _ranks(placement, device)
    return f"GPU {device.index}" + (f" ({name_ranks(ranks)})" if ranks else "")
