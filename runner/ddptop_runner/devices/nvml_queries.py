"""What is asked of one NVIDIA device, and what is kept of the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pynvml

from ddptop_runner import procs
from ddptop_runner.devices.owners import ProcessOwners
from ddptop_runner.devices.words import throttle_words
from ddptop_runner.model import GpuProcess, GpuSample

_SILENT_TICKS = 2
"""A device that answers none of its fast queries this many times running counts as lost."""

Query = tuple[Any, ...]
"""Name of a pynvml function, and its arguments after the handle."""

_UTILIZATION: tuple[Query, ...] = (("nvmlDeviceGetUtilizationRates",),)
_MEMORY: tuple[Query, ...] = (
    ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2),
    ("nvmlDeviceGetMemoryInfo",),
)
_POWER: tuple[Query, ...] = (("nvmlDeviceGetPowerUsage",),)
_TEMPERATURE: tuple[Query, ...] = (
    ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
    ("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU),
)
_SM_CLOCK: tuple[Query, ...] = (("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),)
_REASONS: tuple[Query, ...] = (
    ("nvmlDeviceGetCurrentClocksEventReasons",),
    ("nvmlDeviceGetCurrentClocksThrottleReasons",),
)
_POWER_LIMIT: tuple[Query, ...] = (
    ("nvmlDeviceGetEnforcedPowerLimit",),
    ("nvmlDeviceGetPowerManagementLimit",),
)
_ECC: tuple[Query, ...] = (
    (
        "nvmlDeviceGetTotalEccErrors",
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    ),
)
_PROCESSES_V3: Query = ("nvmlDeviceGetComputeRunningProcesses_v3",)
_PROCESSES_V2: Query = ("nvmlDeviceGetComputeRunningProcesses_v2",)

_NEVER = {  # a query that ends so will end so each time: it is not asked again
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}
GONE = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN}


class LostError(Exception):
    """The device fell off the bus: its handle must not be used again."""


@dataclasses.dataclass
class Gpu:
    """One device: its identity, its handle while it is there, and its latest figures."""

    index: int
    uuid: str | None
    handle: Any | None
    name: str | None = None
    mem_total_bytes: int | None = None
    """Of the latest answer: it stays known when the device is lost."""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    xids: list[int] = dataclasses.field(default_factory=list)
    xids_known: bool = False
    unsupported: set[Query] = dataclasses.field(default_factory=set)
    silent_ticks: int = 0

    def lose(self) -> None:
        """Forget the handle, and the figures that are no longer known."""
        self.handle = None
        self.figures.clear()
        self.unsupported.clear()
        self.silent_ticks = 0

    def sample(self) -> GpuSample:
        """What is known of the device."""
        return GpuSample(
            index=self.index,
            uuid=self.uuid,
            host=procs.host_name(),
            name=self.name,
            mem_total_bytes=self.mem_total_bytes,
            xid=list(self.xids) if self.xids_known else None,
            lost=self.handle is None,
            **self.figures,
        )


def process_queries(driver: str | None) -> tuple[Query, ...]:
    """How to ask for compute processes, best first.

    Drivers 535.43 to 535.97 answer version 3 in a layout of their own, which would be misread.
    """
    try:
        major, minor = (int(part) for part in (driver or "").split(".")[:2])
    except ValueError:
        return (_PROCESSES_V3, _PROCESSES_V2)
    if major == 535 and 43 <= minor < 98:
        return (_PROCESSES_V2,)
    return (_PROCESSES_V3, _PROCESSES_V2)


def _ask(gpu: Gpu, queries: Iterable[Query]) -> Any | None:
    """The first answer of the queries that this device supports; None when there is none."""
    for query in queries:
        if query in gpu.unsupported:
            continue
        function = getattr(pynvml, query[0], None)
        try:
            if function is not None:
                return function(gpu.handle, *query[1:])
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise LostError from error
            if error.value not in _NEVER:
                return None
        except UnicodeDecodeError:  # NVML can answer with bytes that are no text
            return None
        gpu.unsupported.add(query)
    return None


def read_fast(gpu: Gpu) -> None:
    """Ask for what changes each second. All reads raise LostError when the device is gone."""
    rates = _ask(gpu, _UTILIZATION)
    memory = _ask(gpu, _MEMORY)
    milliwatts = _ask(gpu, _POWER)
    asked = {*_UTILIZATION, *_MEMORY, *_POWER} - gpu.unsupported
    answered = not asked or any(answer is not None for answer in (rates, memory, milliwatts))
    gpu.silent_ticks = 0 if answered else gpu.silent_ticks + 1
    if gpu.silent_ticks >= _SILENT_TICKS:
        raise LostError
    if memory is not None and memory.total:
        gpu.mem_total_bytes = int(memory.total)
    else:  # memory shared with the host reads a total of 0
        memory = None
    gpu.figures.update(
        util_percent=None if rates is None else _percent(rates.gpu),
        mem_util_percent=None if rates is None else _percent(rates.memory),
        mem_used_bytes=None if memory is None else int(memory.used),
        mem_reserved_bytes=getattr(memory, "reserved", None),
        power_w=None if milliwatts is None else milliwatts / 1000,
    )


def read_slow(gpu: Gpu) -> None:
    """Ask for what changes in seconds."""
    temperature = _ask(gpu, _TEMPERATURE)
    mask = _ask(gpu, _REASONS)
    gpu.figures.update(
        temperature_c=None if temperature is None else float(temperature),
        sm_clock_mhz=_ask(gpu, _SM_CLOCK),
        throttle_reasons=None if mask is None else throttle_words(mask),
    )


def read_rare(gpu: Gpu) -> None:
    """Ask for what hardly ever changes."""
    limit = _ask(gpu, _POWER_LIMIT)
    gpu.figures.update(
        power_limit_w=None if limit is None else limit / 1000,
        ecc_uncorrected=_ask(gpu, _ECC),
    )


def read_processes(gpu: Gpu, queries: Iterable[Query], owners: ProcessOwners) -> None:
    """Ask for the compute processes, as `process_queries` says."""
    infos = _ask(gpu, queries)
    if infos is None:
        gpu.figures["processes"] = None
        return
    mem_by_pid: dict[int, int | None] = {}
    for info in infos:
        if info.pid:
            # a pid seen from a container may come without its memory, which then reads 0
            mem = _add(mem_by_pid.get(info.pid), info.usedGpuMemory or None)
            mem_by_pid[info.pid] = mem
    processes = []
    for pid, mem in sorted(mem_by_pid.items()):
        user, command = owners.describe(pid)
        processes.append(GpuProcess(pid=pid, user=user, command=command, mem_used_bytes=mem))
    gpu.figures["processes"] = processes


def identify(gpu: Gpu) -> None:
    """Read what never changes."""
    gpu.uuid = gpu.uuid or _ask(gpu, (("nvmlDeviceGetUUID",),))
    gpu.name = gpu.name or _ask(gpu, (("nvmlDeviceGetName",),))


def _percent(value: int) -> float | None:
    return float(value) if 0 <= value <= 100 else None


def _add(known: int | None, more: int | None) -> int | None:
    return more if known is None else known + (more or 0)
