"""Devices: their table, the processes on one, and its details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual import events

from ddptop.draw.devices import (
    NOBODY,
    PROCESS_COLUMNS,
    Owners,
    common_name,
    device_columns,
    device_row,
    heaviest_first,
    holder_text,
    label,
    process_row,
)
from ddptop.draw.panels import machine_lines, short_name
from ddptop.job.help import about, explain_device
from ddptop.job.ranks import hosts_of_devices
from ddptop.job.series import DeviceHistory
from ddptop.sources.query import Look
from ddptop.style import Column, Line, Row, fit, line, rule, wrap
from ddptop.tui.widgets.table import Table
from ddptop_runner.base.units import plural
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

NOTHING = DeviceHistory()
FREE = "no processes; the device is free"
NOT_REPORTED = "the driver does not report its processes"
TO_DO = (
    ("ddptop doctor", "checks the driver, its library, and permissions, and suggests fixes"),
    ("ddptop launch --gpus none --nproc 2 train.py", "trains on the CPU in the meantime"),
)


class DevicesTable(Table[GpuSample]):
    """One row per device, with its utilization so far; without devices, the machine's load."""

    def __init__(self, *, id: str = "devices", cursor_needs_focus: bool = False) -> None:
        super().__init__("devices", (), id=id)
        self.cursor_needs_focus = cursor_needs_focus
        self._look: Look | None = None
        self._history = NOTHING
        self._reason: str | None = None
        self._hosts: Mapping[str, str] = {}

    def show(
        self,
        gpus: Sequence[GpuSample],
        look: Look,
        history: DeviceHistory = NOTHING,
        *,
        reason: str | None = None,
        note: Line = (),
    ) -> None:
        """Show the devices.

        Args:
            gpus: the devices.
            look: the host and its jobs, which use them.
            history: their utilization so far.
            reason: why devices or figures are missing.
            note: what to show beside the title.
        """
        self.items, self._look, self._history, self._reason = gpus, look, history, reason
        self._hosts = hosts_of_devices(gpus)
        name = common_name(gpus)
        whole = sum(gpu.parent_uuid is None for gpu in gpus)
        self.title = "devices" if name is None else f"{plural(whole, 'device')}, {short_name(name)}"
        self._fit_columns()
        self.set_rows([(key_of(gpu), {}) for gpu in gpus], note)

    def on_resize(self, _: events.Resize) -> None:
        """Fit the columns to the new width."""
        self._fit_columns()

    def _fit_columns(self) -> None:
        self._columns = device_columns(
            self.size.width, self.items, self._hosts, has_history=bool(self._history.recent)
        )

    def line_of(self, key: str, row: Row, layout: Sequence[tuple[Column, int]], width: int) -> Line:
        """Draw one device; called only for visible ones, as there may be thousands."""
        gpu = self.items[self.keys.index(key)]
        if gpu.lost:
            name = f" {label(gpu, self._hosts):>3}  "
            return fit(line((name, "strong"), *holder_text(gpu)), width)
        widths = {column.key: cells for column, cells in layout}
        shown = device_row(
            gpu,
            widths,
            NOBODY if self._look is None else owners_of(gpu, self._look),
            self._history,
            self._hosts,
        )
        return super().line_of(key, shown, layout, width)

    def foot(self, width: int) -> Line:
        """Why figures are missing."""
        return line((f" i {self._reason}", "dim")) if self._reason and self.items else ()

    def rows_wanted(self) -> int:
        """Rows needed to show everything."""
        return super().rows_wanted() if self.items else len(self._machine_lines(self.size.width))

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rows, or what is known without devices."""
        return super().build(width, height) if self.items else self._machine_lines(width)

    def _machine_lines(self, width: int) -> list[Line]:
        if self._look is None:
            return []
        reason = wrap(self._reason or "", max(1, width - 2), 2) if self._reason else []
        return [
            rule("machine", width),
            *machine_lines(self._look.machine, width),
            *(line((f" {text}", "dim")) for text in reason),
        ]

    def explain_item(self, item: GpuSample) -> list[tuple[str, str]]:
        """Help on each figure of a device, and what is wrong with it."""
        return explain_device(item)


def key_of(gpu: GpuSample) -> str:
    """The key that identifies a device across polls."""
    return gpu.uuid or f"{gpu.host or ''} index {gpu.index}"


def name_of(gpu: GpuSample, here: str | None = None) -> str:
    """`GPU 3`, or `GPU 3 on b` for another host than `here`."""
    return f"GPU {gpu.index}" + (f" on {gpu.host}" if here and gpu.host not in (None, here) else "")


def owners_of(gpu: GpuSample, look: Look) -> Owners:
    """Job and rank of the processes on a device, whose pids are known only on this host."""
    return look.owners if gpu.host in (None, look.machine.host) else NOBODY


class ProcessTable(Table[GpuProcess]):
    """The processes on one device."""

    cursor_needs_focus = True

    def __init__(self) -> None:
        super().__init__("processes", PROCESS_COLUMNS, id="processes")
        self._owners: Owners = {}

    def show(self, gpu: GpuSample, look: Look) -> None:
        """Show the selected device."""
        self.items = heaviest_first(gpu.processes or [])
        self._owners = owners_of(gpu, look)
        self.empty = NOT_REPORTED if gpu.processes is None else FREE
        self.title = f"processes on {name_of(gpu, look.machine.host)}"
        self.set_rows([(str(one.pid), process_row(one, self._owners)) for one in self.items])

    @property
    def job(self) -> str | None:
        """The job of the process under the cursor."""
        process = self.chosen
        return None if process is None else self._owners.get(process.pid, (process.job, None))[0]

    def explain_item(self, item: GpuProcess) -> list[tuple[str, str]]:
        """Help on the columns."""
        command = item.command or item.note or "command: n/a"
        return [(f"process {item.pid}", command), *about("processes")]


def no_device_lines(cells: int) -> list[Line]:
    """What to do on a machine without devices."""
    lines = [rule("no devices", cells)]
    for command, what in TO_DO:
        lines += [line((f"   {command}", "busy")), line((f"     {what}", "dim"))]
    return lines
