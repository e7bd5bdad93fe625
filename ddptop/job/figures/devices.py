"""Defines every figure of a device.

An entry in FIGURES defines how a figure is read and formatted, where it is shown, and what it
means. The table of devices, a device's details, `ddptop gpus`, the recorded history, and the help
all use it; a new figure only needs a new entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ddptop.style import Span
from ddptop_runner.base import units
from ddptop_runner.base.units import NOT_AVAILABLE
from ddptop_runner.devices import codes
from ddptop_runner.model.snapshot import GpuSample

FULL_SHARE = 0.95
"""From this fraction on, a memory bar is drawn as a warning."""

BUSY_PERCENT = 80.0
"""From this utilization on, a device is drawn as busy."""

Text = Callable[[GpuSample], str]


class Bar(msgspec.Struct, frozen=True):
    """The column with a bar, to the left of the figure's own column."""

    share: Callable[[GpuSample], float | None]
    drop: int
    style: Callable[[GpuSample], str]


class DeviceFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a device; if a part is missing, the figure is not shown there."""

    key: str
    fields: Mapping[str, str]
    """Its fields in GpuSample and their names; the first is its value."""
    text: Text
    style: Callable[[GpuSample], str] | None = None
    """Style of its text; if None, unknown values are dim."""
    title: str = ""
    """Title of its column."""
    width: int = 0
    drop: int = 0
    least: int = 0
    """Minimum terminal width for it to have a column."""
    bar: Bar | None = None
    header: str = ""
    """Header of its column in the output of `ddptop gpus`."""
    wide: bool = False
    """Whether that column is printed only in wide terminals."""
    detail: tuple[str, str] | None = None
    """Row and label in the details of a device."""
    explain: Callable[[GpuSample], str] | None = None
    """Explains its value for the device under the cursor."""
    records: bool = False
    """Whether viewers keep its history."""
    help: tuple[str, str] | None = None
    """Term and meaning."""

    def value(self, gpu: GpuSample) -> object:
        """The value; None if unknown."""
        return getattr(gpu, next(iter(self.fields)))

    def styled(self, gpu: GpuSample) -> Span:
        """Its text and style."""
        style = known(self.value(gpu)) if self.style is None else self.style(gpu)
        return self.text(gpu), style


def known(value: object) -> str:
    """The style of a value: unknown ones are dim."""
    return "dim" if value is None else ""


def heat(gpu: GpuSample) -> str:
    """The style of a temperature, by the device's slowdown threshold and thermal throttling."""
    from ddptop_runner.launch.gpus.usage import is_hot  # `ddptop gpus` has no styles

    slowed = any(codes.throttle(one).cause == "heat" for one in gpu.throttle_reasons or ())
    return "warn" if slowed or is_hot(gpu) else known(gpu.temperature_c)


def memory_share(gpu: GpuSample) -> float | None:
    """Fraction of its memory in use."""
    if gpu.mem_used_bytes is None or not gpu.mem_total_bytes:
        return None
    return gpu.mem_used_bytes / gpu.mem_total_bytes


def is_full(gpu: GpuSample) -> bool:
    """Whether almost no memory is left."""
    return (memory_share(gpu) or 0.0) >= FULL_SHARE


def _load(gpu: GpuSample) -> str:
    """The style of its utilization: busy or partly idle."""
    return "ok" if (gpu.util_percent or 0.0) >= BUSY_PERCENT else "busy"


def _model(gpu: GpuSample) -> str:
    """The device's name without the vendor; for a MIG instance, only its profile."""
    name = (gpu.name or NOT_AVAILABLE).removeprefix("NVIDIA ")
    if gpu.parent_uuid is not None and " MIG " in name:
        name = "MIG " + name.split(" MIG ", 1)[1]
    return name if len(name) <= 18 else f"{name[:15]}..."


def _mhz(clock: int | None, most: int | None = None) -> str:
    if clock is None:
        return NOT_AVAILABLE
    return f"{clock} MHz" if most is None else f"{clock}/{most} MHz"


def energy(joules: float | None) -> str:
    """`12.3 kWh`, `840 Wh`."""
    if joules is None:
        return NOT_AVAILABLE
    hours = joules / 3600
    return f"{hours:.0f} Wh" if hours < 999.5 else f"{hours / 1000:,.1f} kWh"


def _slows_at(gpu: GpuSample) -> str:
    if gpu.temperature_slowdown_c is None:
        return "The device lowers its clocks when it overheats."
    return f"The device lowers its clocks at {units.celsius(gpu.temperature_slowdown_c)}."


FIGURES: tuple[DeviceFigure, ...] = (
    DeviceFigure(
        key="name", fields={"name": "name"}, text=_model, header="NAME",
    ),
    DeviceFigure(
        key="util", fields={"util_percent": "utilization"},
        text=lambda gpu: units.percent(gpu.util_percent),
        title="util", width=5,
        bar=Bar(lambda gpu: None if gpu.util_percent is None else gpu.util_percent / 100, 4, _load),
        header="UTIL",
        detail=("load", "SM"), records=True,
        explain=lambda gpu: (
            "Percentage of the last second during which a kernel was running. 100% means that "
            "the device was never idle, not that it was used efficiently: waiting in a collective "
            "also shows 100%."
        ),
        help=("util", "percentage of the last second during which a kernel was running; not a "
              "measure of efficiency"),
    ),
    DeviceFigure(
        key="mem_util", fields={"mem_util_percent": "memory utilization"},
        text=lambda gpu: units.percent(gpu.mem_util_percent),
        header="MEM UTIL", wide=True,
        detail=("load", "memory bus"),
    ),
    DeviceFigure(
        key="memory", fields={"mem_used_bytes": "memory", "mem_total_bytes": "total memory"},
        text=lambda gpu: units.size_of(gpu.mem_used_bytes, gpu.mem_total_bytes),
        style=lambda gpu: "warn" if is_full(gpu) else known(gpu.mem_used_bytes),
        title="memory", width=13,
        bar=Bar(memory_share, 6, lambda gpu: "warn" if is_full(gpu) else "median"),
        header="MEMORY",
        detail=("memory", "used"), records=True,
        explain=lambda gpu: "Used by all processes, excluding memory reserved by the driver.",
        help=("memory", "used and total device memory; processes can hold memory while idle"),
    ),
    DeviceFigure(
        key="reserved", fields={"mem_reserved_bytes": "reserved memory"},
        text=lambda gpu: units.size(gpu.mem_reserved_bytes),
        detail=("memory", "reserved by the driver"),
    ),
    DeviceFigure(
        key="temperature", fields={"temperature_c": "temperature"},
        text=lambda gpu: units.celsius(gpu.temperature_c), style=heat,
        title="temp", width=6, drop=1,
        header="TEMP",
        detail=("thermal", "now"), records=True, explain=_slows_at,
        help=("temp", "chip temperature in °C"),
    ),
    DeviceFigure(
        key="slowdown", fields={"temperature_slowdown_c": "slowdown threshold"},
        text=lambda gpu: units.celsius(gpu.temperature_slowdown_c),
        detail=("thermal", "slowdown at"),
    ),
    DeviceFigure(
        key="power", fields={"power_w": "power", "power_limit_w": "power limit"},
        text=lambda gpu: units.watts(gpu.power_w, gpu.power_limit_w),
        title="power", width=9, drop=2,
        header="POWER",
        detail=("load", "power"), records=True,
        explain=lambda gpu: (
            "Current draw and limit. Full utilization at low power means that the device is "
            "mostly waiting."
        ),
        help=("power", "current draw and the limit set in the driver"),
    ),
    DeviceFigure(
        key="energy", fields={"energy_j": "energy"}, text=lambda gpu: energy(gpu.energy_j),
        detail=("load", "energy"),
    ),
    DeviceFigure(
        key="clock", fields={"sm_clock_mhz": "SM clock", "sm_clock_max_mhz": "maximum SM clock"},
        text=lambda gpu: _mhz(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz),
        title="SM clock", width=13, drop=5, least=140,
        header="SM CLOCK", wide=True,
        detail=("clocks", "SM"),
        help=("SM clock", "current clock speed of the multiprocessors"),
    ),
    DeviceFigure(
        key="mem_clock", fields={"mem_clock_mhz": "memory clock"},
        text=lambda gpu: _mhz(gpu.mem_clock_mhz),
        header="MEM CLOCK", wide=True,
        detail=("clocks", "memory"),
    ),
    DeviceFigure(
        key="fan", fields={"fan_percent": "fan"}, text=lambda gpu: units.percent(gpu.fan_percent),
        header="FAN", wide=True,
        detail=("thermal", "fan"),
    ),
    DeviceFigure(
        key="pstate", fields={"pstate": "P-state"},
        text=lambda gpu: NOT_AVAILABLE if gpu.pstate is None else f"P{gpu.pstate}",
        header="P", wide=True,
        detail=("clocks", "P-state"),
    ),
    DeviceFigure(
        key="ecc", fields={"ecc_uncorrected": "ECC"},
        text=lambda gpu: units.count(gpu.ecc_uncorrected),
        style=lambda gpu: "bad" if gpu.ecc_uncorrected else "dim",
        title="ECC", width=4, drop=8, least=160,
        header="ECC",
        detail=("errors", "uncorrected ECC"),
        help=("ECC", "device memory errors; uncorrected errors corrupt results"),
    ),
    DeviceFigure(
        key="remapped", fields={"remapped_rows": "spare rows"},
        text=lambda gpu: units.count(gpu.remapped_rows),
        header="REMAP", wide=True,
        detail=("errors", "spare rows used"),
        help=("spare rows", "device memory rows that have replaced failing ones (remapped rows)"),
    ),
    DeviceFigure(
        key="xid", fields={"xid": "XID"},
        text=lambda gpu: NOT_AVAILABLE if gpu.xid is None else ", ".join(map(str, gpu.xid)) or "-",
        style=lambda gpu: "bad" if gpu.xid else "dim",
        title="XID", width=5, drop=9, least=160,
        help=("XID", "an error that the driver reported for a device, identified by number"),
    ),
)  # fmt: skip
"""Figures in the order of the tables."""

HISTORY: Mapping[str, str] = {one.key: next(iter(one.fields)) for one in FIGURES if one.records}
"""Recorded figures, with their names in samples and in a job's history."""

FIELD_NAMES: Mapping[str, str] = {
    field: name for one in FIGURES for field, name in one.fields.items()
} | {"throttle_reasons": "throttle reasons", "processes": "processes"}
"""Names by field of GpuSample."""
