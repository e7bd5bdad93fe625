"""`ddptop gpus`: the machine's devices and who is on them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ddptop.output import NOT_AVAILABLE, put, put_json, say, size, table
from ddptop_runner.device_once import sample_once
from ddptop_runner.device_report import DeviceReport
from ddptop_runner.model import SCHEMA, GpuProcess, GpuSample

Label = Callable[[int], "tuple[str, int | None] | None"]
"""(job, rank) of a pid, or None when it is no rank of a job."""

_COMMAND_WIDTH = 60
_HEADERS = ("GPU", "NAME", "UTIL", "MEMORY", "TEMP", "POWER", "SM CLOCK", "ECC", "NOTES")
_PROCESS_HEADERS = ("GPU", "PID", "USER", "JOB", "RANK", "MEMORY", "COMMAND")
_RIGHT = (2, 3, 4, 5, 6, 7)
_PROCESS_RIGHT = (1, 4, 5)


def run(json_output: bool, label: Label | None = None) -> int:
    """Print the devices; returns the exit status, which is 0 without a device as well.

    `label` tells which job and rank a process belongs to.
    """
    report = labelled(sample_once(), label)
    if not json_output:
        put(as_text(report))
        return 0
    put_json(
        {"schema": SCHEMA, "source": report.source, "driver": report.driver, "gpus": report.gpus}
    )
    if report.note:
        say(report.note)
    return 0


def labelled(report: DeviceReport, label: Label | None) -> DeviceReport:
    """The report with job and rank at the processes that `label` knows."""
    if label is None:
        return report
    gpus = []
    for gpu in report.gpus:
        processes = gpu.processes
        if processes is not None:
            processes = [_labelled_process(process, label) for process in processes]
        gpus.append(msgspec.structs.replace(gpu, processes=processes))
    return msgspec.structs.replace(report, gpus=gpus)


def _labelled_process(process: GpuProcess, label: Label) -> GpuProcess:
    found = label(process.pid)
    if found is None:
        return process
    return msgspec.structs.replace(process, job=found[0], rank=found[1])


def as_text(report: DeviceReport) -> str:
    """Aligned columns for a person; what is not known reads n/a."""
    if not report.gpus:
        return f"no NVIDIA GPU: {report.note or 'the driver lists none'}"
    parts = [table(_HEADERS, [_gpu_row(gpu) for gpu in report.gpus], _RIGHT)]
    if rows := [_process_row(gpu, p) for gpu in report.gpus for p in gpu.processes or ()]:
        parts.append(table(_PROCESS_HEADERS, rows, _PROCESS_RIGHT))
    elif all(gpu.processes is None for gpu in report.gpus):
        parts.append("processes: n/a (the driver does not list them here)")
    if report.note:
        parts.append(f"note: {report.note}")
    return "\n\n".join(parts)


def _gpu_row(gpu: GpuSample) -> tuple[str, ...]:
    return (
        str(gpu.index),
        gpu.name or NOT_AVAILABLE,
        _number(gpu.util_percent, "%"),
        f"{size(gpu.mem_used_bytes)} / {size(gpu.mem_total_bytes)}",
        _number(gpu.temperature_c, " C"),
        f"{_number(gpu.power_w)} / {_number(gpu.power_limit_w, ' W')}",
        _number(gpu.sm_clock_mhz, " MHz"),
        _number(gpu.ecc_uncorrected),
        ", ".join(_remarks(gpu)) or "-",
    )


def _remarks(gpu: GpuSample) -> list[str]:
    remarks = ["LOST"] if gpu.lost else []
    if gpu.xid:
        remarks.append("XID " + " ".join(str(code) for code in gpu.xid))
    return remarks + (gpu.throttle_reasons or [])


def _process_row(gpu: GpuSample, process: GpuProcess) -> tuple[str, ...]:
    command = process.command or NOT_AVAILABLE
    if len(command) > _COMMAND_WIDTH:
        command = command[: _COMMAND_WIDTH - 3] + "..."
    return (
        str(gpu.index),
        str(process.pid),
        process.user or NOT_AVAILABLE,
        process.job or "-",
        "-" if process.rank is None else str(process.rank),
        size(process.mem_used_bytes),
        command,
    )


def _number(value: float | None, unit: str = "") -> str:
    return NOT_AVAILABLE if value is None else f"{value:.0f}{unit}"
