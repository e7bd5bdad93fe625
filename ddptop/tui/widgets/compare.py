"""Widgets of the comparison: the list of jobs, the chart, and the table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.charts.compared import compared_curves, name_of, without_steps
from ddptop.charts.curves import USUAL_WEIGHT, ChartOptions
from ddptop.charts.window import Axis, View
from ddptop.draw.compare import Row, companion_row, explained, rows
from ddptop.job.compare import LOSS, Comparison, Run, names_of
from ddptop.job.figures.columns import Column
from ddptop.job.keys import key
from ddptop.job.record import Job
from ddptop.tui.widgets.charts import FigureChart
from ddptop.tui.widgets.table import Table


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
        return [
            (
                "loss",
                "each job's median loss across its ranks; letters at the right identify the "
                "curves, and each curve has its own pattern",
            ),
            (
                "metrics",
                f"press {key('chart.figure')} for the next one: the loss, then whatever the jobs "
                "report, such as a validation loss or learning rate; each is the mean of the ranks "
                "that report it",
            ),
            (
                "by step",
                "steps since the job started; where attempts overlap, the later attempt's losses "
                f"are shown; press {key('chart.axis')} to switch to the time since each job's "
                "start",
            ),
            ("A↻1", "attempt 1 of job A starts here; all of its ranks were restarted"),
            ("✕", "the loss was NaN or infinite here"),
        ]


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


class CompareTable(Table):
    """One row per property, one column per job."""

    def __init__(self) -> None:
        super().__init__("differences", (LABEL,), empty="", id="differences")
        self._comparison: Comparison | None = None
        self._shown: list[Row] = []

    def show(self, comparison: Comparison | None, now: dt.datetime) -> None:
        """Show a comparison."""
        self._comparison = comparison
        self._shown = [] if comparison is None else rows(comparison, now)
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
                for row in self._shown
            ]
        )

    def explain(self) -> list[tuple[str, str]]:
        """Help on the row under the cursor, with its values in full."""
        row = next((one for one in self._shown if one.key == self.cursor_key), None)
        if row is None or self._comparison is None:
            return []
        return explained(row, self._comparison.runs)


class CompanionTable(Table):
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
        return [
            (
                "compare with",
                "jobs that matched the filter first, then those with the same script, then longer "
                "runs before those of a few steps, then newest first",
            ),
            (
                "different options",
                "options that differ; for a different script, its full command",
            ),
            (
                "A B C D",
                f"a job's letter on the chart; press {key('compare.keep')} to keep the job there",
            ),
        ]
