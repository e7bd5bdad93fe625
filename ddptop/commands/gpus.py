"""`ddptop gpus`: the machine's devices and who uses them.

The driver is queried first; meanwhile, everything else is imported and read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ddptop.job.figures.devices import FIGURES, DeviceFigure
from ddptop.output import columns, info, put_clipped, put_folded, put_json, table
from ddptop.style import clip
from ddptop_runner.base.units import NOT_AVAILABLE, percent, size, span
from ddptop_runner.devices import codes
from ddptop_runner.devices.report import DeviceReport, ForkedReading, empty_report, library_problem
from ddptop_runner.model.snapshot import SCHEMA, GpuSample

if TYPE_CHECKING:
    from ddptop_runner.job.registry import JobView

TIMEOUT_S = 5.0


def run(json_output: bool) -> int:
    """Print the devices; returns the exit status, which is 0 even without a device."""
    problem = library_problem()
    report = _with_jobs(ForkedReading()) if problem is None else empty_report(problem)
    if not json_output:
        if not report.gpus:
            put_folded(f"no GPUs: {report.note or 'the driver reports none'}", 2)
            return 0
        cells = columns()
        put_clipped(tables(report.gpus, cells))
        if found := notes(report, cells):
            put_folded("\n" + "\n".join(found), 2)
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
    return with_xids(report, views)


def with_xids(report: DeviceReport, views: Iterable[JobView]) -> DeviceReport:
    """Add the XIDs that live jobs recorded; a new process cannot query past ones."""
    known = {
        gpu.uuid: gpu
        for view in views
        if view.snapshot is not None and view.is_live and not view.on_other_host
        for gpu in view.snapshot.gpus
        if gpu.uuid is not None and gpu.xid
    }
    gpus = [
        msgspec.structs.replace(
            gpu, xid=known[gpu.uuid].xid, xid_meanings=known[gpu.uuid].xid_meanings
        )
        if gpu.uuid in known and not gpu.xid
        else gpu
        for gpu in report.gpus
    ]
    return msgspec.structs.replace(report, gpus=gpus)


WIDE_COLUMNS = 120
"""Terminals at least this wide show every column."""
_LONGEST_COMMAND = 60
_PIDS_NAMED = 6


def tables(gpus: Sequence[GpuSample], cells: int | None = None) -> str:
    """Return the devices and their processes in aligned columns; unknown values are n/a.

    Args:
        gpus: the devices.
        cells: columns of the terminal; None for no limit.
    """
    columns = _columns(cells)
    rows = [
        (name, *(one.text(gpu) for one in columns))
        for name, gpu in zip(_names(gpus), gpus, strict=True)
    ]
    headers = ("GPU", *(one.header for one in columns))
    parts = [table(headers, rows, right=range(2, len(headers)))]
    if any(gpu.processes for gpu in gpus):
        parts.append(_processes(gpus))
    return "\n\n".join(parts)


def notes(report: DeviceReport, cells: int | None = None) -> list[str]:
    """Return what is wrong with the devices, and why values in the tables are n/a."""
    names = _names(report.gpus)
    remarks = [list(_remarks(gpu)) for gpu in report.gpus]
    found = [f"GPU {name}: {'; '.join(of)}" for name, of in zip(names, remarks, strict=True) if of]
    found += [*_unknowns(report.gpus, names, _columns(cells)), *_pid_notes(report.gpus)]
    return [*found, report.note] if report.note else found


def _columns(cells: int | None) -> list[DeviceFigure]:
    wide = cells is None or cells >= WIDE_COLUMNS
    return [one for one in FIGURES if one.header and (wide or not one.wide)]


def _processes(gpus: Sequence[GpuSample]) -> str:
    headers = ("GPU", "PID", "USER", "JOB", "RANK", "SM", "MEMORY", "COMMAND")
    rows = [
        (
            name,
            str(process.pid),
            process.user or NOT_AVAILABLE,
            process.job or "-",
            "-" if process.rank is None else str(process.rank),
            percent(process.sm_util_percent),
            size(process.mem_used_bytes),
            clip(process.command or NOT_AVAILABLE, _LONGEST_COMMAND),
        )
        for name, gpu in zip(_names(gpus), gpus, strict=True)
        for process in gpu.processes or ()
    ]
    return table(headers, rows, (1, 4, 5, 6))


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


# --- notes --------------------------------------------------------------------------------------


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
    gpus: Sequence[GpuSample], names: Sequence[str], columns: Sequence[DeviceFigure]
) -> list[str]:
    """Return why cells are n/a: one line per reason, with its columns and devices."""
    fields = [(field, one.header) for one in columns for field in one.fields]
    fields += [("processes.sm_util_percent", "SM"), ("processes.mem_used_bytes", "process MEMORY")]
    where: dict[str, list[str]] = {}
    for name, gpu in zip(names, gpus, strict=True):
        if gpu.lost:
            continue
        reasons: dict[str, list[str]] = {}
        for field, header in fields:
            if (why := gpu.unknown.get(field)) is not None:
                reasons.setdefault(why, []).append(header)
        if gpu.processes is None:
            why = gpu.unknown.get("processes", "not reported by the driver")
            reasons.setdefault(why, []).append("processes")
        for why, headers in reasons.items():
            where.setdefault(f"{', '.join(dict.fromkeys(headers))} ({why})", []).append(name)
    return [f"n/a on GPU {_listed(devices)}: {what}" for what, devices in where.items()]


def _pid_notes(gpus: Sequence[GpuSample]) -> list[str]:
    """Return why owners of processes are unknown."""
    pids: dict[str, dict[str, None]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            if process.note:
                pids.setdefault(process.note, {})[str(process.pid)] = None
    lines = []
    for note, known in pids.items():
        more = f" and {len(known) - _PIDS_NAMED} more" if len(known) > _PIDS_NAMED else ""
        lines.append(f"pid {', '.join([*known][:_PIDS_NAMED])}{more}: {note}")
    return lines


def _listed(names: Sequence[str]) -> str:
    """`0-3, 5, 6/0`."""
    whole = span(int(name) for name in names if name.isdecimal())
    return ", ".join(filter(None, [whole, *(name for name in names if not name.isdecimal())]))
