"""The job list, with the devices of this machine."""

from __future__ import annotations

import datetime as dt
import os

from textual import on
from textual.app import ComposeResult

from ddptop.draw.panels import damaged_sections, unreadable_sections
from ddptop.job.figures.jobs import JOB_WORDS
from ddptop.job.filter import EXAMPLES, parse
from ddptop.job.groups import by_loss
from ddptop.job.keys import SCREENS, key, with_keys
from ddptop.job.queue import row_in_words
from ddptop.job.record import Job
from ddptop.job.status import ORDERS, seen_key
from ddptop.sources.history import ChartQuery
from ddptop.sources.overview import OverviewAnswer, OverviewQuery
from ddptop.style import Line
from ddptop.tui import operations
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.bars import FilterBar
from ddptop.tui.widgets.charts import LossChart
from ddptop.tui.widgets.devices import DevicesTable
from ddptop.tui.widgets.jobs import JobsTable, WaitingJobs, sentence_lines
from ddptop.tui.widgets.lines import Panel
from ddptop.tui.widgets.table import Table
from ddptop_runner.host import procs

SENTENCE_ROWS, MOST_SENTENCE_ROWS = 3, 7
"""Rows for the sentence on the job under the cursor, if there is room, and for a long one."""


class OverviewScreen(MonitorScreen[OverviewAnswer]):
    """The table of jobs above the machine's devices."""

    DEFAULT_CSS = """
    OverviewScreen {
        #jobs { height: 1fr; min-height: 6; }
        #sentence { height: 1; display: none; }
        #chart { height: 1fr; min-height: 6; display: none; }
        #devices { height: auto; max-height: 50%; }
    }

    /* the loss of the job under the cursor, where there is room for it */
    OverviewScreen.-tall #chart.-chosen { display: block; }
    OverviewScreen #sentence.-chosen { display: block; }
    OverviewScreen #waiting { display: none; height: 0; }
    OverviewScreen #waiting.-some { display: block; }
    """

    KEYS = "all jobs"
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(self, *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self._devices = DevicesTable(cursor_needs_focus=True)
        self._sentence = Panel(id="sentence")
        self._waiting = WaitingJobs(my_name())
        self._chart = LossChart(glance=True)
        self._filter = FilterBar(EXAMPLES)
        self._seen: set[tuple[str, dt.datetime | None]] = set()
        self.jobs = JobsTable(my_name(), readonly=readonly)
        """The table of jobs."""

    def compose(self) -> ComposeResult:
        """Title, jobs, devices, and keys."""
        yield from (
            self._title,
            self.jobs,
            self._waiting,
            self._sentence,
            self._chart,
            self._devices,
        )
        yield from (self._filter, self._keys)

    def on_mount(self) -> None:
        """Focus the jobs."""
        self.jobs.focus()

    def needs(self) -> OverviewQuery:
        """Jobs, devices, and the losses of the job under the cursor."""
        return OverviewQuery(
            job=self._charted if self.has_class("-tall") else None,
            chart=ChartQuery(max(60, 2 * self.app.size.width), glance=True),
        )

    def show(self, answer: OverviewAnswer) -> None:
        """Update the table and the devices."""
        look = answer.look
        self._title.show("all jobs", self.place(look))
        self.jobs.show(look, answer.trends, self._seen)
        self._waiting.show(answer.queue, answer.slurm, look.taken_at)
        self._show_matches()
        self._show_chosen()
        self._show_chart(answer)
        self._show_devices(answer)

    def _show_devices(self, answer: OverviewAnswer) -> None:
        devices = answer.look.devices
        self._devices.show(devices.gpus, answer.look, answer.device_history, reason=devices.note)
        rows = self._devices.rows_wanted()
        self._devices.styles.height = rows
        self._fit_jobs(rows)

    def _fit_jobs(self, device_rows: int) -> None:
        """Give the jobs the rows they need, but above a chart at most half of what is left."""
        left = self.size.height - min(device_rows, self.size.height // 2) - 2 - self._waiting.rows
        needed = self.jobs.rows_wanted()
        wanted: int | str = "1fr"
        free, sentence_rows = left - needed, 1
        if free >= SENTENCE_ROWS or self.has_class("-tall"):
            lines = self._sentence_lines(self.size.width, MOST_SENTENCE_ROWS)
            sentence_rows = max(SENTENCE_ROWS, min(len(lines), free))
        if self.has_class("-tall") and self._sentence.has_class("-chosen"):
            wanted = max(6, min(needed, (left - sentence_rows) // 2))
        self.jobs.styles.height = wanted
        self._sentence.styles.height = sentence_rows

    def _show_chart(self, answer: OverviewAnswer) -> None:
        """Show the losses of the job under the cursor; keep their place while they are read."""
        for widget in (self._sentence, self._chart):
            widget.set_class(bool(answer.look.jobs), "-chosen")
        if answer.chosen is not None and answer.chosen == self._charted:
            self._chart.show_job(answer.chart, answer.chosen)

    # --- the filter, the order, the marks --------------------------------------------------------

    def action_filter(self) -> None:
        """Open the filter for jobs."""
        self._filter.open()
        self._show_matches()

    @on(FilterBar.Changed)
    def _filter_by(self, event: FilterBar.Changed) -> None:
        self.jobs.filter = parse(event.text, JOB_WORDS)
        self.jobs.refill()
        if self.jobs.filter:
            self.jobs.action_move(-self.jobs.known)
        self._show_matches()

    @on(FilterBar.Closed)
    def _show_matches(self) -> None:
        jobs = self.jobs
        count = f"{jobs.shown} of {jobs.known}" if jobs.filter else ""
        self._filter.show_matches(jobs.filter, count)

    def action_sort(self) -> None:
        """Sort by the next criterion."""
        orders = list(ORDERS)
        order = orders[(orders.index(self.jobs.order) + 1) % len(orders)]
        self.jobs.sort(order)

    def action_mark(self) -> None:
        """Mark or unmark the job under the cursor."""
        if self.own_target("history") is not None:
            self.jobs.mark()

    def action_back(self) -> None:
        """Clear the filter."""
        self._filter.drop()

    # --- to other screens ------------------------------------------------------------------------

    def action_logs(self) -> None:
        """Show the logs of the job under the cursor."""
        if (view := self.target()) is not None:
            self.open("logs", view.name, foreign=view.is_foreign)

    def action_story(self) -> None:
        """Show the story of the job under the cursor."""
        if (view := self.own_target("story")) is not None:
            self._mark_opened(view)
            self.open("story", view.name)

    def action_compare(self) -> None:
        """Compare the marked jobs; with fewer than two marks, also the one under the cursor."""
        if len(self.jobs.marked) > 1:
            self.open("compare", tuple(self.jobs.marked))
            return
        if (sweep := self._chosen()) is not None and sweep.members:
            self.open("compare", tuple(job.name for job in by_loss(sweep.members)))
            return
        if (view := self.own_target("history")) is None:
            return
        self.open("compare", tuple(dict.fromkeys([*self.jobs.marked, view.name])))

    @on(Table.Chosen, "#devices")
    def action_devices(self) -> None:
        """Open the device screen."""
        chosen = self._devices.chosen if self._devices.has_focus else None
        self.open("devices", None if chosen is None else chosen.uuid)

    def _mark_opened(self, view: Job) -> None:
        self._seen.update(seen_key(job) for job in view.members or (view,) if not job.is_live)

    def target(self) -> Job | None:
        """The job under the cursor; notifies the user if there is none."""
        view = self._chosen()
        if view is None:
            self.warn(f"no job selected; press {key('job.launch')} to launch one")
        elif view.members:
            self.warn(f"{view.name} is a sweep; press {key('job.open')} to show its jobs")
            return None
        return view

    def _chosen(self) -> Job | None:
        """The job or the sweep under the cursor."""
        return None if self.jobs.chosen is None else self.jobs.chosen.job

    @property
    def _charted(self) -> str | None:
        """The job under the cursor, or the best one of the sweep there."""
        view = self._chosen()
        return None if view is None else by_loss(view.members or (view,))[0].name

    def action_operate(self, name: str) -> None:
        """Stop, kill, or remove a job or all jobs of a sweep, after confirmation."""
        view = self._chosen()
        if view is not None and view.members:
            operations.start(self.ddptop, view, name)
        else:
            super().action_operate(name)

    def action_again(self) -> None:
        """Relaunch the job, or those jobs of a sweep that did not finish."""
        if (view := self._chosen()) is not None and view.members:
            self.action_operate("relaunch")
        else:
            super().action_again()

    @on(Table.Moved, "#jobs")
    def _cursor_moved(self) -> None:
        self._show_chosen()
        self.post_message(QueryChanged())

    def _show_chosen(self) -> None:
        self._sentence.paint(self._sentence_lines)
        self._keys.show(self._chosen())

    def _sentence_lines(self, cells: int, rows: int) -> list[Line]:
        return sentence_lines(self.jobs.chosen, cells, rows, readonly=self.readonly)

    @on(Table.Chosen, "#jobs")
    def action_open(self) -> None:
        """Show the job under the cursor, or show or hide the jobs of the sweep."""
        if (view := self._chosen()) is not None:
            self._mark_opened(view)
            if view.members:
                self.jobs.toggle(view.name)
                return
            self.open("job", view.name, foreign=view.is_foreign)

    def action_unseen(self) -> None:
        """Show processes that may be training but cannot be inspected, and why."""
        look = None if self.answer is None else self.answer.look
        unreadable = () if look is None else look.unreadable
        hint = "these may be training jobs, but ddptop cannot inspect them"
        if not unreadable:
            hint = "ddptop can inspect all processes that may be training"
        sections = unreadable_sections(unreadable)
        damaged = () if look is None else look.damaged
        sections += damaged_sections(damaged)
        title = "run folders and processes" if damaged else "processes"
        self.show_sections(f"{title} that cannot be inspected", hint, sections)

    def action_queue(self) -> None:
        """Show the jobs that run or wait."""
        if self.answer is None:
            return
        now, rows = self.answer.look.taken_at, self.answer.queue
        sections = [(row.job, row_in_words(row, now)) for row in rows]
        hint = "{queue.first} and {queue.last} move your job, and {job.stop} cancels it"
        self.show_sections("queue", with_keys(hint) if rows else "no job waits", sections)

    def action_leave(self) -> None:
        """Quit; jobs keep running."""
        self.app.exit()


def my_name() -> str:
    """The user whose name is left out of the table."""
    return procs.user_name(os.getuid())
