"""The compute processes of a device, with their owners and their share of its time."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ddptop_runner.devices import words
from ddptop_runner.devices.nvml_calls import compute_processes, process_samples
from ddptop_runner.devices.nvml_figures import Query
from ddptop_runner.devices.nvml_queries import Gpu, ask
from ddptop_runner.devices.owners import ProcessOwners
from ddptop_runner.devices.words import Why
from ddptop_runner.model.devices import GpuProcess

SAMPLES_OF_US = 1_000_000
"""Processes' shares are asked for the last second; what is older is not used."""

_V3: Query = ("nvmlDeviceGetComputeRunningProcesses_v3",)
_V2: Query = ("nvmlDeviceGetComputeRunningProcesses_v2",)
_V1: Query = ("nvmlDeviceGetComputeRunningProcesses",)
_SAMPLES: Query = ("nvmlDeviceGetProcessUtilization",)


def process_queries(driver: str | None) -> tuple[Query, ...]:
    """How to ask for compute processes, best first.

    Drivers 535.43 to 535.97 answer version 3 in a layout of their own, which would be misread.
    """
    try:
        major, minor = (int(part) for part in (driver or "").split(".")[:2])
    except ValueError:
        return (_V3, _V2, _V1)
    if major == 535 and 43 <= minor < 98:
        return (_V2, _V1)
    return (_V3, _V2, _V1)


def read_processes(gpu: Gpu, queries: Iterable[Query], owners: ProcessOwners) -> None:
    """Ask for the compute processes, as `process_queries` says. Raises LostError."""
    answer = ask(gpu, queries, compute_processes)
    for name in ("mem_used_bytes", "sm_util_percent"):
        gpu.unknown.pop(f"processes.{name}", None)
    if isinstance(answer, Why):
        gpu.put(["processes"], [answer])
        return
    mem_by_pid: dict[int, int | None] = {}
    for pid, mem in answer:
        if pid:
            # a pid seen from a container may come without its memory, which then reads 0
            mem_by_pid[pid] = _add(mem_by_pid.get(pid), mem or None)
    shares = _shares(gpu, owners) if mem_by_pid else {}
    if isinstance(shares, Why):
        gpu.unknown["processes.sm_util_percent"] = shares
        shares = {}
    elif any(pid not in shares for pid in mem_by_pid):
        gpu.unknown["processes.sm_util_percent"] = words.NO_SAMPLE
    if any(mem is None for mem in mem_by_pid.values()):
        gpu.unknown["processes.mem_used_bytes"] = words.PROCESS_MEMORY
    processes = []
    for pid, mem in sorted(mem_by_pid.items()):
        owner = owners.describe(pid)
        processes.append(
            GpuProcess(
                pid=pid,
                user=owner.user,
                command=owner.command,
                mem_used_bytes=mem,
                sm_util_percent=shares.get(pid),
                note=owner.note,
            )
        )
    gpu.put(["processes"], [processes])


def _shares(gpu: Gpu, owners: ProcessOwners) -> dict[int, float] | Why:
    """SM share by pid, of the processes that the driver has a recent sample of."""
    if gpu.parent_uuid is not None:
        return words.MIG_INSTANCE
    if not owners.pids_are_the_drivers:
        return words.HOST_PIDS
    since_us = time.time_ns() // 1000 - SAMPLES_OF_US
    samples = ask(gpu, (_SAMPLES,), lambda handle, _: process_samples(handle, since_us))
    return samples if isinstance(samples, Why) else latest_shares(samples, since_us)


def latest_shares(samples: Iterable[tuple[int, int, int]], since_us: int) -> dict[int, float]:
    """SM share by pid, from (pid, time in µs, percent): the latest of each, if it can be true.

    Drivers also return samples from before `since_us` and shares above 100 %.
    """
    latest: dict[int, tuple[int, int]] = {}
    for pid, at_us, percent in samples:
        if pid and at_us >= since_us and percent <= 100:
            latest[pid] = max(latest.get(pid, (0, 0)), (at_us, percent))
    return {pid: float(percent) for pid, (_, percent) in latest.items()}


def _add(known: int | None, more: int | None) -> int | None:
    return more if known is None else known + (more or 0)
