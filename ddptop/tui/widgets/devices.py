"""Widgets of the device screen: devices, processes, details, and a host without devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual import events

from ddptop.draw.device_details import detail_lines
from ddptop.draw.devices import (
    PROCESS_COLUMNS,
    Owners,
    common_name,
    device_columns,
    device_row,
    first_seen,
    heaviest_first,
    label,
    process_row,
)
from ddptop.draw.panels import machine_lines, short_name
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.table import Table
from ddptop.view.device_help import explain_device
from ddptop.view.figures.columns import Column, Row
from ddptop.view.host_words import hosts_of_devices
from ddptop.view.keys import key
from ddptop.view.shown import DeviceHistory, Machine
from ddptop.view.text import Line, line, rule, wrap
from ddptop_runner.base.units import plural
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

NOTHING = DeviceHistory()
NOBODY: Owners = {}
FIRST_LOOK = "querying the driver for devices..."
FREE = "no processes; the device is free"
NOT_REPORTED = "the driver does not report its processes"


class DevicesTable(Table):
    """One row per device, with its utilization so far."""

    def __init__(self) -> None:
        super().__init__("devices", device_columns(80, False), empty=FIRST_LOOK, id="gpus")
        self._gpus: Sequence[GpuSample] = ()
        self._owners: Owners = {}
        self._history = NOTHING
        self._unseen = 0
        self._here = ""
        self._hosts: Mapping[str, str] = {}
        self._by_key: Mapping[str, GpuSample] = {}

    def show(
        self,
        gpus: Sequence[GpuSample],
        owners: Owners,
        history: DeviceHistory | None,
        here: str,
    ) -> None:
        """Show the devices.

        Args:
            gpus: the devices.
            owners: job and rank by pid, for processes of this host.
            history: the devices' utilization so far.
            here: the name of this host.
        """
        self._gpus, self._owners, self._here = gpus, owners, here
        self._history = history or NOTHING
        self._unseen = first_seen(self._history.recent)
        self.refill()

    def refill(self) -> None:
        """Fill the rows for the current width."""
        names = {gpu.name for gpu in self._gpus}
        hosts = hosts_of_devices(self._gpus)
        cells = max((len(label(gpu, hosts)) for gpu in self._gpus), default=0)
        self._columns = device_columns(self.size.width, len(names) > 1, cells)
        self._hosts = hosts
        self._by_key = {key_of(gpu): gpu for gpu in self._gpus}
        rows: list[tuple[str, Row]] = [(key, {}) for key in self._by_key]
        name = common_name(self._gpus)
        whole = sum(gpu.parent_uuid is None for gpu in self._gpus)
        self.title = "devices" if name is None else f"{plural(whole, 'device')}, {short_name(name)}"
        self.set_rows(rows)

    def line_of(self, key: str, row: Row, layout: Sequence[tuple[Column, int]], width: int) -> Line:
        """Draw one device; called only for visible ones, as there may be thousands."""
        gpu = self._by_key[key]
        shown = device_row(
            gpu,
            self._owners if gpu.host in (None, self._here) else NOBODY,
            self._history.recent,
            self._history.idle_s,
            next((c.width for c in self._columns if c.key == "recent"), 0),
            unseen=self._unseen,
            brief=self.size.width < 140,
            hosts=self._hosts,
        )
        return super().line_of(key, shown, layout, width)

    def on_resize(self, event: events.Resize) -> None:
        """Fit the columns to the new width."""
        self.refill()
        super().on_resize(event)

    @property
    def chosen(self) -> GpuSample | None:
        """The device under the cursor."""
        return next((gpu for gpu in self._gpus if key_of(gpu) == self.cursor_key), None)

    def explain(self) -> list[tuple[str, str]]:
        """Help on each figure of the device under the cursor, and what is wrong with it."""
        return [] if self.chosen is None else explain_device(self.chosen)


def key_of(gpu: GpuSample) -> str:
    """The key that identifies a device across polls."""
    return gpu.uuid or f"{gpu.host or ''} index {gpu.index}"


def name_of(gpu: GpuSample, here: str | None = None) -> str:
    """`GPU 3`, or `GPU 3 on b` for another host than `here`."""
    return f"GPU {gpu.index}" + (f" on {gpu.host}" if here and gpu.host not in (None, here) else "")


class ProcessTable(Table):
    """The processes on one device."""

    def __init__(self) -> None:
        super().__init__("processes", PROCESS_COLUMNS, id="processes")
        self._by_pid: Mapping[str, GpuProcess] = {}
        self._owners: Owners = {}

    def show(self, gpu: GpuSample | None, owners: Owners, here: str) -> None:
        """Show the selected device; `owners` are those of processes of this host, `here`."""
        if gpu is not None and gpu.host not in (None, here):
            owners = NOBODY
        found = heaviest_first([] if gpu is None else gpu.processes or [])
        self.empty = NOT_REPORTED if gpu is not None and gpu.processes is None else FREE
        self._by_pid = {str(process.pid): process for process in found}
        self._owners = owners
        self.title = "processes" if gpu is None else f"processes on {name_of(gpu, here)}"
        rows = [(str(process.pid), process_row(process, owners)) for process in found]
        self.set_rows(rows, line((f"{len(found)}", "dim")) if len(found) > 1 else ())

    def cursor_line(self) -> int | None:
        """The row of the cursor, while focused."""
        return super().cursor_line() if self.has_focus else None

    def on_focus(self) -> None:
        """Show the cursor."""
        self.redraw()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.redraw()

    @property
    def job(self) -> str | None:
        """The job of the process under the cursor."""
        process = self._by_pid.get(self.cursor_key or "")
        if process is None:
            return None
        return self._owners.get(process.pid, (process.job, None))[0]

    def explain(self) -> list[tuple[str, str]]:
        """Help on the columns."""
        process = self._by_pid.get(self.cursor_key or "")
        if process is None:
            return []
        return [
            (f"process {process.pid}", process.command or process.note or "command: n/a"),
            ("job", f"this process's job and rank; {key('move.choose')} opens the job"),
            ("memory", "memory it uses on this device, including its CUDA context"),
            (
                "SM",
                "percentage of the last few seconds during which its kernels ran on this device",
            ),
        ]


class DeviceDetails(LinesView):
    """Details of a device, shown below the table."""

    def __init__(self, *, processes: bool = True) -> None:
        """`processes` is whether to include the processes."""
        super().__init__(id="device")
        self._processes = processes
        self._gpu: GpuSample | None = None
        self._owners: Owners = {}

    def show(self, gpu: GpuSample | None, owners: Owners) -> None:
        """Show the selected device; None if there is none."""
        self._gpu, self._owners = gpu, owners
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """Build as many rows as fit."""
        if self._gpu is None:
            return []
        return detail_lines(self._gpu, width, height, self._owners, processes=self._processes)


TO_DO = (
    ("ddptop doctor", "checks the driver, its library, and permissions, and suggests fixes"),
    ("ddptop launch --gpus none --nproc 2 train.py", "trains on the CPU in the meantime"),
)


class MachinePanel(LinesView):
    """Shown if the machine has no device or the driver reports none."""

    def __init__(self) -> None:
        super().__init__(id="machine")
        self._machine: Machine | None = None
        self._reason: str | None = None

    def show(self, machine: Machine, reason: str | None) -> None:
        """Show the machine, and why it has no device."""
        self._machine, self._reason = machine, reason
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """Build bars, the reason, and what helps."""
        lines = [rule("machine", width)]
        if self._machine is not None:
            lines += machine_lines(self._machine, width)
        lines += [(), rule("no devices", width)]
        reason = self._reason or "the driver reports no devices"
        lines += [line((f" {text}", "")) for text in wrap(reason, width - 2, 4)]
        lines.append(())
        for command, what in TO_DO:
            lines += [line((f"   {command}", "busy")), line((f"     {what}", "dim"))]
        return lines
