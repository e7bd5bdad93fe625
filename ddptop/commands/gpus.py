"""`ddptop gpus`: the machine's devices and who uses them.

The driver is queried first; meanwhile, everything else is imported and read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from ddptop_runner.devices.report import DeviceReport, ForkedReading
from ddptop_runner.model.snapshot import SCHEMA, GpuSample

if TYPE_CHECKING:
    from ddptop_runner.job.registry import JobView

TIMEOUT_S = 5.0


def run(json_output: bool) -> int:
    """Print the devices; returns the exit status, which is 0 even without a device."""
    reading = ForkedReading()
    from ddptop.plain.gpus import as_text
    from ddptop.plain.output import info, put, put_json

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
