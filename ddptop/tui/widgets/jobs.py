"""Widgets of the job list: the table, the sentence on the selected job, and the queues."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from textual import events

from ddptop.draw.panels import damaged_line, unreadable_line
from ddptop.job.compare import MOST_COMPARED
from ddptop.job.figures.jobs import (
    COLUMN_OF_ORDER,
    Subject,
    by_text,
    columns_for,
    job_facts,
    job_row,
    sentence_cell,
    without_empty,
)
from ddptop.job.filter import Filter
from ddptop.job.groups import by_loss, grouped, short_name
from ddptop.job.help import explain_job
from ddptop.job.keys import key, with_keys
from ddptop.job.queue import NO_GPUS, QueueRow, cells
from ddptop.job.ranks import launcher_name
from ddptop.job.record import Job
from ddptop.job.series import LossTrend
from ddptop.job.status import (
    NO_PROBLEMS,
    NONE_DETECTED,
    ORDERS,
    Attention,
    Seen,
    attention,
    brief,
    next_step,
    ranked,
    state_of,
)
from ddptop.sources.query import Look
from ddptop.style import Line, fit_columns, line, plain, wrap
from ddptop.tui.widgets.lines import Panel
from ddptop.tui.widgets.table import Table
from ddptop_runner.base.units import NOT_AVAILABLE
from ddptop_runner.launch.slurm import SlurmJob
from ddptop_runner.store.log_clean import sanitize

FIRST_LOOK = "looking for jobs and training processes on this machine..."
EMPTY = """no jobs yet, and no other training processes found on this machine

{how}

   ddptop launch --gpus 0-3 train.py
   ddptop launch --gpus none --nproc 2 train.py    on CPUs
   ddptop demo                                     to try it out"""
NO_MATCH = """no jobs match

press {view.back} to show all jobs"""


class JobsTable(Table[Attention]):
    """One row per job, the most urgent first."""

    def __init__(self, me: str | None = None, *, readonly: bool = False) -> None:
        """`me` is the user whose name is not shown."""
        how = (
            "run in a shell:"
            if readonly
            else f"press {key('job.launch')} to launch one, or run in a shell:"
        )
        super().__init__("jobs", columns_for(0), empty=FIRST_LOOK, id="jobs")
        self._none = EMPTY.format(how=how)
        self._me = me
        self._views: Sequence[Job] = ()
        self._now = dt.datetime.min
        self._look: Look | None = None
        self._trends: Mapping[str, LossTrend] = {}
        self._seen: Seen = ()
        self._drawn: object = None
        self.marked: list[str] = []
        """Names of the marked jobs, in the order of marking."""
        self.order = "need"
        """The sort order, a key of `ORDERS`."""
        self.filter = Filter()
        """Jobs that do not match are hidden."""
        self.opened: set[str] = set()
        """The sweeps whose jobs are shown."""
        self._follows_first = True  # foreign jobs, found later, may be more urgent

    def show(self, look: Look, trends: Mapping[str, LossTrend], seen: Seen) -> None:
        """Show the jobs with their loss trends; `seen` are ended jobs that the user has opened."""
        self._look, self._trends, self._seen = look, trends, seen
        self._views, self._now = look.jobs, look.taken_at
        names = {view.name for view in look.jobs}
        self.marked = [name for name in self.marked if name in names]
        self.refill()

    def refill(self) -> None:
        """Filter and sort the rows."""
        everything = self._everything()
        self.items = [one for one in everything if self._matches(one)]
        self.sorted_by = COLUMN_OF_ORDER[self.order]
        names = [
            f"{'◆ ' * (one.job.name in self.marked)}{self._label(one.job)}" for one in everything
        ]
        states = [state_of(view)[0] for view in self._views]
        by = [by_text(view, self._me)[0] for view in self._views]
        others = any(job.is_foreign or launcher_name(job) is not None for job in self._views)
        self._columns = columns_for(self.size.width, names, states, by if others else ())
        if self._look is not None:
            self.empty = with_keys(NO_MATCH) if everything else self._none
        fitting = fit_columns(self._columns, self.size.width - 1)
        names_launcher = not any(column.key == "by" for column, _ in fitting)
        rows = [
            (
                one.job.name,
                job_row(
                    Subject(
                        one,
                        self._now,
                        self._me,
                        self._trends.get(one.job.name),
                        one.job.name in self.marked,
                        self._label(one.job),
                        names_launcher,
                    )
                ),
            )
            for one in self.items
        ]
        self._columns = without_empty(self._columns, [row for _, row in rows])
        note = self._count()
        foot = self.foot(self.size.width)
        drawn = (rows, note, self._columns, self.sorted_by, self.empty, foot, self.size)
        if drawn != self._drawn:  # most updates change nothing
            self._drawn = drawn
            self.set_rows(rows, note)

    def _everything(self) -> list[Attention]:
        """All rows in order: sweeps as one, with their jobs below those that are open.

        A filter finds single jobs.
        """
        jobs = self._views if self.filter else grouped(self._views)
        found: list[Attention] = []
        for one in ranked(jobs, self._now, self._seen, self.order):
            found.append(one)
            if one.job.name in self.opened:
                members = by_loss(one.job.members)
                found += [attention(job, self._now, self._seen) for job in members]
        return found

    def _label(self, job: Job) -> str:
        if job.members:
            return f"{'▾' if job.name in self.opened else '▸'} {job.name}"
        is_below = job.group in self.opened and not self.filter
        return f"  {short_name(job)}" if is_below else job.name

    def toggle(self, group: str) -> None:
        """Show or hide the jobs of a sweep."""
        self._follows_first = False
        self.opened ^= {group}
        self.refill()

    def on_resize(self, event: events.Resize) -> None:
        """Fit the columns to the new width."""
        self.refill()
        super().on_resize(event)

    @property
    def shown(self) -> int:
        """How many jobs match the filter."""
        return len(self.items)

    @property
    def known(self) -> int:
        """How many jobs there are."""
        return len(self._views)

    def mark(self) -> None:
        """Mark or unmark the job under the cursor; one too many replaces the first."""
        key = self.cursor_key
        self._follows_first = False
        if key in self.marked:
            self.marked.remove(key)
        elif key is not None:
            self.marked = [*self.marked[1 - MOST_COMPARED :], key]
        self.refill()

    def sort(self, order: str) -> None:
        """Sort the rows."""
        self.order = order
        self.refill()

    def explain_item(self, item: Attention) -> list[tuple[str, str]]:
        """Help on a row."""
        return explain_job(item)

    def foot(self, width: int) -> Line:
        """The count of processes that may be training but cannot be inspected."""
        if (look := self._look) is None:
            return ()
        return damaged_line(look.damaged, width) or unreadable_line(look.unreadable, width)

    def _matches(self, one: Attention) -> bool:
        if not self.filter:
            return True
        return self.filter.matches(job_facts(one.job, self._now, one.sentence))

    def _count(self) -> Line:
        views = self._views
        if not views:
            return ()
        live = sum(view.is_live for view in views)
        foreign = [one for one in views if one.is_live and one.is_foreign]
        elsewhere = sum(one.launcher == "ddptop" for one in foreign)
        text = f"{live} live"
        if ended := len(views) - live:
            text += f", {ended} ended"
        if others := len(foreign) - elsewhere:
            text += f", {others} not started by ddptop"
        if elsewhere:
            text += f", {elsewhere} of another ddptop"
        if self.order != "need":
            text += f", sorted by {ORDERS[self.order]}"
        if not self.filter:
            return line((text, "dim"))
        return line((f"{self.shown} of {len(views)} match", "busy"), (f"   {text}", "dim"))


def sentence_lines(one: Attention | None, cells: int, rows: int, *, readonly: bool) -> list[Line]:
    """The sentence on a job in the given rows, with the next step in the last row.

    For a job without problems, the job's command.
    """
    if one is None:
        return []
    cell = sentence_cell(one)
    style = cell[0][1]
    sentence = plain(cell)
    if sentence in (NO_PROBLEMS, NONE_DETECTED):  # the row shows this
        sentence = sanitize(one.job.command)
    texts = wrap(sentence, cells - 4, rows if rows < 3 else rows - 1)
    lines = [line(("▌ ", style), (text, "" if style == "dim" else style)) for text in texts]
    if (step := next_step(one, readonly=readonly)) and len(lines) < rows:
        lines.append(line(("▌ ", style), (step, "dim")))
    return lines


MOST_ROWS = 4


class WaitingJobs(Panel):
    """One row per job that waits here or in Slurm's queue, and the number of further ones."""

    rows = 0
    """The number of rows needed."""

    def __init__(self, me: str) -> None:
        """`me` is the user whose name is not shown."""
        super().__init__(id="waiting")
        self._me = me

    def show(self, queue: Sequence[QueueRow], slurm: Sequence[SlurmJob], now: dt.datetime) -> None:
        """Show the jobs that wait, next one first, and Slurm's."""
        waits = [row for row in queue if row.state == "queued"]
        lines = [_waiting_line(at, row, self._me, now) for at, row in enumerate(waits, 1)]
        lines += [line((" Slurm ", "dim"), sanitize(brief(one, now))) for one in slurm]
        if (left := len(lines) - MOST_ROWS) > 0:
            where = "ddptop ls" if slurm else key("view.queue")
            lines[MOST_ROWS - 1 :] = [line((f" {left + 1} more: {where}", "dim"))]
        self.styles.height = self.rows = len(lines)
        self.set_class(bool(lines), "-some")
        self.paint(lambda _, rows: lines[:rows])


def _waiting_line(at: int, row: QueueRow, me: str, now: dt.datetime) -> Line:
    job, user, _, gpus, _, starts, why = cells(row, now)
    whose = "" if user == me else f" ({user})"
    gpus = "" if gpus == NO_GPUS else f"  GPUs: {gpus}"
    start = "" if starts == NOT_AVAILABLE else f"  starts: {starts}"
    return line(
        (f" Queue {at}  ", "dim"), f"{job}{whose}", (f"{gpus}{start}  ", "dim"), sanitize(why)
    )
