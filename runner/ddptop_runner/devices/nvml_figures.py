"""The figures of a device: the queries that tell them, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from ddptop_runner.devices import words
from ddptop_runner.devices.words import Why, throttle_words

Query = tuple[Any, ...]
"""Name of a pynvml function, and its arguments after the handle."""

FIGURES = (
    "uuid",
    "name",
    "pci_bus_id",
    "util_percent",
    "mem_util_percent",
    "mem_used_bytes",
    "mem_total_bytes",
    "mem_reserved_bytes",
    "temperature_c",
    "temperature_slowdown_c",
    "power_w",
    "power_limit_w",
    "energy_j",
    "sm_clock_mhz",
    "sm_clock_max_mhz",
    "mem_clock_mhz",
    "fan_percent",
    "pstate",
    "throttle_reasons",
    "ecc_uncorrected",
    "remapped_rows",
    "remap_pending",
    "remap_failed",
    "xid",
    "xid_meanings",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "processes",
)
"""Fields of GpuSample that have a reason in `unknown` where they are None."""

LINK_FIGURES = tuple(name for name in FIGURES if name.endswith("_per_s"))

KEPT = (
    "uuid",
    "name",
    "pci_bus_id",
    "mem_total_bytes",
    "temperature_slowdown_c",
    "sm_clock_max_mhz",
)
"""What stays known of a device that is lost."""

_PSTATES = range(16)
_NO_NUMBER = 0xFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE of an unsigned number."""


class Figure(NamedTuple):
    """One question to a device."""

    fields: tuple[str, ...]
    queries: tuple[Query, ...]
    values: Callable[[Any], tuple[Any, ...]]
    """The fields' values in the answer, each of which may be a `Why`."""


def _number(value: int) -> Any:
    return words.NOT_SUPPORTED if value == _NO_NUMBER else int(value)


def _float(value: int) -> tuple[Any, ...]:
    number = _number(value)
    return (number if isinstance(number, Why) else float(number),)


def _thousandth(value: int) -> tuple[Any, ...]:
    number = _number(value)
    return (number if isinstance(number, Why) else number / 1000,)


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


def _bus_id(info: Any) -> tuple[Any, ...]:
    text = info.busId
    return (text.decode("ascii", "replace") if isinstance(text, bytes) else str(text),)


_MEMORY = Figure(
    ("mem_used_bytes", "mem_total_bytes", "mem_reserved_bytes"),
    (("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo",)),
    _memory,
)
FAST = (
    Figure(
        ("util_percent", "mem_util_percent"),
        (("nvmlDeviceGetUtilizationRates",),),
        lambda rates: (_percent(rates.gpu), _percent(rates.memory)),
    ),
    _MEMORY,
    Figure(("power_w",), (("nvmlDeviceGetPowerUsage",),), _thousandth),
)
MIG = (_MEMORY,)
TOLD_OF_MIG = ("uuid", "name", *_MEMORY.fields, "processes")

SLOW = (
    Figure(
        ("temperature_c",),
        (
            ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
            ("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU),
        ),
        _float,
    ),
    Figure(
        ("sm_clock_mhz",),
        (("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),),
        lambda mhz: (_number(mhz),),
    ),
    Figure(
        ("mem_clock_mhz",),
        (("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),),
        lambda mhz: (_number(mhz),),
    ),
    Figure(
        ("throttle_reasons",),
        (
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        ),
        lambda mask: (throttle_words(mask),),
    ),
    Figure(
        ("pstate",),
        (("nvmlDeviceGetPerformanceState",),),
        lambda state: (state if state in _PSTATES else words.OUT_OF_RANGE,),
    ),
    Figure(("fan_percent",), (("nvmlDeviceGetFanSpeed",),), _float),
)
RARE = (
    Figure(
        ("power_limit_w",),
        (("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)),
        _thousandth,
    ),
    Figure(
        ("ecc_uncorrected",),
        (
            (
                "nvmlDeviceGetTotalEccErrors",
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            ),
        ),
        lambda errors: (int(errors),),
    ),
    Figure(
        ("remapped_rows", "remap_pending", "remap_failed"),
        (("nvmlDeviceGetRemappedRows",),),
        _remapped,
    ),
    Figure(("energy_j",), (("nvmlDeviceGetTotalEnergyConsumption",),), _thousandth),
)
FIXED_OF_ALL = (Figure(("name",), (("nvmlDeviceGetName",),), lambda name: (name,)),)
FIXED = (
    *FIXED_OF_ALL,
    Figure(("pci_bus_id",), (("nvmlDeviceGetPciInfo",),), _bus_id),
    Figure(
        ("temperature_slowdown_c",),
        (("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),),
        _float,
    ),
    Figure(
        ("sm_clock_max_mhz",),
        (("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),),
        lambda mhz: (_number(mhz),),
    ),
)
