"""The device screen: which devices are idle, throttled, or broken."""

from __future__ import annotations

from functools import partial

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal

from ddptop.charts.axis import View, window_label
from ddptop.charts.curves import Curves
from ddptop.charts.plots import figures_of
from ddptop.draw.devices import detail_lines
from ddptop.job.help import explain_device
from ddptop.job.keys import SCREENS
from ddptop.sources.devices import DevicesAnswer, DevicesQuery
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.charts import FigureChart
from ddptop.tui.widgets.devices import DevicesTable, ProcessTable, name_of, no_device_lines
from ddptop.tui.widgets.lines import Panel
from ddptop.tui.widgets.table import HEAD_LINES, Table

FIRST_SPAN_S = 900.0
"""Initial range of the chart."""


class DevicesScreen(MonitorScreen[DevicesAnswer]):
    """A table of devices, and the history, processes, and problems of the selected one."""

    DEFAULT_CSS = """
    DevicesScreen {
        #gpus { height: auto; }
        #figures { height: 1fr; min-height: 4; }
        #below { height: auto; }
        #processes { width: 1fr; height: 100%; }
        #device { width: 1fr; height: 100%; display: none; margin: 0 0 0 1; }
    }
    DevicesScreen.-none #figures, DevicesScreen.-none #processes { display: none; }
    DevicesScreen.-tall #device, DevicesScreen.-none #device { display: block; }
    DevicesScreen.-none #below { height: 1fr; }
    DevicesScreen.-none #device { margin: 1 0 0 0; }
    """

    KEYS = "devices"
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(self, uuid: str | None = None, *, readonly: bool = False) -> None:
        """`uuid` is the device to select first; None selects the first one."""
        super().__init__(readonly=readonly)
        self._first = uuid
        self._chart = FigureChart(id="figures")
        self.charts = (self._chart,)
        self._chart.view = View(span=FIRST_SPAN_S)
        self._details = Panel(id="device")
        self._below = Horizontal(id="below")
        self.devices = DevicesTable(id="gpus")
        """The table."""
        self.processes = ProcessTable()
        """The processes on the device under the cursor."""

    @property
    def subject(self) -> tuple[object, ...]:
        """The device under the cursor."""
        return (self._chosen_uuid(),)

    def compose(self) -> ComposeResult:
        """The device table, above the history, processes, and details of the selected device."""
        yield from (self._title, self.devices, self._chart)
        with self._below:
            yield from (self.processes, self._details)
        yield self._keys

    def on_mount(self) -> None:
        """Focus the device table."""
        self.devices.focus()

    def needs(self) -> DevicesQuery:
        """All devices, and the selected one's history."""
        return DevicesQuery(device=self._chosen_uuid())

    def _chosen_uuid(self) -> str | None:
        chosen = self.devices.chosen
        return self._first if chosen is None else chosen.uuid

    def show(self, answer: DevicesAnswer) -> None:
        """Update the screen."""
        look, devices = answer.look, answer.look.devices
        self._title.show("devices", self.place(look))
        self._keys.show(None)
        self.set_class(not devices.gpus, "-none")
        reason = devices.note
        if not devices.gpus and reason is None:
            reason = "the driver reports no devices"
        self.devices.show(devices.gpus, look, answer.history, reason=reason)
        if not devices.gpus:
            self.devices.styles.height = self.devices.rows_wanted()
            self._details.paint(lambda cells, _: no_device_lines(cells))
        elif self._first is not None:
            first, self._first = self._first, None
            self.devices.move_to(first)
        self._show_chosen()

    def _show_chosen(self) -> None:
        """Show what is known about the device under the cursor."""
        answer, gpu = self.answer, self.devices.chosen
        if answer is None or gpu is None:
            return
        self.processes.show(gpu, answer.look)
        self._details.paint(partial(detail_lines, gpu))
        name = name_of(gpu, answer.look.machine.host)
        data = Curves(empty="reading history...")
        if answer.history.device == gpu.uuid:
            data = figures_of(gpu, answer.history)
        self._chart.show(data, f"{name}, {window_label(self._chart.view.span)}")
        self._fit(len(gpu.processes or []))

    def _fit(self, processes: int) -> None:
        """Give the table its rows and the chart at least a third; the rest shares what is left."""
        room = self.size.height - 2
        table = min(self.devices.rows_wanted(), max(4, room * 2 // 5))
        chart = max(6, room // 3)
        details = 12 if self.has_class("-tall") else 0
        below = min(max(HEAD_LINES + max(1, processes), details), room - table - chart)
        below = 0 if below < HEAD_LINES + 1 else below
        self.devices.styles.height = table
        self._below.styles.height = below

    @on(Table.Moved, "#gpus")
    def _moved(self) -> None:
        self._show_chosen()
        self.post_message(QueryChanged())

    @on(Table.Chosen)
    def action_open(self) -> None:
        """Explain a device's figures, or open the job of a process."""
        if (answer := self.answer) is None:
            return
        if self.processes.has_focus:
            if (view := answer.look.job(self.processes.job)) is None:
                self.warn("this process does not belong to a known job")
            else:
                self.open("job", view.name, foreign=view.is_foreign)
        elif (gpu := self.devices.chosen) is None:
            self.warn("no device selected")
        else:
            hint = "what each metric means; esc closes"
            name = name_of(gpu, answer.look.machine.host)
            self.show_sections(name, hint, explain_device(gpu))
