"""All jobs of this machine, and its devices."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from ddptop.tui import operations
from ddptop.tui.actions import OVERVIEW, bindings
from ddptop.tui.messages import JobPicked, LaunchWanted, OperationWanted, WishChanged
from ddptop.tui.render.chart import ChartOptions
from ddptop.tui.render.panels import device_trouble
from ddptop.tui.render.text import Line, clip, fill, line
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import Snapshot, Wish
from ddptop.tui.widgets.device_panel import DevicePanel
from ddptop.tui.widgets.jobs_table import JobsTable
from ddptop.tui.widgets.key_bar import KeyBar
from ddptop.tui.widgets.loss_chart import LossChart
from ddptop.tui.widgets.table import Table
from ddptop.tui.widgets.title_bar import TitleBar
from ddptop_runner.model import GpuSample
from ddptop_runner.registry import JobView


def holder_text(gpu: GpuSample) -> Line:
    """Who holds a device: job and rank, or user and command; and what is wrong with it."""
    parts: list[Line] = []
    for process in gpu.processes or []:
        if process.job is not None:
            rank = "" if process.rank is None else f" rank {process.rank}"
            parts.append(line((clip(process.job, 20), ""), (rank, "dim")))
        else:
            who = process.user or "someone"
            parts.append(line((f"{who}: {clip(process.command or '?', 16)}", "dim")))
    if not gpu.processes:
        parts.append(line(("n/a" if gpu.processes is None else "free", "dim")))
    parts.append(device_trouble(gpu))
    return fill(parts, 60, ", ")


class OverviewScreen(MonitorScreen):
    """The table of jobs above the machine's devices."""

    BINDINGS = bindings(OVERVIEW)

    def __init__(self) -> None:
        super().__init__()
        self._title = TitleBar()
        self._devices = DevicePanel(id="devices")
        self._keys = KeyBar(OVERVIEW)
        self._chart = LossChart()
        self.jobs = JobsTable()
        """The table."""

    def compose(self) -> ComposeResult:
        """Title, jobs, devices, keys."""
        yield from (self._title, self.jobs, self._chart, self._devices, self._keys)

    def wish(self) -> Wish:
        """Jobs, devices, and the losses of the job under the cursor."""
        return Wish(
            job=self.jobs.cursor_key if self.has_class("-tall") else None,
            devices=True,
            chart_columns=max(60, 2 * self.app.size.width),
        )

    def show(self, snapshot: Snapshot) -> None:
        """Bring table and devices up to date."""
        now = snapshot.taken_at
        local = now.astimezone()
        right = line((snapshot.machine.host, ""), (f"  {local:%H:%M:%S}", "dim"))
        self._title.show("all jobs", right)
        self.jobs.show(snapshot.jobs, now)
        self._show_keys()
        self._show_chart(snapshot)
        if not snapshot.wish.devices:
            return
        panel = self._devices
        if snapshot.devices.gpus:
            panel.show_devices(snapshot.devices.gpus, holder_text, reason=snapshot.devices.note)
        else:
            panel.show_machine(snapshot.machine, snapshot.devices.note)
        rows = panel.rows_wanted()
        if panel.styles.height is None or panel.styles.height.value != rows:
            panel.styles.height = rows

    def _show_chart(self, snapshot: Snapshot) -> None:
        """The job under the cursor at a glance; its place is kept while it is read."""
        self.set_class(bool(snapshot.jobs), "-chosen")
        if (detail := snapshot.detail) is not None and detail.view.job == self.jobs.cursor_key:
            self._chart.show(detail.chart, ChartOptions(), detail.view.job)

    def _chosen(self) -> JobView | None:
        if self.snapshot is None:
            return None
        key = self.jobs.cursor_key
        return next((view for view in self.snapshot.jobs if view.job == key), None)

    def _want(self, make: operations.Maker, needs_live: bool) -> None:
        if (view := self._chosen()) is None:
            self.notify("there is no job to do that with; n launches one", severity="warning")
        else:
            self.post_message(OperationWanted(view, make, needs_live))

    @on(Table.Moved, "#jobs")
    def _cursor_moved(self) -> None:
        self._show_keys()
        self.post_message(WishChanged())

    def _show_keys(self) -> None:
        view = self._chosen()
        self._keys.show(None if view is None else view.is_live)

    @on(Table.Chosen, "#jobs")
    def _open_chosen(self, message: Table.Chosen) -> None:
        self.post_message(JobPicked(message.key))

    def action_open(self) -> None:
        """Show the job under the cursor."""
        if (view := self._chosen()) is not None:
            self.post_message(JobPicked(view.job))

    def action_launch(self) -> None:
        """Open the form."""
        self.post_message(LaunchWanted())

    def action_stop(self) -> None:
        """Stop the job under the cursor, once confirmed."""
        self._want(operations.stop, True)

    def action_kill(self) -> None:
        """Kill the job under the cursor, once confirmed."""
        self._want(operations.kill, True)

    def action_again(self) -> None:
        """Start the ended job under the cursor again, once confirmed."""
        self._want(operations.again, False)

    def action_remove(self) -> None:
        """Delete the ended job under the cursor, once confirmed."""
        self._want(operations.remove, False)

    def action_leave(self) -> None:
        """Leave; jobs go on."""
        self.app.exit()
