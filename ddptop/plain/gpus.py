"""The text output of `ddptop gpus`: tables, then notes on what is wrong or unknown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ddptop.plain.output import table
from ddptop_runner.base.units import NOT_AVAILABLE, size
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.launch.gpus.usage import is_hot, unknown_holder
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

WIDE_COLUMNS = 112
"""Terminals at least this wide show every column."""
_SHORTEST_COMMAND = 10
_LONGEST_COMMAND = 60
_LONGEST_JOB, _LONGEST_USER = 16, 12
_ANY = 1000
_PIDS_NAMED = 6


class _Column(NamedTuple):
    """One column of the devices' table."""

    header: str
    cell: Callable[[GpuSample], str]
    fields: tuple[str, ...]
    """Fields of GpuSample whose reasons explain an n/a in this column."""
    wide_only: bool = False
    left: bool = False


def as_text(report: DeviceReport, width: int | None = None, *, links: bool = False) -> str:
    """Return aligned columns; unknown values are n/a, with the reason below.

    Args:
        report: the devices.
        width: columns of the terminal; None for no limit.
        links: whether to include PCIe and NVLink rates.
    """
    if not report.gpus:
        return _wrapped(f"no GPUs: {report.note or 'the driver reports none'}", width)
    names = _names(report.gpus)
    wide = width is None or width >= WIDE_COLUMNS
    columns = [column for column in _COLUMNS if wide or not column.wide_only]
    parts = [_devices(report.gpus, names, columns)]
    if links:
        parts.append(_devices(report.gpus, names, _LINK_COLUMNS))
        columns += _LINK_COLUMNS
    if rows := [(names[i], p) for i, gpu in enumerate(report.gpus) for p in gpu.processes or ()]:
        parts.append(_processes(rows, width))
    notes = [*_troubles(report.gpus, names), *_unknowns(report.gpus, names, columns)]
    notes += _process_notes(report.gpus, names)
    notes += [part for part in (report.note or "").split("; ") if not _is_said(part, report.gpus)]
    if notes:
        parts.append("\n".join(_wrapped(note, width) for note in notes))
    return "\n\n".join(parts)


# --- tables -------------------------------------------------------------------------------------


def _devices(gpus: Sequence[GpuSample], names: Sequence[str], columns: Sequence[_Column]) -> str:
    rows = [
        (name, *(column.cell(gpu) for column in columns))
        for name, gpu in zip(names, gpus, strict=True)
    ]
    right = [place for place, column in enumerate(columns, 1) if not column.left]
    return table(("GPU", *(column.header for column in columns)), rows, right)


def _processes(rows: Sequence[tuple[str, GpuProcess]], width: int | None) -> str:
    headers = ("GPU", "PID", "USER", "JOB", "RANK", "SM", "MEMORY", "COMMAND")
    cells = [
        (
            name,
            str(process.pid),
            _cut(process.user or NOT_AVAILABLE, _LONGEST_USER if width else _ANY),
            _cut(process.job or "-", _LONGEST_JOB if width else _ANY),
            "-" if process.rank is None else str(process.rank),
            _number(process.sm_util_percent, "%"),
            size(process.mem_used_bytes),
        )
        for name, process in rows
    ]
    taken = sum(max(len(row[i]) for row in [headers, *cells]) + 2 for i in range(len(headers) - 1))
    room = _LONGEST_COMMAND if width is None else max(width - taken, _SHORTEST_COMMAND)
    commands = [_cut(process.command or NOT_AVAILABLE, room) for _, process in rows]
    shown = [(*row, command) for row, command in zip(cells, commands, strict=True)]
    return table(headers, shown, (1, 4, 5, 6))


def _names(gpus: Sequence[GpuSample]) -> list[str]:
    """`1` for a device, `1/0` for its first MIG instance."""
    names = []
    places: dict[str, int] = {}
    for gpu in gpus:
        if gpu.parent_uuid is None:
            names.append(str(gpu.index))
        else:
            place = places[gpu.parent_uuid] = places.get(gpu.parent_uuid, -1) + 1
            names.append(f"{gpu.index}/{place}")
    return names


def _model(gpu: GpuSample) -> str:
    """Return the device's name without the vendor; for a MIG instance, only its profile."""
    name = (gpu.name or NOT_AVAILABLE).removeprefix("NVIDIA ")
    if gpu.parent_uuid is not None and " MIG " in name:
        name = "MIG " + name.split(" MIG ", 1)[1]
    return _cut(name, 18)


def _memory(gpu: GpuSample) -> str:
    """`40.0/80.0`, in GiB."""
    used, total = gpu.mem_used_bytes, gpu.mem_total_bytes
    parts = [NOT_AVAILABLE if part is None else f"{part / 2**30:.1f}" for part in (used, total)]
    return NOT_AVAILABLE if used is None and total is None else "/".join(parts)


def _power(gpu: GpuSample) -> str:
    """`412/700`, in watts."""
    if gpu.power_w is None and gpu.power_limit_w is None:
        return NOT_AVAILABLE
    return f"{_number(gpu.power_w)}/{_number(gpu.power_limit_w)}"


def _number(value: float | None, unit: str = "") -> str:
    return NOT_AVAILABLE if value is None else f"{value:.0f}{unit}"


def _rate(value: float | None) -> str:
    """A rate as `1.2 GB/s`; a link idles at some kilobytes."""
    if value is None:
        return NOT_AVAILABLE
    return f"{value / 1e9:.1f} GB/s" if value >= 1e9 else f"{value / 1e6:.1f} MB/s"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."


_COLUMNS = (
    _Column("NAME", _model, ("name",), left=True),
    _Column("UTIL", lambda gpu: _number(gpu.util_percent, "%"), ("util_percent",)),
    _Column(
        "MEM UTIL",
        lambda gpu: _number(gpu.mem_util_percent, "%"),
        ("mem_util_percent",),
        wide_only=True,
    ),
    _Column("MEM GIB", _memory, ("mem_used_bytes", "mem_total_bytes")),
    _Column("TEMP C", lambda gpu: _number(gpu.temperature_c), ("temperature_c",)),
    _Column("POWER W", _power, ("power_w", "power_limit_w")),
    _Column("SM MHZ", lambda gpu: _number(gpu.sm_clock_mhz), ("sm_clock_mhz",)),
    _Column("SM MAX", lambda gpu: _number(gpu.sm_clock_max_mhz), ("sm_clock_max_mhz",), True),
    _Column("MEM MHZ", lambda gpu: _number(gpu.mem_clock_mhz), ("mem_clock_mhz",), True),
    _Column("FAN", lambda gpu: _number(gpu.fan_percent, "%"), ("fan_percent",), True),
    _Column(
        "P",
        lambda gpu: NOT_AVAILABLE if gpu.pstate is None else f"P{gpu.pstate}",
        ("pstate",),
        True,
    ),
    _Column("ECC", lambda gpu: _number(gpu.ecc_uncorrected), ("ecc_uncorrected",)),
    _Column("REMAP", lambda gpu: _number(gpu.remapped_rows), ("remapped_rows",), True),
)

_LINK_COLUMNS = tuple(
    _Column(header, lambda gpu, field=field: _rate(getattr(gpu, field)), (field,))  # type: ignore[misc]
    for header, field in (
        ("PCIE IN", "pcie_rx_bytes_per_s"),
        ("PCIE OUT", "pcie_tx_bytes_per_s"),
        ("NVLINK IN", "nvlink_rx_bytes_per_s"),
        ("NVLINK OUT", "nvlink_tx_bytes_per_s"),
    )
)


# --- words --------------------------------------------------------------------------------------


def _troubles(gpus: Sequence[GpuSample], names: Sequence[str]) -> list[str]:
    lines = []
    for name, gpu in zip(names, gpus, strict=True):
        if remarks := list(_remarks(gpu)):
            lines.append(f"GPU {name}: {'; '.join(remarks)}")
    return lines


def _is_said(part: str, gpus: Sequence[GpuSample]) -> bool:
    """Return whether the notes on lost devices already include this part."""
    lost = part.startswith(("GPU ", "GPUs ")) and " lost: " in part
    return not part or (lost and any(gpu.lost and gpu.note for gpu in gpus))


def _remarks(gpu: GpuSample) -> Iterable[str]:
    """Yield the problems of one device."""
    note = gpu.note or ""
    if gpu.lost:
        yield f"LOST: {note.removeprefix('lost: ')}" if note else "LOST"
    elif note:
        yield note
    meanings = gpu.xid_meanings or []
    for place, code in enumerate(gpu.xid or ()):
        meaning = meanings[place] if place < len(meanings) else ""
        yield f"XID {code}" + (f" ({meaning})" if meaning and meaning != f"XID {code}" else "")
    if gpu.throttle_reasons:
        yield f"clocks throttled ({', '.join(gpu.throttle_reasons)})"
    if is_hot(gpu):
        threshold = gpu.temperature_slowdown_c
        yield f"{gpu.temperature_c:.0f} C; throttles at {threshold:.0f} C"
    if gpu.ecc_uncorrected:
        yield f"uncorrected memory errors since the driver was loaded: {gpu.ecc_uncorrected}"
    if gpu.remapped_rows:
        yield f"remapped memory rows: {gpu.remapped_rows}"
    if (unknown := unknown_holder(gpu)) is not None:
        yield f"busy: {unknown}"


def _unknowns(
    gpus: Sequence[GpuSample], names: Sequence[str], columns: Sequence[_Column]
) -> list[str]:
    """Return why cells are n/a: one line per reason, with its columns and devices."""
    where: dict[tuple[str, str], list[str]] = {}
    for name, gpu in zip(names, gpus, strict=True):
        if gpu.lost:
            continue
        for column in columns:
            for why in dict.fromkeys(gpu.unknown.get(field) for field in column.fields):
                if why is not None:
                    where.setdefault((why, column.header), []).append(name)
    lines: dict[tuple[str, str], list[str]] = {}
    for (why, header), devices in where.items():
        lines.setdefault((why, _listed(devices)), []).append(header)
    return [
        f"n/a on GPU {devices}: {', '.join(headers)} ({why})"
        for (why, devices), headers in lines.items()
    ]


def _process_notes(gpus: Sequence[GpuSample], names: Sequence[str]) -> list[str]:
    """Return why processes, their shares, or their owners are unknown."""
    where: dict[str, list[str]] = {}
    for name, gpu in zip(names, gpus, strict=True):
        if gpu.lost:
            continue
        if gpu.processes is None:
            none = gpu.unknown.get("processes", "not reported by the driver")
            where.setdefault(f"processes: n/a ({none})", []).append(name)
        for name_of_field, header in (("sm_util_percent", "SM"), ("mem_used_bytes", "MEMORY")):
            why = gpu.unknown.get(f"processes.{name_of_field}")
            if why is not None:
                where.setdefault(f"per-process {header}: n/a ({why})", []).append(name)
    lines = [f"{what} on GPU {_listed(devices)}" for what, devices in where.items()]
    pids: dict[str, list[str]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            if process.note and str(process.pid) not in pids.setdefault(process.note, []):
                pids[process.note].append(str(process.pid))
    for note, known in pids.items():
        more = f" and {len(known) - _PIDS_NAMED} more" if len(known) > _PIDS_NAMED else ""
        lines.append(f"pid {', '.join(known[:_PIDS_NAMED])}{more}: {note}")
    return lines


def _listed(names: Sequence[str]) -> str:
    """`0-3, 5, 6/0`."""
    parts: list[tuple[str, str]] = []
    for name in names:
        if parts and _follows(parts[-1][1], name):
            parts[-1] = (parts[-1][0], name)
        else:
            parts.append((name, name))
    return ", ".join(first if first == last else f"{first}-{last}" for first, last in parts)


def _follows(name: str, next_name: str) -> bool:
    whole = name.isdecimal() and next_name.isdecimal()
    return whole and int(next_name) == int(name) + 1


def _wrapped(text: str, width: int | None) -> str:
    if width is None:
        return text
    return textwrap.fill(text, max(width, 20), subsequent_indent="  ", break_on_hyphens=False)
