"""The device screen: which devices are idle, throttled, or broken."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget

from ddptop.charts.axis import window_label
from ddptop.charts.figures import FiguresData, figures_of, pause_s
from ddptop.charts.window import View
from ddptop.job.help import explain_device
from ddptop.job.keys import SCREENS
from ddptop.sources.devices import DevicesAnswer, DevicesQuery
from ddptop.sources.query import Look
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.bars import KeyBar, TitleBar
from ddptop.tui.widgets.charts import ChartWidget, FigureChart
from ddptop.tui.widgets.devices import (
    DeviceDetails,
    DevicesTable,
    MachinePanel,
    ProcessTable,
    key_of,
    name_of,
)
from ddptop.tui.widgets.table import HEAD_LINES, Table
from ddptop_runner.base.units import duration
from ddptop_runner.model.snapshot import GpuSample

FIRST_SPAN_S = 900.0
"""Initial range of the chart."""
RECORDED = 0.9
"""From this share of the range on, the title names the range, not how much of it is recorded."""

DAY_S = 86400.0
"""Longest range of the chart, as history reaches no further back."""


_OF_A_DEVICE = frozenset(
    action.id for action in SCREENS["devices"] if action.id.startswith(("device.", "chart."))
)
"""Actions that require a device."""


class DevicesScreen(MonitorScreen[DevicesAnswer]):
    """A table of devices, and the history, processes, and problems of the selected one."""

    DEFAULT_CSS = """
    DevicesScreen {
        #gpus { height: auto; }
        #figures { height: 1fr; min-height: 4; }
        #below { height: auto; }
        #processes { width: 1fr; height: 100%; }
        #device { width: 1fr; height: 100%; display: none; margin: 0 0 0 1; }
        #machine { height: 1fr; display: none; }
    }
    DevicesScreen.-none {
        #gpus, #figures, #below { display: none; }
        #machine { display: block; }
    }
    DevicesScreen.-tall #device { display: block; }
    """

    KEYS = "devices"
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(self, uuid: str | None = None, *, readonly: bool = False) -> None:
        """`uuid` is the device to select first; None selects the first one."""
        super().__init__(readonly=readonly)
        self._first = uuid
        self._title = TitleBar(readonly=readonly)
        self._chart = FigureChart(id="figures")
        self._chart.view = View(span=FIRST_SPAN_S)
        self._details = DeviceDetails(processes=False)
        self._machine = MachinePanel()
        self._below = Horizontal(id="below")
        self._keys = KeyBar(SCREENS[self.KEYS])
        self._heights: dict[Widget, int] = {}
        self._drawn: tuple[object, float] = (None, 0.0)
        self.devices = DevicesTable()
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
        yield from (self._machine, self._keys)

    def on_mount(self) -> None:
        """Focus the device table."""
        self.devices.focus()

    def charts(self) -> Sequence[ChartWidget]:
        """The chart of the selected device."""
        return [self._chart]

    def needs(self) -> DevicesQuery:
        """All devices, and the selected one's history over the range of the chart."""
        return DevicesQuery(span_s=self._span_s(), device=self._chosen_uuid())

    def _chosen_uuid(self) -> str | None:
        chosen = self.devices.chosen
        return self._first if chosen is None else chosen.uuid

    def _span_s(self) -> float:
        span, right = self._chart.time_span()
        if span is None:
            return DAY_S
        behind_s = 0.0
        if right is not None and self.answer is not None:
            behind_s = max(0.0, self.answer.look.now_s - right)
        return min(DAY_S, max(FIRST_SPAN_S, span + behind_s))

    def show(self, answer: DevicesAnswer) -> None:
        """Update the screen."""
        look, devices = answer.look, answer.look.devices
        self._title.show("devices", self.place(look))
        self._keys.show(
            None,
            readonly=self.readonly,
            cost=self.cost(look),
            without=frozenset() if devices.gpus else _OF_A_DEVICE,
        )
        self.set_class(not devices.gpus, "-none")
        if not devices.gpus:
            self._machine.show(look.machine, devices.note)
            return
        self.devices.show(
            devices.gpus,
            look.owners,
            answer.history,
            look.machine.host,
        )
        if self._first is not None:
            first, self._first = self._first, None
            self.devices.move_to(first)
        self._show_chosen()

    def _show_chosen(self) -> None:
        """Show what is known about the device under the cursor."""
        answer, gpu = self.answer, self.devices.chosen
        if answer is None or gpu is None:
            return
        here, owners = answer.look.machine.host, answer.look.owners
        self.processes.show(gpu, owners, here)
        self._details.show(gpu, owners if gpu.host in (None, here) else {})
        self._show_figures(answer, gpu)
        self._fit(len(gpu.processes or []))

    def _show_figures(self, answer: DevicesAnswer, gpu: GpuSample) -> None:
        """Redraw the chart only if it would look different."""
        look, history, now_s = answer.look, answer.history, answer.look.now_s
        span, recorded_s = self._chart.view.span, None
        if history.device == gpu.uuid and history.first is not None:
            recorded_s = max(1.0, history.until - history.first)
        label = window_label(span)
        if recorded_s is not None and span is not None and recorded_s < RECORDED * span:
            label = f"{duration(recorded_s)} recorded so far"
        title = f"{name_of(gpu, look.machine.host)}, {label}"
        if history.device != gpu.uuid:
            if self._drawn[0] != (gpu.uuid, None):
                self._drawn = (gpu.uuid, None), now_s
                self._chart.show(FiguresData(empty="reading history..."), title)
            return
        shown = self._chart.view
        known = (gpu.uuid, history.first, history.fills, shown.span, shown.right)
        wait_s = pause_s(shown.span, history, self.size.width)
        if known == self._drawn[0] and now_s - self._drawn[1] < wait_s:
            return
        self._drawn = known, now_s
        self._chart.show(figures_of(gpu, history), title)

    def _fit(self, processes: int) -> None:
        """Give the table its rows and the chart at least a third; the rest shares what is left."""
        room = self.size.height - 2
        table = min(self.devices.rows_wanted(), max(4, room * 2 // 5))
        chart = max(6, room // 3)
        details = 12 if self.has_class("-tall") else 0
        below = min(max(HEAD_LINES + max(1, processes), details), room - table - chart)
        below = 0 if below < HEAD_LINES + 1 else below
        for widget, rows in ((self.devices, table), (self._below, below)):
            if self._heights.get(widget) != rows:
                self._heights[widget] = rows
                widget.styles.height = rows

    @on(Table.Moved, "#gpus")
    def _moved(self) -> None:
        self._show_chosen()
        self.post_message(QueryChanged())

    @on(Table.Chosen, "#gpus")
    def _chosen(self) -> None:
        self._explain_device()

    @on(Table.Chosen, "#processes")
    def _process_chosen(self) -> None:
        self._open_job()

    def action_open(self) -> None:
        """Explain a device's figures, or open the job of a process."""
        if self.processes.has_focus:
            self._open_job()
        else:
            self._explain_device()

    def _explain_device(self) -> None:
        if (gpu := self.devices.chosen) is None:
            self.notify("no device selected", severity="warning")
            return
        key = key_of(gpu)

        def made(later: Look) -> tuple[str, list[tuple[str, str]]]:
            found = next((one for one in later.devices.gpus if key_of(one) == key), gpu)
            return "what each metric means; esc closes", explain_device(found)

        self.show_sections(
            name_of(gpu, None if self.answer is None else self.answer.look.machine.host),
            "what each metric means; esc closes",
            explain_device(gpu),
            made,
        )

    def _open_job(self) -> None:
        view = None if self.answer is None else self.answer.look.job(self.processes.job)
        if view is None:
            self.notify("this process does not belong to a known job", severity="warning")
            return
        self.open("job", view.name, foreign=view.is_foreign)

    def action_figure(self) -> None:
        """Put the next figure first."""
        self._chart.next_mode()
