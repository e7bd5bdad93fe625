"""All jobs of this machine, and its devices."""

from __future__ import annotations

import os

from textual import on
from textual.app import ComposeResult
from textual.reactive import var

from ddptop.tui import operations
from ddptop.tui.actions import OVERVIEW, bindings
from ddptop.tui.messages import (
    JobPicked,
    LaunchWanted,
    OperationWanted,
    SectionsWanted,
    WishChanged,
)
from ddptop.tui.render.chart import ChartOptions
from ddptop.tui.render.devices import holder_text
from ddptop.tui.render.foreign import unreadable_sections
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.snapshot import Snapshot, Wish
from ddptop.tui.widgets.device_details import DeviceDetails
from ddptop.tui.widgets.device_panel import DevicePanel
from ddptop.tui.widgets.jobs_table import JobsTable
from ddptop.tui.widgets.key_bar import KeyBar
from ddptop.tui.widgets.loss_chart import LossChart
from ddptop.tui.widgets.table import Table
from ddptop.tui.widgets.title_bar import TitleBar
from ddptop_runner.devices.owners import user_name
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.registry import AnyJob


class OverviewScreen(MonitorScreen):
    """The table of jobs above the machine's devices."""

    BINDINGS = bindings(OVERVIEW)

    page: var[str] = var("main", init=False)
    """`main`, or `devices` while they are shown alone."""

    def __init__(self, *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self._title = TitleBar(readonly=readonly)
        self._devices = DevicePanel(id="devices")
        self._device = DeviceDetails()
        self._jobs_height: int | str = "1fr"
        self._keys = KeyBar(OVERVIEW)
        self._chart = LossChart()
        self.jobs = JobsTable(my_name(), readonly=readonly)
        """The table."""

    def compose(self) -> ComposeResult:
        """Title, jobs, devices, keys."""
        yield from (self._title, self.jobs, self._chart, self._devices, self._device, self._keys)

    def on_mount(self) -> None:
        """The jobs have the keys."""
        self.jobs.focus()

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
        self._title.show("all jobs", self.place(snapshot))
        self.jobs.show(snapshot.jobs, now, snapshot.unreadable)
        self._show_keys()
        self._show_chart(snapshot)
        if not snapshot.wish.devices:
            return
        panel = self._devices
        if snapshot.devices.gpus:
            owners, brief = snapshot.owners, self.size.width < 100
            panel.show_devices(
                snapshot.devices.gpus,
                lambda gpu: holder_text(gpu, owners, brief=brief),
                reason=snapshot.devices.note,
            )
        else:
            panel.show_machine(snapshot.machine, snapshot.devices.note)
        rows = panel.rows_wanted()
        if panel.styles.height is None or panel.styles.height.value != rows:
            panel.styles.height = rows
        self._fit_jobs(rows)
        self._show_device()

    def _fit_jobs(self, device_rows: int) -> None:
        """Above the losses of one the jobs get the rows they need, up to half of what is left."""
        wanted: int | str = "1fr"
        if self.has_class("-tall") and self.has_class("-chosen"):
            left = self.size.height - min(device_rows, self.size.height // 2) - 2
            wanted = max(6, min(self.jobs.rows_wanted(), left // 2))
        if wanted != self._jobs_height:
            self._jobs_height = wanted
            self.jobs.styles.height = wanted

    @on(DevicePanel.Moved)
    def _show_device(self) -> None:
        if self.page == "devices" and self.snapshot is not None:
            self._device.show(self._devices.chosen, self.snapshot.owners)

    def watch_page(self, page: str) -> None:
        """Show devices alone or everything, and give that the keys."""
        self.set_class(page == "devices", "-page-devices")
        self._show_device()
        (self._devices if page == "devices" else self.jobs).focus()

    def action_page(self, page: str) -> None:
        """Show a page alone, or all again."""
        self.page = "main" if self.page == page else page

    def action_back(self) -> None:
        """From the devices to everything."""
        self.page = "main"

    def _show_chart(self, snapshot: Snapshot) -> None:
        """The job under the cursor at a glance; its place is kept while it is read."""
        self.set_class(bool(snapshot.jobs), "-chosen")
        if (detail := snapshot.detail) is not None and detail.view.job == self.jobs.cursor_key:
            self._chart.show(detail.chart, ChartOptions(), detail.view.job)

    def _chosen(self) -> AnyJob | None:
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
        self._keys.show(
            None if view is None else view.is_live,
            foreign=isinstance(view, ForeignView),
            readonly=self.readonly,
            cost=self.cost(self.snapshot) if self.snapshot is not None else ("", ""),
        )

    @on(Table.Chosen, "#jobs")
    def _open_chosen(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Show the job under the cursor."""
        if (view := self._chosen()) is not None:
            self.post_message(JobPicked(view.job, isinstance(view, ForeignView)))

    def action_findings(self) -> None:
        """Everything that is wrong with the job under the cursor, in full."""
        if self.snapshot is not None:
            self.show_findings(self._chosen(), self.snapshot)

    def action_unseen(self) -> None:
        """Processes that may be training, and why they may not be looked into."""
        unreadable = self.snapshot.unreadable if self.snapshot is not None else ()
        hint = "they may be training; ddptop may not look into them"
        if not unreadable:
            hint = "every process that may be training could be looked into"
        sections = unreadable_sections(unreadable)
        self.post_message(SectionsWanted("processes that could not be seen", hint, sections))

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
        """Back from the devices; else leave, and jobs go on."""
        if self.page != "main":
            self.page = "main"
        else:
            self.app.exit()


def my_name() -> str:
    """The user whose jobs need no name beside them."""
    return user_name(os.getuid())
