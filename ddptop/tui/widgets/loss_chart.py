"""The losses of all ranks over time or steps."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.charts.frame import Chart
from ddptop.charts.loss import MODES, ChartOptions, LastPlot, draw_chart
from ddptop.charts.rates import LOSS, THROUGHPUT, names_of, shown_as
from ddptop.charts.scale import window_label
from ddptop.charts.smooth import WEIGHTS, next_weight
from ddptop.charts.steps import by_step, no_steps, step_moment, step_times
from ddptop.charts.view import View
from ddptop.tui.widgets.chart_widget import ChartWidget
from ddptop.view.series import ChartData
from ddptop.view.text import Line, rule

USUAL = ChartOptions(fitted=True, smoothing=WEIGHTS[1])
"""How the loss is drawn until a key changes that."""


class LossChart(ChartWidget):
    """Median, band and outliers; draws only when its data, options or size changed."""

    def __init__(self, *, id: str | None = "chart", glance: bool = False) -> None:
        """With `glance` it is only looked at: no keys, no mouse."""
        super().__init__(id=id)
        self.can_focus = self.takes_mouse = not glance
        self._data = ChartData()
        self.shown = LOSS
        self._figure: ChartData | None = None
        """What is shown in place of the loss."""
        self._stepped: ChartData | None = None
        self._options = USUAL
        self._job = ""
        self._plot = LastPlot()
        self._asked: tuple[View, tuple[float | None, float | None]] | None = None
        """The time that was asked for a view by step: asked once, for what comes changes it."""

    @property
    def options(self) -> ChartOptions:
        """How it is drawn."""
        return replace(self._options, view=self.view)

    def show(
        self,
        data: ChartData,
        options: ChartOptions | None = None,
        job: str = "",
        *,
        rank: int | None = None,
    ) -> None:
        """Take new data; the same object again costs nothing.

        Args:
            data: what is drawn.
            options: how; None leaves that to the chart and its keys.
            job: is named in the title.
            rank: the rank that is chosen; None leaves the one that is.
        """
        wanted = self._options if options is None else replace(options, view=self._options.view)
        if rank is not None:
            wanted = replace(wanted, rank=rank)
        if data is self._data and wanted == self._options and job == self._job:
            return
        if job != self._job:
            self.view = View()  # what was zoomed to is a part of another job's time
            if self.shown != THROUGHPUT:
                self.shown = LOSS
        self._data, self._options, self._job = data, wanted, job
        self.show_as(self.shown)

    @property
    def has_steps(self) -> bool:
        """Whether steps of its points are known."""
        return no_steps(self._data) is None

    @property
    def no_steps(self) -> str:
        """Why it cannot be drawn by step."""
        return no_steps(self._data) or ""

    def time_span(self) -> tuple[float | None, float | None]:
        """What must be read to draw it; of steps the time that they took."""
        if self.view.axis == "time":
            return super().time_span()
        if self._asked is None or self._asked[0] != self._part:
            self._asked = self._part, step_times(self._data, self.view)
        return self._asked[1]

    def time_view(self) -> View:
        """The view; by step the moments of its steps, as near as they are known."""
        if self.view.axis == "time":
            return self.view
        span, right = self.time_span()
        at = self.view.cursor
        return View("time", span, right, None if at is None else step_moment(self._data, at))

    @property
    def _part(self) -> View:
        return replace(self.view, cursor=None)

    def next_mode(self) -> None:
        """Median, all ranks, one rank."""
        mode = MODES[(MODES.index(self._options.mode) + 1) % len(MODES)]
        self._set(replace(self._options, mode=mode))

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it can show, the loss first."""
        return names_of(self._data)

    def show_as(self, name: str) -> None:
        """Show the loss, or what goes by that name in its place."""
        self._figure = None if name == LOSS else shown_as(self._data, name)
        self._stepped = None
        super().show_as(name)

    def next_scale(self) -> None:
        """An axis that fits, a logarithmic one, a linear one."""
        fitted, logarithmic = self._options.fitted, self._options.logarithmic
        self._set(replace(self._options, logarithmic=fitted, fitted=not fitted and not logarithmic))

    def next_smoothing(self) -> None:
        """Not at all, 0.6, 0.9, 0.97."""
        self._set(replace(self._options, smoothing=next_weight(self._options.smoothing)))

    def _set(self, options: ChartOptions) -> None:
        self._options = options
        self.redraw()

    def _drawn_data(self) -> ChartData:
        """What is drawn: by time as it came, by step once for each data."""
        shown = self._data if self._figure is None else self._figure
        if self.view.axis == "time" or not self.has_steps:
            return shown
        if self._stepped is None:
            self._stepped = by_step(shown)
        return self._stepped

    def build(self, width: int, height: int) -> list[Line]:
        """Title, plot and axes."""
        data = self._drawn_data()
        options = self.options
        if self.shown == THROUGHPUT:
            options = replace(options, fitted=False)
        elif self.shown != LOSS:  # one curve of the job's; a schedule or an evaluation has no noise
            options = replace(options, mode="median", smoothing=0.0)
        chart = draw_chart(data, options, width - 1, height - 1, plotted=self._plot)
        self.area = chart.area
        name = "throughput, steps/s" if self.shown == THROUGHPUT else self.shown
        title = f"{name} for {self._job}" if self._job else name
        if chart.reading is not None:
            room = width - len(title) - 10
            return [rule(title, width, chart.reading.line(room), self.title_style), *chart.lines]
        title += "".join(f", {word}" for word in self._words(data, chart, options) if word)
        return [
            rule(title, width, chart.fitting(width - len(title) - 10), self.title_style),
            *chart.lines,
        ]

    def explain(self) -> list[tuple[str, str]]:
        """What is drawn, and what the marks mean."""
        from ddptop.charts.help import explain_loss

        return explain_loss(self._drawn_data(), self.options)

    def _words(self, data: ChartData, chart: Chart, options: ChartOptions) -> list[str]:
        """How it is drawn, for the title."""
        view = self.view
        if data.by_step:
            shown = "whole run" if view.span is None else f"{view.span:,.0f} steps"
        elif view.span is None and data.watched and data.window_s is None:
            shown = "since first observed"
        elif view.span is not None and view.right is not None:
            shown = window_label(view.span).removeprefix("last ")
        else:
            shown = window_label(view.span if view.span is not None else data.window_s)
        return [
            shown,
            _by_step(data) if data.by_step else "",
            chart.scaling or _no_log(chart) if options.logarithmic else chart.scaling,
            f"smoothing {options.smoothing:g}" if options.smoothing else "",
        ]


def _no_log(chart: Chart) -> str:
    """The axis label if a logarithmic axis was requested and is not drawn."""
    return "log scale" if chart.area is None else "log scale: n/a (no positive values)"


def _by_step(data: ChartData) -> str:
    """What the axis counts."""
    number = len(data.attempts)
    return "by step" if number < 2 else f"by step, {number} attempts joined"
