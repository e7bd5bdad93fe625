"""The losses of several jobs on one axis."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.charts.compared import without_steps
from ddptop.charts.figures import FiguresData
from ddptop.charts.view import View
from ddptop.sources.compare import Compared
from ddptop.tui.widgets.figure_chart import FigureChart
from ddptop.view.compare import Run
from ddptop.view.keys import key


class CompareChart(FigureChart):
    """By step if all jobs report theirs, else by the time since each one's start."""

    def __init__(self) -> None:
        super().__init__("loss", id="curves")
        self._by_time = FiguresData()
        self._by_step: FiguresData | None = None
        self._wants_steps = True
        self._why_not = ""

    @property
    def has_steps(self) -> bool:
        """Whether all jobs report their steps."""
        return self._by_step is not None

    @property
    def no_steps(self) -> str:
        """Whose steps are not known."""
        return self._why_not

    def show_jobs(self, compared: Compared | None, runs: Sequence[Run]) -> None:
        """Take the jobs' losses; what is shown of the axis stays, unless the axis is another."""
        compared = compared or Compared()
        self._by_time, self._by_step = compared.by_time, compared.by_step
        self._why_not = without_steps(runs)
        axis = "step" if self.has_steps and self._wants_steps else "time"
        if axis != self.view.axis:
            self.view = View("step" if axis == "step" else "time")
        self._draw()

    def next_axis(self) -> None:
        """By step or by time, and everything again."""
        super().next_axis()
        self._wants_steps = self.view.axis == "step"
        self._draw()

    def _draw(self) -> None:
        by_step = self.view.axis == "step" and self._by_step is not None
        data = self._by_step if by_step else None
        since = "since each job's start" if len(self._by_time.curves) > 1 else "since its start"
        self.show(data or self._by_time, "loss by step" if by_step else f"loss {since}")

    def explain(self) -> list[tuple[str, str]]:
        """What the curves are."""
        return [
            (
                "loss",
                "each job's median loss across its ranks; letters at the right identify the "
                "curves, and each curve has its own pattern",
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
