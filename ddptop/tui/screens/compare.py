"""The comparison of jobs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal

from ddptop.charts.axis import Axis, View
from ddptop.charts.curves import USUAL_WEIGHT, ChartOptions
from ddptop.charts.plots import compared_curves, name_of, without_steps
from ddptop.draw.compare import Row, companion_row, explained, rows, verdict
from ddptop.job.compare import LETTERS, LOSS, MOST_COMPARED, Comparison, Run, companions, names_of
from ddptop.job.figures.jobs import JOB_WORDS, job_facts
from ddptop.job.filter import parse
from ddptop.job.groups import sweep_of
from ddptop.job.help import about
from ddptop.job.keys import SCREENS, key
from ddptop.job.record import Job
from ddptop.sources.compare import CompareAnswer, CompareQuery
from ddptop.sources.query import Look
from ddptop.style import Column
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.bars import FilterBar, KeyBar
from ddptop.tui.widgets.charts import FigureChart
from ddptop.tui.widgets.table import Table
from ddptop_runner.base.units import plural


class CompareChart(FigureChart):
    """Losses by step if all jobs report steps, else by time since each job's start."""

    def __init__(self) -> None:
        super().__init__(LOSS, id="curves")
        self.shown = LOSS
        self.options = ChartOptions(smoothing=USUAL_WEIGHT)
        self._runs: Sequence[Run] = ()
        self._wants_steps = True

    @property
    def no_steps(self) -> str | None:
        """Which jobs have unknown steps; None if none has."""
        return without_steps(self._runs)

    @property
    def names(self) -> tuple[str, ...]:
        """The loss, and every metric that any of the jobs reported."""
        return names_of(self._runs)

    def show_runs(self, runs: Sequence[Run]) -> None:
        """Show the jobs' losses; keeps the range unless the axis changes."""
        known, self._runs = self._runs, runs
        if list(map(_drawn, runs)) == list(map(_drawn, known)):
            return
        axis: Axis = "step" if self._wants_steps and self.no_steps is None else "time"
        if axis != self.view.axis:
            self.view = View(axis)
        self._update()

    def show_as(self, name: str) -> None:
        """Compare the jobs by their loss or another metric."""
        super().show_as(name)
        self._update()

    def next_axis(self) -> None:
        """Switch between steps and time, and show everything."""
        super().next_axis()
        self._wants_steps = self.view.axis == "step"
        self._update()

    def _update(self) -> None:
        by_step = self.view.axis == "step"
        since = "since each job's start" if len(self._runs) > 1 else "since its start"
        data = compared_curves(self._runs, self.shown, by_step=by_step)
        self.show(data, f"{self.shown} {'by step' if by_step else since}")

    def explain(self) -> list[tuple[str, str]]:
        """Help on the curves."""
        return about("compared curves")


def _drawn(run: Run) -> tuple[object, ...]:
    """What the chart shows of a job."""
    return run.job, run.curve, run.scalars, run.trouble


LABEL = Column("what", "", 24)
COMPANIONS = (
    Column("letter", "", 1),
    Column("job", "job", 12, flex=True, most=24),
    Column("state", "state", 11, drop=3),
    Column("step", "step", 7, ">", drop=2),
    Column("what", "different options", 14, flex=True),
    Column("started", "started", 12, drop=4),
)


NOBODY = "no other jobs to compare with;\nlaunch this one again with different arguments"
"""Shown when there is no other job to compare with."""


class CompareTable(Table[Row]):
    """One row per property, one column per job."""

    def __init__(self) -> None:
        super().__init__("differences", (LABEL,), empty="", id="differences")
        self._comparison: Comparison | None = None

    def show(self, comparison: Comparison | None, now: dt.datetime) -> None:
        """Show a comparison."""
        self._comparison = comparison
        self.items = [] if comparison is None else rows(comparison, now)
        runs = () if comparison is None else comparison.runs
        self._columns = (
            LABEL,
            *(
                Column(
                    str(place), name_of(place, run), 12, flex=True, drop=place if place > 1 else 0
                )
                for place, run in enumerate(runs)
            ),
        )
        self.set_rows(
            [
                (
                    row.key,
                    {
                        "what": (f"{'≠' if row.differs else ' '} {row.label}", "dim"),
                        **{str(place): value for place, value in enumerate(row.values)},
                    },
                )
                for row in self.items
            ]
        )

    def explain_item(self, item: Row) -> list[tuple[str, str]]:
        """Help on a row, with its values in full."""
        return [] if self._comparison is None else explained(item, self._comparison.runs)


class CompanionTable(Table[Job]):
    """The jobs that the first one can be compared with."""

    def __init__(self) -> None:
        super().__init__("compare with", COMPANIONS, id="companions")

    def show(
        self, mine: Job | None, jobs: Sequence[Job], letters: dict[str, str], *, all_: int
    ) -> None:
        """Show the jobs in order; `letters` are those on the chart, `all_` includes hidden jobs."""
        self.empty = "no jobs match" if all_ else NOBODY
        self.set_rows(
            [(view.name, companion_row(view, letters.get(view.name, ""), mine)) for view in jobs]
        )

    def explain(self) -> list[tuple[str, str]]:
        """Help on choosing a job."""
        return about("compare with")


OF_THE_LIST = ("compare.keep", "view.filter")
"""Actions that are hidden when the jobs are fixed."""
TABLE_SHARE = 0.4
LIST_SHARE = 0.25
"""Share of the height for the list when it is above the chart."""


class CompareScreen(MonitorScreen[CompareAnswer]):
    """The losses of two to eight jobs on one axis, and a table of what differs."""

    DEFAULT_CSS = """
    CompareScreen {
        #beside { height: 1fr; min-height: 6; }
        #companions { width: 2fr; min-width: 39; height: 100%; margin: 0 1 0 0; }
        #curves { width: 5fr; height: 100%; }
        #differences { height: auto; }
    }
    CompareScreen.-narrow {
        #beside { layout: vertical; }
        #companions { width: 100%; height: 5; margin: 0; }
        #curves { width: 100%; height: 1fr; }
    }
    """

    KEYS = "a comparison"
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(self, jobs: tuple[str, ...], *, readonly: bool = False) -> None:
        """One job is compared with jobs from a list; two to eight are compared directly."""
        super().__init__(readonly=readonly)
        self.given = jobs[:MOST_COMPARED]
        """Names of the requested jobs."""
        self._kept: list[str] = []
        self._companions = CompanionTable()
        self._chart = CompareChart()
        self.charts = (self._chart,)
        self._table = CompareTable()
        self._filter = FilterBar("words, state:running, loss<2, !word")
        shown = [one for one in SCREENS[self.KEYS] if self.chooses or one.id not in OF_THE_LIST]
        self._keys = KeyBar(shown, readonly=readonly)

    @property
    def chooses(self) -> bool:
        """Whether jobs to compare with can be chosen."""
        return len(self.given) < 2

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs on the chart, in the order of their letters."""
        chosen = [*self.given, *self._kept]
        key = self._companions.cursor_key
        if self.chooses and key is not None and key not in chosen:
            chosen.append(key)
        return tuple(chosen[:MOST_COMPARED])

    @property
    def subject(self) -> tuple[object, ...]:
        """The jobs."""
        return self.given

    def compose(self) -> ComposeResult:
        """The list next to the chart or above it, and the table below."""
        yield self._title
        with Horizontal(id="beside"):
            yield from (self._companions, self._chart)
        yield from (self._table, self._filter, self._keys)

    def on_mount(self) -> None:
        """Focus the list, if there is one."""
        self._companions.display = self.chooses
        (self._companions if self.chooses else self._table).focus()

    def needs(self) -> CompareQuery:
        """The losses of the jobs on the chart."""
        return CompareQuery(jobs=self.jobs)

    def show(self, answer: CompareAnswer) -> None:
        """Update the screen."""
        look = answer.look
        if self.chooses:
            self._show_companions(look)
        comparison = answer.comparison if answer.asked == self.jobs else None
        names = [f"{LETTERS[place]} {job}" for place, job in enumerate(self.jobs)]
        title, right = "  ".join(names), self.place(look)
        if sweep := sweep_of(filter(None, map(look.job, self.jobs))):
            title = f"sweep {sweep}"  # its jobs have their names below
        self._keys.show(None)
        gone = [job for job in self.given if look.job(job) is None]
        if gone:
            self._title.show(
                f"{', '.join(gone)} no longer {'exists' if len(gone) == 1 else 'exist'}", right
            )
            return
        if comparison is None:
            self._title.show(title, right)
            return
        self._title.show(title, right, verdict(comparison))
        self._chart.show_runs(comparison.runs)
        self._table.show(comparison, look.taken_at)
        self._fit()

    def _show_companions(self, look: Look) -> None:
        """List the matching jobs that the first one can be compared with."""
        first = self.given[0] if self.given else ""
        everyone = companions(look.jobs, first)
        filtered = parse(self._filter.text, JOB_WORDS)
        now = look.taken_at
        left = [view for view in everyone if filtered.matches(job_facts(view, now))]
        mine = next((view for view in look.own if view.name == first), None)
        letters = {job: LETTERS[place] for place, job in enumerate(self.jobs)}
        self._companions.show(mine, left, letters, all_=len(everyone))
        self._filter.show_matches(filtered, plural(len(left), "job"))

    def _fit(self) -> None:
        """Give the table the rows it needs, up to a share of the screen."""
        height = self.size.height
        self._table.styles.height = min(self._table.rows_wanted(), int(height * TABLE_SHARE))
        if self.chooses and self.has_class("-narrow"):
            rows = min(self._companions.rows_wanted(), max(4, int(height * LIST_SHARE)))
            self._companions.styles.height = rows
        else:
            self._companions.styles.height = "100%"

    def on_resize(self) -> None:
        """Fit the rows to the new size."""
        self.call_after_refresh(self._fit)

    # --- actions ---------------------------------------------------------------------------------

    @on(Table.Moved, "#companions")
    def _companion_moved(self) -> None:
        self.post_message(QueryChanged())

    @on(Table.Chosen, "#companions")
    def action_open(self) -> None:
        """Open the job under the cursor, or the first one."""
        job = self._companions.cursor_key if self._companions.has_focus else None
        job = job or next(iter(self.jobs), None)
        if job is not None:
            self.open("job", job)

    def action_keep(self) -> None:
        """Keep the job under the cursor on the chart, or remove it."""
        job = self._companions.cursor_key
        if not self.chooses or job is None:
            self.warn(
                "the jobs in this chart are fixed; to pick others, press "
                f"{key('view.compare')} in the list of all jobs"
            )
        elif job in self._kept:
            self._kept.remove(job)
        elif len(self.given) + len(self._kept) >= MOST_COMPARED:
            self.warn(f"the chart can show at most {MOST_COMPARED} jobs")
        else:
            self._kept.append(job)
            self._companions.action_move(1)
        self.post_message(QueryChanged())

    def action_filter(self) -> None:
        """Filter the jobs."""
        if self.chooses:
            self._filter.open()

    @on(FilterBar.Changed)
    def _filtered(self) -> None:
        if self.answer is not None:
            self._show_companions(self.answer.look)
