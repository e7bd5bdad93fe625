"""`ddptop gpus`: the machine's devices and who uses them.

The driver is queried first; meanwhile, everything else is imported and read.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ddptop.job.figures.devices import FIGURES, DeviceFigure, Plain, number
from ddptop.output import table
from ddptop_runner.base.units import NOT_AVAILABLE, size
from ddptop_runner.devices import codes
from ddptop_runner.devices.report import DeviceReport, ForkedReading
from ddptop_runner.model.snapshot import SCHEMA, GpuProcess, GpuSample

if TYPE_CHECKING:
    from ddptop_runner.job.registry import JobView

TIMEOUT_S = 5.0


def run(json_output: bool) -> int:
    """Print the devices; returns the exit status, which is 0 even without a device."""
    reading = ForkedReading()
    from ddptop.output import info, put, put_json

    report = _with_jobs(reading) if reading.has_driver else reading.report()
    if not json_output:
        put(as_text(report, _width()))
        return 0
    put_json(
        {
            "schema": SCHEMA,
            "source": report.source,
            "driver": report.driver,
            "note": report.note,
            "gpus": report.gpus,
        }
    )
    if report.note:
        info(report.note)
    return 0


def _with_jobs(reading: ForkedReading) -> DeviceReport:
    """The devices, with what the jobs of this machine know of them."""
    from ddptop_runner.devices.owners import labeled
    from ddptop_runner.job.registry import all_jobs, rank_of_pid

    views = all_jobs()
    owners = rank_of_pid(views)
    report = reading.report(TIMEOUT_S)
    report = msgspec.structs.replace(report, gpus=labeled(report.gpus, owners))
    return with_xids(report, devices_with_xids(views))


def devices_with_xids(views: Iterable[JobView]) -> dict[str, GpuSample]:
    """Devices with XIDs by UUID, from the samplers of this host's live jobs."""
    return {
        gpu.uuid: gpu
        for view in views
        if view.snapshot is not None and view.is_live and not view.on_other_host
        for gpu in view.snapshot.gpus
        if gpu.uuid is not None and gpu.xid
    }


def with_xids(report: DeviceReport, known_devices: Mapping[str, GpuSample]) -> DeviceReport:
    """Add the XIDs that running samplers recorded; a new process cannot query past ones."""
    gpus = []
    for gpu in report.gpus:
        known = known_devices.get(gpu.uuid or "")
        if known is not None and not gpu.xid:
            gpu = msgspec.structs.replace(gpu, xid=known.xid, xid_meanings=known.xid_meanings)
        gpus.append(gpu)
    return msgspec.structs.replace(report, gpus=gpus)


def _width() -> int | None:
    """Columns of the terminal; None if stdout is not a terminal, so that no line is cut."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


WIDE_COLUMNS = 112
"""Terminals at least this wide show every column."""
_SHORTEST_COMMAND = 10
_LONGEST_COMMAND = 60
_LONGEST_JOB, _LONGEST_USER = 16, 12
_ANY = 1000
_PIDS_NAMED = 6

_Column = tuple[Plain, DeviceFigure]


def as_text(report: DeviceReport, width: int | None = None) -> str:
    """Return aligned columns; unknown values are n/a, with the reason below.

    Args:
        report: the devices.
        width: columns of the terminal; None for no limit.
    """
    if not report.gpus:
        return _wrapped(f"no GPUs: {report.note or 'the driver reports none'}", width)
    names = _names(report.gpus)
    wide = width is None or width >= WIDE_COLUMNS
    columns = [(one.plain, one) for one in FIGURES if one.plain is not None]
    columns = [(of, one) for of, one in columns if wide or not of.wide]
    parts = [_devices(report.gpus, names, columns)]
    if rows := [(names[i], p) for i, gpu in enumerate(report.gpus) for p in gpu.processes or ()]:
        parts.append(_processes(rows, width))
    notes = [*_troubles(report.gpus, names), *_unknowns(report.gpus, names, columns)]
    notes += _process_notes(report.gpus, names)
    notes += [report.note] if report.note else []
    if notes:
        parts.append("\n".join(_wrapped(note, width) for note in notes))
    return "\n\n".join(parts)


# --- tables -------------------------------------------------------------------------------------


def _devices(gpus: Sequence[GpuSample], names: Sequence[str], columns: Sequence[_Column]) -> str:
    rows = [
        (name, *(column.text(gpu) for column, _ in columns))
        for name, gpu in zip(names, gpus, strict=True)
    ]
    right = [place for place, (column, _) in enumerate(columns, 1) if column.align == ">"]
    return table(("GPU", *(column.header for column, _ in columns)), rows, right)


def _processes(rows: Sequence[tuple[str, GpuProcess]], width: int | None) -> str:
    headers = ("GPU", "PID", "USER", "JOB", "RANK", "SM", "MEMORY", "COMMAND")
    cells = [
        (
            name,
            str(process.pid),
            _cut(process.user or NOT_AVAILABLE, _LONGEST_USER if width else _ANY),
            _cut(process.job or "-", _LONGEST_JOB if width else _ANY),
            "-" if process.rank is None else str(process.rank),
            number(process.sm_util_percent, "%"),
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


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."


# --- notes --------------------------------------------------------------------------------------


def _troubles(gpus: Sequence[GpuSample], names: Sequence[str]) -> list[str]:
    lines = []
    for name, gpu in zip(names, gpus, strict=True):
        if remarks := list(_remarks(gpu)):
            lines.append(f"GPU {name}: {'; '.join(remarks)}")
    return lines


def _remarks(gpu: GpuSample) -> Iterable[str]:
    """Yield the problems of one device."""
    from ddptop_runner.launch.gpus.usage import is_hot, unknown_holder  # reads jobs

    if gpu.lost or gpu.note:
        yield gpu.note or "lost"
    for code in gpu.xid or ():
        yield f"XID {code}" + (f" ({codes.xid(code).meaning})" if code in codes.XIDS else "")
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
        for column, one in columns:
            for why in dict.fromkeys(gpu.unknown.get(field) for field in one.fields):
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
