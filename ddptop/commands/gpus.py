"""`ddptop gpus`: the machine's devices and who is on them.

The driver is asked first; what else is needed is imported and read meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from ddptop_runner.devices.once import ForkedReading
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.model.snapshot import SCHEMA, GpuProcess, GpuSample

if TYPE_CHECKING:
    from ddptop_runner.job.registry import JobView

Label = Callable[[int], "tuple[str, int | None] | None"]
"""(job, rank) of a pid, or None when it is no rank of a job."""

FLAGS = ("--json", "--links")
"""All options of this verb, none of which takes a value."""
TIMEOUT_S = 5.0
LINKS_TIMEOUT_S = 20.0


def run(json_output: bool, *, links: bool = False) -> int:
    """Print the devices; returns the exit status, which is 0 without a device as well.

    With `links` PCIe and NVLink rates are read too, which takes a second more.
    """
    reading = ForkedReading(links=links)
    from ddptop.commands.gpus_text import as_text
    from ddptop.output import put, put_json, say
    from ddptop_runner.job.registry import all_jobs, rank_of_pid

    views = all_jobs()
    owners = rank_of_pid(views)
    report = labelled(reading.report(LINKS_TIMEOUT_S if links else TIMEOUT_S), owners.get)
    report = with_xids(report, heard_by(views))
    if not json_output:
        put(as_text(report, _width(), links=links))
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


def heard_by(views: Iterable[JobView]) -> dict[str, GpuSample]:
    """Devices by UUID, as samplers of this host's live jobs know them: those heard their XIDs."""
    return {
        gpu.uuid: gpu
        for view in views
        if view.snapshot is not None and view.is_live and not view.on_other_host
        for gpu in view.snapshot.gpus
        if gpu.uuid is not None and gpu.xid
    }


def with_xids(report: DeviceReport, heard: Mapping[str, GpuSample]) -> DeviceReport:
    """The report with the XIDs that only those who were listening at the time know."""
    gpus = []
    for gpu in report.gpus:
        known = heard.get(gpu.uuid or "")
        if known is not None and not gpu.xid:
            gpu = msgspec.structs.replace(gpu, xid=known.xid, xid_meanings=known.xid_meanings)
        gpus.append(gpu)
    return msgspec.structs.replace(report, gpus=gpus)


def _labelled_process(process: GpuProcess, label: Label) -> GpuProcess:
    found = label(process.pid)
    if found is None:
        return process
    return msgspec.structs.replace(process, job=found[0], rank=found[1])


def _width() -> int | None:
    """Columns of the terminal; None where the output goes elsewhere and no line is cut."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
