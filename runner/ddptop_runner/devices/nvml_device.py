"""One device: which NVML queries it is sent, and how their results become metrics.

A query that a device does not support is sent once. An unknown metric has its reason in
`Gpu.unknown`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import msgspec
import pynvml

from ddptop_runner.devices import codes, words
from ddptop_runner.devices.owners import ProcessOwners
from ddptop_runner.devices.report import FIXED_METRICS, NEVER_UNKNOWN
from ddptop_runner.devices.words import Why, why_not
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import GpuSample

Query = tuple[Any, ...]
"""A function or the name of one of pynvml, and its arguments after the handle."""

METRICS = tuple(name for name in GpuSample.__struct_fields__ if name not in NEVER_UNKNOWN)
"""Fields of GpuSample that have a reason in `unknown` if they are None."""

_PSTATES = range(16)
_NO_NUMBER = 0xFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE as an unsigned number."""


class Metric(NamedTuple):
    """One query to a device."""

    fields: tuple[str, ...]
    queries: tuple[Query, ...]
    values: Callable[[Any], Any]
    """The value of the field in the result, or a tuple with one for each; each may be a `Why`."""


def _metric(field: str, values: Callable[[Any], Any], *queries: Query) -> Metric:
    """A query for one field, with functions that replace it in other drivers."""
    return Metric((field,), queries, values)


def _number(value: int) -> Any:
    return words.NOT_SUPPORTED if value == _NO_NUMBER else int(value)


def _thousandth(value: int) -> Any:
    return words.NOT_SUPPORTED if value == _NO_NUMBER else value / 1000


def _percent(value: int) -> Any:
    return float(value) if 0 <= value <= 100 else words.OUT_OF_RANGE


def _memory(memory: Any) -> tuple[Any, ...]:
    if not memory.total:
        return (words.HOST_MEMORY,) * 3
    reserved = getattr(memory, "reserved", words.IN_TOTAL)
    return int(memory.used), int(memory.total), reserved


def _remapped(answer: Any) -> tuple[Any, ...]:
    correctable, uncorrectable, pending, failed = answer
    return int(correctable) + int(uncorrectable), bool(pending), bool(failed)


def _bus_id(info: Any) -> str:
    text = info.busId
    return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)


_MEMORY = Metric(
    ("mem_used_bytes", "mem_total_bytes", "mem_reserved_bytes"),
    (("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",)),
    _memory,
)
FAST = (
    Metric(
        ("util_percent", "mem_util_percent"),
        (("nvmlDeviceGetUtilizationRates",),),
        lambda rates: (_percent(rates.gpu), _percent(rates.memory)),
    ),
    _MEMORY,
    _metric("power_w", _thousandth, ("nvmlDeviceGetPowerUsage",)),
)
MIG = (_MEMORY,)
MIG_METRICS = ("uuid", "name", *_MEMORY.fields, "processes")

SLOW = (
    _metric(
        "temperature_c",
        _number,
        ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        ("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU),
    ),
    _metric("sm_clock_mhz", _number, ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
    _metric("mem_clock_mhz", _number, ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
    _metric(
        "throttle_reasons",
        codes.throttle_names,
        ("nvmlDeviceGetCurrentClocksEventReasons",),
        ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    ),
    _metric(
        "pstate",
        lambda state: state if state in _PSTATES else words.OUT_OF_RANGE,
        ("nvmlDeviceGetPerformanceState",),
    ),
    _metric("fan_percent", _number, ("nvmlDeviceGetFanSpeed",)),
)
_ECC = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
RARE = (
    _metric(
        "power_limit_w",
        _thousandth,
        ("nvmlDeviceGetEnforcedPowerLimit",),
        ("nvmlDeviceGetPowerManagementLimit",),
    ),
    _metric("ecc_uncorrected", int, ("nvmlDeviceGetTotalEccErrors", *_ECC)),
    Metric(
        ("remapped_rows", "remap_pending", "remap_failed"),
        (("nvmlDeviceGetRemappedRows",),),
        _remapped,
    ),
    _metric("energy_j", _thousandth, ("nvmlDeviceGetTotalEnergyConsumption",)),
)
FIXED_OF_ALL = (_metric("name", str, ("nvmlDeviceGetName",)),)
FIXED = (
    *FIXED_OF_ALL,
    _metric("pci_bus_id", _bus_id, ("nvmlDeviceGetPciInfo",)),
    _metric(
        "temperature_slowdown_c",
        _number,
        ("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    ),
    _metric("sm_clock_max_mhz", _number, ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)),
)


_SILENT_TICKS = 2
"""A device that answers none of its frequent queries this many times in a row counts as lost."""

_NEVER = {  # a query that fails this way will always fail, so it is not repeated
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}


class LostError(Exception):
    """The device fell off the bus; its handle must not be used again."""

    def __init__(self, status: int | None = None) -> None:
        super().__init__(status)
        self.status = status
        """What NVML returned; None if it stopped answering."""


class Gpu:
    """A device or MIG instance: its handle while it is present, and its latest metrics."""

    def __init__(
        self,
        index: int,
        handle: Any | None = None,
        uuid: str | None = None,
        parent_uuid: str | None = None,
    ) -> None:
        """`parent_uuid` is the UUID of the device that a MIG instance is part of."""
        self.index, self.handle = index, handle
        self.uuid, self.parent_uuid = uuid, parent_uuid
        self.mig_mode = False
        self.mig_instances: list[str] = []
        self.metrics: dict[str, Any] = {}
        self.unknown: dict[str, Why] = {}
        self.xids: list[int] = []
        self.why_no_xids: Why | None = words.NOT_READ
        self.unsupported: dict[Query, Why] = {}
        self.silent_ticks = 0
        self.trouble: str | None = None
        """What is wrong with a device without a handle, and the remedy."""

    def lose(self, trouble: str) -> None:
        """Discard the handle, and the metrics that are no longer known."""
        self.handle, self.trouble = None, trouble
        self.metrics = {name: self.metrics.get(name) for name in FIXED_METRICS}
        self.unknown.clear()
        self.unsupported.clear()
        self.silent_ticks = 0

    def put(self, fields: Iterable[str], values: Iterable[Any]) -> None:
        """Store the values; a value that is a reason becomes None with that reason."""
        for field, value in zip(fields, values, strict=True):
            if isinstance(value, Why):
                self.metrics[field] = None
                self.unknown[field] = value
            else:
                self.metrics[field] = value
                self.unknown.pop(field, None)

    def sample(self) -> GpuSample:
        """What is known about the device."""
        can_report = self.why_no_xids is None or bool(self.xids)
        known = {
            **self.metrics,
            "uuid": self.uuid,
            "xid": list(self.xids) if can_report else None,
            "xid_meanings": [codes.xid(code).meaning for code in self.xids] if can_report else None,
        }
        lost = self.handle is None
        unknown: dict[str, str] = {
            name: words.LOST if lost else str(self._why(name))
            for name in METRICS
            if known.get(name) is None
        }
        if not lost:
            unknown.update((name, str(why)) for name, why in self.unknown.items() if "." in name)
        return GpuSample(
            index=self.index,
            host=procs.host_name(),
            parent_uuid=self.parent_uuid,
            mig_instances=list(self.mig_instances),
            mig_mode=self.mig_mode,
            lost=lost,
            note=self._note(),
            unknown=unknown,
            **known,
        )

    def _why(self, name: str) -> Why:
        if name.startswith("xid"):
            return self.why_no_xids or words.NOT_READ
        return self.unknown.get(name, words.NOT_READ)

    def _note(self) -> str | None:
        if self.handle is None:
            return self.trouble
        notes = []
        if self.metrics.get("remap_failed"):
            notes.append(words.REMAP_FAILED)
        if self.metrics.get("remap_pending"):
            notes.append(words.REMAP_PENDING)
        if self.mig_mode and not self.mig_instances:
            notes.append(words.NO_INSTANCES)
        return "; ".join(notes) or None


def ask(gpu: Gpu, queries: Iterable[Query]) -> Any:
    """The result of the first query that this device supports; otherwise a `Why`.

    Raises:
        LostError: the device is gone.
    """
    why: Why | None = None
    for query in queries:
        function: Any = query[0] if callable(query[0]) else getattr(pynvml, query[0], None)
        known = words.OLDER_PYNVML if function is None else gpu.unsupported.get(query)
        if known is None:
            try:
                return function(gpu.handle, *query[1:])
            except pynvml.NVMLError as error:
                status = error.value
            except UnicodeDecodeError:  # NVML can return bytes that are not valid text
                return words.NOT_TEXT
            if status in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED):
                raise LostError(status)
            known = why_not(status)
            if status not in _NEVER:
                return known
        gpu.unsupported[query] = known
        if why in (None, words.OLDER_DRIVER, words.OLDER_PYNVML):  # says nothing about the device
            why = known
    return why or words.NOT_SUPPORTED


def read(gpu: Gpu, metrics: Collection[Metric]) -> bool:
    """Run a query and store the results; returns whether it returned anything supported."""
    answered = asked = False
    for metric in metrics:
        answer = ask(gpu, metric.queries)
        if isinstance(answer, Why):
            gpu.put(metric.fields, (answer,) * len(metric.fields))
            asked = asked or any(query not in gpu.unsupported for query in metric.queries)
        else:
            values = metric.values(answer)
            gpu.put(metric.fields, values if isinstance(values, tuple) else (values,))
            answered = asked = True
    return answered or not asked


def read_fast(gpu: Gpu) -> None:
    """Read what changes every second. All reads raise LostError if the device is gone."""
    gpu.silent_ticks = (
        0 if read(gpu, FAST if gpu.parent_uuid is None else MIG) else (gpu.silent_ticks + 1)
    )
    if gpu.silent_ticks >= _SILENT_TICKS:
        raise LostError


def read_mig_mode(gpu: Gpu) -> None:
    """Read whether a whole device is partitioned; newer ones change that without a reset."""
    mode = ask(gpu, (("nvmlDeviceGetMigMode",),))
    if not isinstance(mode, Why):
        gpu.mig_mode = mode[0] == 1


def identify(gpu: Gpu) -> None:
    """Read what never changes."""
    if gpu.uuid is None:
        uuid = ask(gpu, (("nvmlDeviceGetUUID",),))
        gpu.unknown.pop("uuid", None)
        if isinstance(uuid, Why):
            gpu.unknown["uuid"] = uuid
        else:
            gpu.uuid = uuid
    read(gpu, FIXED_OF_ALL if gpu.parent_uuid else FIXED)
    if gpu.parent_uuid is None:
        read_mig_mode(gpu)
    else:
        unavailable = [name for name in METRICS if name not in MIG_METRICS]
        gpu.put(unavailable, [words.MIG_INSTANCE] * len(unavailable))
        gpu.why_no_xids = words.MIG_INSTANCE


SAMPLES_OF_US = 1_000_000
"""Utilization of processes is read for the last second; older samples are not used."""

_V3: Query = ("nvmlDeviceGetComputeRunningProcesses_v3",)
_V2: Query = ("nvmlDeviceGetComputeRunningProcesses_v2",)


def process_queries(driver: str | None) -> tuple[Query, ...]:
    """The functions that list compute processes, best first.

    Drivers 535.43 to 535.97 return version 3 in their own layout, which would be misread.
    """
    try:
        major, minor = (int(part) for part in (driver or "").split(".")[:2])
    except ValueError:
        return (_V3, _V2)
    if major == 535 and 43 <= minor < 98:
        return (_V2,)
    return (_V3, _V2)


def read_processes(gpu: Gpu, queries: Iterable[Query], owners: ProcessOwners) -> None:
    """Read the compute processes with `queries` from `process_queries`. Raises LostError."""
    answer = ask(gpu, queries)
    for name in ("mem_used_bytes", "sm_util_percent"):
        gpu.unknown.pop(f"processes.{name}", None)
    if isinstance(answer, Why):
        gpu.put(["processes"], [answer])
        return
    mem_by_pid: dict[int, int | None] = {}
    for process in answer:
        if process.pid:
            # in a container, a process can be listed without its memory, which then reads 0
            mem = process.usedGpuMemory or None
            mem_by_pid[process.pid] = _add(mem_by_pid.get(process.pid), mem)
    shares = _shares(gpu, owners) if mem_by_pid else {}
    if isinstance(shares, Why):
        gpu.unknown["processes.sm_util_percent"] = shares
        shares = {}
    elif any(pid not in shares for pid in mem_by_pid):
        gpu.unknown["processes.sm_util_percent"] = words.NO_SAMPLE
    if any(mem is None for mem in mem_by_pid.values()):
        gpu.unknown["processes.mem_used_bytes"] = words.PROCESS_MEMORY
    processes = [
        msgspec.structs.replace(
            owners.describe(pid), mem_used_bytes=mem, sm_util_percent=shares.get(pid)
        )
        for pid, mem in sorted(mem_by_pid.items())
    ]
    gpu.put(["processes"], [processes])


def _shares(gpu: Gpu, owners: ProcessOwners) -> Any:
    """SM utilization by PID, for the processes with a recent sample."""
    if gpu.parent_uuid is not None:
        return words.MIG_INSTANCE
    if not owners.pids_are_the_drivers:
        return words.HOST_PIDS
    return ask(gpu, (_SHARES,))


def latest_shares(samples: Iterable[tuple[int, int, int]], since_us: int) -> dict[int, float]:
    """SM utilization by PID, from (pid, time in µs, percent): the latest plausible value of each.

    Drivers also return samples from before `since_us` and values above 100%.
    """
    latest: dict[int, tuple[int, int]] = {}
    for pid, at_us, percent in samples:
        if pid and at_us >= since_us and percent <= 100:
            latest[pid] = max(latest.get(pid, (0, 0)), (at_us, percent))
    return {pid: float(percent) for pid, (_, percent) in latest.items()}


def _add(known: int | None, more: int | None) -> int | None:
    return more if known is None else known + (more or 0)


def process_shares(handle: Any) -> dict[int, float]:
    """SM utilization by PID, for the processes with a recent sample.

    Raises:
        pynvml.NVMLError: the driver returned an error.
    """
    since_us = time.time_ns() // 1000 - SAMPLES_OF_US
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        # no process ran: pynvml also raises if the driver returns an empty list
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):
            return {}
        raise
    return latest_shares([(one.pid, int(one.timeStamp), one.smUtil) for one in samples], since_us)


_SHARES: Query = (process_shares,)
