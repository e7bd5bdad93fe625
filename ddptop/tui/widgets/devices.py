"""Widgets of the device screen: devices, processes, details, and a host without devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from ddptop.draw.devices import (
    PROCESS_COLUMNS,
    Holder,
    Owners,
    common_name,
    detail_lines,
    device_columns,
    device_lines,
    device_row,
    device_trouble,
    first_seen,
    heaviest_first,
    label,
    process_row,
)
from ddptop.draw.panels import cpu_rank_lines, machine_lines, short_name
from ddptop.job.figures.columns import Column, Row
from ddptop.job.help import explain_device
from ddptop.job.hosts import hosts_of_devices
from ddptop.job.keys import MOVING, key
from ddptop.job.outliers import imbalance_note
from ddptop.job.series import DeviceHistory, Machine
from ddptop.style import Line, line, rule, wrap
from ddptop.tui.keymap import bindings
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.table import Table
from ddptop_runner.base.units import plural
from ddptop_runner.judge.balance.imbalance import is_even_load
from ddptop_runner.model.snapshot import GpuProcess, GpuSample, Imbalance, RankSample

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


NOTHING_KNOWN = Imbalance()
HEAD_LINES = 2
MOST_ROWS = 64
"""With more devices, only the visible ones are drawn."""
"""The rule with the title, and the column names."""


class DevicePanel(LinesView, can_focus=True):
    """One row per device under a title, or one row per rank if there is no device.

    While focused, it has a cursor and scrolls if there are more devices than rows.
    """

    BINDINGS = bindings(MOVING)

    @dataclass
    class Moved(Message):
        """The cursor moved to another device."""

        panel: DevicePanel

    class Chosen(Moved):
        """Enter, or a click on the device under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._cursor = 0
        self._top = 0
        self._gpus: Sequence[GpuSample] = ()
        self._holder: Holder = lambda gpu: ()
        self._ranks: Sequence[RankSample] = ()
        self._machine: Machine | None = None
        self._reason: str | None = None
        self._imbalance = Imbalance()
        self._has_slow_rank = False
        self._recent: Mapping[str, Sequence[float | None]] | None = None

    def show_devices(
        self,
        gpus: Sequence[GpuSample],
        holder: Holder,
        imbalance: Imbalance = NOTHING_KNOWN,
        has_slow_rank: bool = False,
        *,
        reason: str | None = None,
        history: DeviceHistory | None = None,
    ) -> None:
        """Show devices.

        Args:
            gpus: the devices.
            holder: returns who holds a device.
            imbalance: the imbalance of the job that holds them.
            has_slow_rank: whether a rank of the job holds up the others.
            reason: why figures are incomplete.
            history: their utilization so far.
        """
        self._gpus, self._holder, self._reason = gpus, holder, reason
        self._recent = None if history is None else history.recent
        self._imbalance, self._has_slow_rank = imbalance, has_slow_rank
        self._ranks, self._machine = (), None
        self.redraw()

    def show_ranks(
        self,
        ranks: Sequence[RankSample],
        imbalance: Imbalance,
        has_slow_rank: bool = False,
    ) -> None:
        """Show CPU and resident memory of a job's ranks."""
        self._gpus, self._ranks, self._reason = (), ranks, None
        self._imbalance, self._has_slow_rank = imbalance, has_slow_rank
        self._machine = None
        self.redraw()

    def show_machine(self, machine: Machine, reason: str | None) -> None:
        """Show the machine's CPU and memory, and why there is no device."""
        self._gpus, self._ranks, self._imbalance = (), (), NOTHING_KNOWN
        self._machine, self._reason = machine, reason
        self.redraw()

    @property
    def chosen(self) -> GpuSample | None:
        """The device under the cursor."""
        if not self._gpus:
            return None
        self._cursor = min(self._cursor, len(self._gpus) - 1)
        return self._gpus[self._cursor]

    def action_move(self, rows: int) -> None:
        """Move the cursor by some devices."""
        self._move_to(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by one page."""
        self.action_move(pages * max(1, self.size.height - HEAD_LINES))

    def action_half(self, halves: int) -> None:
        """Move the cursor by half a page."""
        self.action_move(halves * max(1, (self.size.height - HEAD_LINES) // 2))

    def _move_to(self, index: int) -> None:
        index = min(len(self._gpus) - 1, max(0, index))
        if self._gpus and index != self._cursor:
            self._cursor = index
            self.redraw()
            self.post_message(self.Moved(self))

    def cursor_line(self) -> int | None:
        """The row of the cursor, while focused."""
        if not self.has_focus or not self._gpus:
            return None
        return HEAD_LINES + self._cursor - self._top

    def on_focus(self) -> None:
        """Show the cursor."""
        self.redraw()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the device that was clicked, or choose it if the cursor is there."""
        index = self._top + event.y - HEAD_LINES
        if event.y < HEAD_LINES or index >= len(self._gpus):
            return
        if index == self._cursor:
            self.action_choose()
        else:
            self._move_to(index)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(-1)

    def action_choose(self) -> None:
        """Choose the device under the cursor."""
        if self._gpus:
            self.post_message(self.Chosen(self))

    def explain(self) -> list[tuple[str, str]]:
        """Help on the device under the cursor."""
        gpu = self.chosen
        return [] if gpu is None else explain_device(gpu)

    def _note(self, cells: int) -> Line:
        even = is_even_load(self._ranks, self._gpus)
        return imbalance_note(self._imbalance, self._has_slow_rank, cells, even)

    def rows_wanted(self) -> int:
        """Rows needed to show everything."""
        cells = max(40, self.size.width or 80)
        if self._gpus:
            return HEAD_LINES + len(self._gpus) + len(self._reason_lines(cells))
        return len(self.build(cells, 1000))

    def build(self, width: int, height: int) -> list[Line]:
        """Build the title and the rows."""
        if self._gpus:
            return self._device_lines(width, height)
        if self._ranks:
            lines = [rule("CPU and memory", width, self._note(width - 25))]
            lines += cpu_rank_lines(self._ranks, width)
        else:
            lines = [rule("machine", width)]
            lines += machine_lines(self._machine, width) if self._machine else []
        return _cut([*lines, *self._reason_lines(width)], height)

    def _device_lines(self, width: int, height: int) -> list[Line]:
        """One row per device; if focused and not all fit, those around the cursor."""
        reason = self._reason_lines(width)
        room = height - HEAD_LINES - len(reason)
        number = len(self._gpus)
        scrolls = self.has_focus and 0 < room < number
        self._top = 0
        note = self._note(width - 18)
        if scrolls:
            self._cursor = min(self._cursor, number - 1)
            self._top = min(max(0, self._cursor - room // 2), number - room)
            note = (*note, (f"  {self._top + 1}-{self._top + room} of {number}", "dim"))
        shown = self._gpus[self._top : self._top + room] if scrolls else self._gpus
        hosts = hosts_of_devices(self._gpus)
        if number > MOST_ROWS and not scrolls:
            shown = shown[:height]  # the last line counts the others
        rows = device_lines(shown, width, self._holder, self._recent, hosts)
        lines = [rule(self._heading(), width, note), *rows, *reason]
        if scrolls or (len(shown) == number and len(lines) <= height):
            return _cut(lines, height)
        return self._cut_devices(lines, reason, height)

    def _heading(self) -> str:
        name = common_name(self._gpus)
        if name is None:
            return "devices"
        whole = sum(gpu.parent_uuid is None for gpu in self._gpus)
        return f"{plural(whole, 'device')}, {short_name(name)}"

    def _cut_devices(self, lines: list[Line], reason: list[Line], height: int) -> list[Line]:
        """As many devices as fit; the last line counts the others and names faulty ones."""
        room = height - len(reason)
        if room <= HEAD_LINES + 1:
            return _cut(lines, height)
        hidden = self._gpus[room - HEAD_LINES - 1 :]
        missing = line((f" and {len(hidden)} more", "dim"))
        hosts = hosts_of_devices(self._gpus)
        if failed := [label(gpu, hosts) for gpu in hidden if gpu.lost or _has_failed(gpu)]:
            missing = (*missing, (f", problems on GPU {', '.join(failed)}", "warn"))
        return [*lines[: room - 1], (*missing, (f": press {key('view.devices')}", "dim")), *reason]

    def _reason_lines(self, width: int) -> list[Line]:
        if not self._reason:
            return []
        return [
            line((f" i {text}" if self._gpus else f" {text}", "dim"))
            for text in wrap(self._reason, width - 4, 2)
        ]


def _has_failed(gpu: GpuSample) -> bool:
    return any(style in ("warn", "bad") for _, style in device_trouble(gpu))


def _cut(lines: list[Line], height: int) -> list[Line]:
    """As many lines as fit; the last line counts those left out."""
    if len(lines) <= height or height < 2:
        return lines[:height]
    missing = len(lines) - height + 1
    return [
        *lines[: height - 1],
        line((f" and {missing} more: press {key('view.devices')}", "dim")),
    ]
