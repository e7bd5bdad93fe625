"""The base class of charts, and the chart of all ranks' losses over time or steps."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace
from textual import events
from textual.message import Message

from ddptop.charts.axis import window_label
from ddptop.charts.figures import FigureOptions, FiguresData, draw_figures, units_of
from ddptop.charts.frame import Chart
from ddptop.charts.help import explain_figures, explain_split
from ddptop.charts.loss import (
    LOSS,
    MODES,
    THROUGHPUT,
    ChartOptions,
    LastPlot,
    draw_chart,
    names_of,
    shown_as,
)
from ddptop.charts.smooth import WEIGHTS, next_weight
from ddptop.charts.split import SplitData, SplitOptions, draw_split
from ddptop.charts.steps import by_step, no_steps, step_moment, step_times
from ddptop.charts.window import AXES, Area, View, cursor_moved, cursor_to, panned, zoomed
from ddptop.job.series import ChartData
from ddptop.style import Line, rule
from ddptop.tui.widgets.lines import DraggedView

PAN_CELLS = 10
"""Cells that the cursor moves at once when the whole run is shown."""


class ChartWidget(DraggedView, can_focus=True):
    """A chart with a cursor. Subclasses draw it and set `area`."""

    DEFAULT_CSS = """
    ChartWidget { height: 1fr; }
    """

    @dataclass
    class Viewed(Message):
        """The range of the axis or the cursor changed."""

        chart: ChartWidget
        moved: bool
        """Whether the range changed, not only the cursor."""

        @property
        def control(self) -> ChartWidget:
            """The chart, for @on selectors."""
            return self.chart

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.view = View()
        """The visible range of the axis, and the cursor."""
        self.shown = ""
        """The name of the metric shown, one of `names`."""
        self.takes_mouse = True
        """Whether it handles clicks and the wheel."""
        self.area: Area | None = None
        """Where it was last drawn; None if there is no curve."""

    @property
    def has_steps(self) -> bool:
        """Whether it can be drawn by step."""
        return False

    @property
    def no_steps(self) -> str:
        """Why it cannot be drawn by step, in one sentence."""
        return "by step: n/a (these metrics are recorded by time)"

    def time_span(self) -> tuple[float | None, float | None]:
        """The time to read: its length in seconds, and its right edge in unix seconds.

        None means everything, and for the edge, the latest data.
        """
        return self.view.span, self.view.right

    def time_view(self) -> View:
        """The same range and cursor as time, for charts without steps."""
        return self.view

    def set_view(self, view: View) -> None:
        """Set the range and the cursor."""
        if view == self.view:
            return
        before, self.view = self.view, view
        self.redraw()
        moved = replace(before, cursor=None) != replace(view, cursor=None)
        self.post_message(self.Viewed(self, moved))

    def follow(self, view: View) -> None:
        """Take over the view of another chart of the screen, if it has the same axis."""
        if view.axis != self.view.axis and (view.axis == "time" or not self.has_steps):
            return
        if view != self.view:
            self.view = view
            self.redraw()

    def put_cursor(self, at: float | None) -> None:
        """Set or remove the cursor."""
        self.set_view(replace(self.view, cursor=at))

    # --- actions ---------------------------------------------------------------------------------

    def next_mode(self) -> None:
        """Draw other curves, if there is a choice."""

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics it can show, if there are several."""
        return ()

    def show_as(self, name: str) -> None:
        """Show the metric with this name."""
        self.shown = name
        self.redraw()

    def next_figure(self) -> None:
        """Show the next metric."""
        if self.names:
            place = self.names.index(self.shown) if self.shown in self.names else -1
            self.show_as(self.names[(place + 1) % len(self.names)])

    def next_scale(self) -> None:
        """Switch between linear and logarithmic values, if there is a choice."""

    def next_smoothing(self) -> None:
        """Smooth more, or not at all, if there is a choice."""

    def next_axis(self) -> None:
        """Switch between time and steps, if known, and show everything."""
        if self.has_steps:
            self.set_view(View(AXES[(AXES.index(self.view.axis) + 1) % len(AXES)]))

    def zoom(self, direction: int, at: float | None = None) -> None:
        """Zoom in (1) or out (-1)."""
        if self.area is not None:
            self.set_view(zoomed(self.view, self.area, direction, at))

    def pan(self, direction: int) -> None:
        """Pan by a quarter of the range; if the whole run is shown, move the cursor instead."""
        if self.area is None:
            return
        if self.view.span is None:
            self.set_view(cursor_moved(self.view, self.area, direction * PAN_CELLS))
        else:
            self.set_view(panned(self.view, self.area, direction * max(1, self.area.cells // 4)))

    def move_cursor(self, cells: int) -> None:
        """Move the cursor by some cells."""
        if self.area is not None:
            self.set_view(cursor_moved(self.view, self.area, cells))

    def cursor_to_end(self, direction: int) -> None:
        """Move the cursor to the left or right edge."""
        if self.area is not None:
            self.set_view(cursor_to(self.view, self.area, 0 if direction < 0 else self.area.cells))

    def drop_cursor(self) -> bool:
        """Remove the cursor; returns whether there was one."""
        there = self.view.cursor is not None
        self.put_cursor(None)
        return there

    def show_whole(self) -> None:
        """Show the whole run."""
        self.set_view(replace(self.view, span=None, right=None))

    # --- mouse -----------------------------------------------------------------------------------

    def _cell(self, x: int) -> int | None:
        """The cell of the plot at a column of the widget."""
        area = self.area
        if area is None or not self.takes_mouse or not area.left <= x < area.left + area.cells:
            return None
        return x - area.left

    def takes_drag(self, x: int) -> bool:
        """Whether there is a curve at `x`."""
        return self._cell(x) is not None

    def dragged_to(self, x: int) -> None:
        """Move the cursor there, at most to the edges."""
        if self.area is not None:
            cell = min(max(x - self.area.left, 0), self.area.cells - 1)
            self.set_view(cursor_to(self.view, self.area, cell))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the pointer."""
        self._wheel(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out around the pointer."""
        self._wheel(event, -1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        """Pan left."""
        self._sideways(event, -1)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        """Pan right."""
        self._sideways(event, 1)

    def _sideways(self, event: events.MouseEvent, direction: int) -> None:
        if self._cell(event.x) is not None:
            event.stop()
            self.pan(direction)

    def _wheel(self, event: events.MouseEvent, direction: int) -> None:
        if self.area is not None and (cell := self._cell(event.x)) is not None:
            event.stop()
            self.zoom(direction, self.area.at(cell))

    def on_focus(self) -> None:
        """Mark the title as focused."""
        self.redraw()

    def on_blur(self) -> None:
        """Unmark the title."""
        self.redraw()

    def titled(self, chart: Chart, title: str, more: str, width: int) -> list[Line]:
        """Put the title above the chart: with values at the cursor, or `more` and the latest."""
        self.area = chart.area
        title += more if chart.reading is None else ""
        room = width - len(title) - 10
        note = chart.fitting(room) if chart.reading is None else chart.reading.line(room)
        return [rule(title, width, note, "strong" if self.has_focus else "title"), *chart.lines]


USUAL = ChartOptions(fitted=True, smoothing=WEIGHTS[1])
"""How the loss is drawn by default."""


class LossChart(ChartWidget):
    """Median, band, and outliers; draws only if its data, options, or size changed."""

    def __init__(self, *, id: str | None = "chart", glance: bool = False) -> None:
        """With `glance`, it handles neither keys nor the mouse."""
        super().__init__(id=id)
        self.can_focus = self.takes_mouse = not glance
        self._data = ChartData()
        self.shown = LOSS
        self._figure: ChartData | None = None
        """The metric shown instead of the loss."""
        self._stepped: ChartData | None = None
        self._options = USUAL
        self._job = ""
        self._plot = LastPlot()
        self._asked: tuple[View, tuple[float | None, float | None]] | None = None
        """The time requested for a view by step; cached, because the answer would change it."""

    @property
    def options(self) -> ChartOptions:
        """How the chart is drawn."""
        return replace(self._options, view=self.view)

    def show(
        self,
        data: ChartData,
        options: ChartOptions | None = None,
        job: str = "",
        *,
        rank: int | None = None,
    ) -> None:
        """Show new data; showing the same object again costs nothing.

        Args:
            data: the data.
            options: how to draw it; None keeps the chart's own options.
            job: the job named in the title.
            rank: the selected rank; None keeps the current one.
        """
        wanted = self._options if options is None else replace(options, view=self._options.view)
        if rank is not None:
            wanted = replace(wanted, rank=rank)
        if data is self._data and wanted == self._options and job == self._job:
            return
        is_other = job != self._job
        if is_other:
            self.view = View()  # the zoomed range belongs to another job
            if self.shown != THROUGHPUT:
                self.shown = LOSS
        newly_stepped = data.stepped is not None and (is_other or self._data.stepped is None)
        if newly_stepped and self.view == View():
            self.view = View("step")  # by time, most samples are missing
        self._data, self._options, self._job = data, wanted, job
        self.show_as(self.shown)

    @property
    def has_steps(self) -> bool:
        """Whether the steps of its points are known."""
        return no_steps(self._data) is None

    @property
    def no_steps(self) -> str:
        """Why it cannot be drawn by step."""
        return no_steps(self._data) or ""

    def time_span(self) -> tuple[float | None, float | None]:
        """The time to read; for a view by step, the time that these steps took."""
        if self.view.axis == "time":
            return super().time_span()
        if self._asked is None or self._asked[0] != self._part:
            self._asked = self._part, step_times(self._data, self.view)
        return self._asked[1]

    def time_view(self) -> View:
        """The view as time; for a view by step, the approximate times of these steps."""
        if self.view.axis == "time":
            return self.view
        if self._data.stepped is not None:
            return View()
        span, right = self.time_span()
        at = self.view.cursor
        return View("time", span, right, None if at is None else step_moment(self._data, at))

    @property
    def _part(self) -> View:
        return replace(self.view, cursor=None)

    def next_mode(self) -> None:
        """Switch between median, all ranks, and one rank."""
        mode = MODES[(MODES.index(self._options.mode) + 1) % len(MODES)]
        self._set(replace(self._options, mode=mode))

    @property
    def names(self) -> tuple[str, ...]:
        """All metrics, the loss first."""
        return names_of(self._data)

    def show_as(self, name: str) -> None:
        """Show the loss, or another metric instead."""
        self._figure = None if name == LOSS else shown_as(self._data, name)
        self._stepped = None
        super().show_as(name)

    def next_scale(self) -> None:
        """Switch between a fitted, a logarithmic, and a linear axis."""
        fitted, logarithmic = self._options.fitted, self._options.logarithmic
        self._set(replace(self._options, logarithmic=fitted, fitted=not fitted and not logarithmic))

    def next_smoothing(self) -> None:
        """Switch smoothing between none, 0.6, 0.9, and 0.97."""
        self._set(replace(self._options, smoothing=next_weight(self._options.smoothing)))

    def _set(self, options: ChartOptions) -> None:
        self._options = options
        self.redraw()

    def _drawn_data(self) -> ChartData:
        """The data to draw; for a view by step, converted once."""
        shown = self._data if self._figure is None else self._figure
        if self.view.axis == "time" or not self.has_steps:
            return shown
        if self._stepped is None:
            self._stepped = by_step(shown)
        return self._stepped

    def build(self, width: int, height: int) -> list[Line]:
        """Build title, plot, and axes."""
        data = self._drawn_data()
        options = self.options
        if self.shown == THROUGHPUT:
            options = replace(options, fitted=False)
        elif (
            self.shown != LOSS
        ):  # a single curve of the job; schedules and evaluations have no noise
            options = replace(options, mode="median", smoothing=0.0)
        chart = draw_chart(data, options, width - 1, height - 1, plotted=self._plot)
        name = "throughput, steps/s" if self.shown == THROUGHPUT else self.shown
        title = f"{name} for {self._job}" if self._job else name
        more = "".join(f", {word}" for word in self._words(data, chart, options) if word)
        return self.titled(chart, title, more, width)

    def explain(self) -> list[tuple[str, str]]:
        """Help on the curves and marks."""
        from ddptop.charts.help import explain_loss

        return explain_loss(self._drawn_data(), self.options)

    def _words(self, data: ChartData, chart: Chart, options: ChartOptions) -> list[str]:
        """How the chart is drawn, for the title."""
        view = self.view
        if view.span is None and data.watched and data.window_s is None:
            shown = "since first observed"
        elif data.by_step:
            shown = "whole run" if view.span is None else f"{view.span:,.0f} steps"
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
    """What the step axis counts."""
    number = len(data.attempts)
    return "by step" if number < 2 else f"by step, {number} attempts joined"


class FigureChart(ChartWidget):
    """Curves of one unit share a plot; draws only if its data, options, or size changed."""

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._data = FiguresData()
        self._options = FigureOptions()

    @property
    def options(self) -> FigureOptions:
        """How the chart is drawn."""
        return replace(self._options, view=self.view)

    def show(self, data: FiguresData, title: str | None = None) -> None:
        """Show new curves and a title; showing the same objects again costs nothing."""
        if data is self._data and title in (None, self._title):
            return
        self._data, self._title = data, self._title if title is None else title
        self.redraw()

    def next_mode(self) -> None:
        """Put the next unit first."""
        units = len(units_of(self._data))
        if units > 1:
            self._set(replace(self._options, first=(self._options.first + 1) % units))

    def next_scale(self) -> None:
        """Switch between linear and logarithmic values."""
        self._set(replace(self._options, logarithmic=not self._options.logarithmic))

    def next_smoothing(self) -> None:
        """Switch smoothing between none, 0.6, 0.9, and 0.97."""
        self._set(replace(self._options, smoothing=next_weight(self._options.smoothing)))

    def _set(self, options: FigureOptions) -> None:
        self._options = options
        self.redraw()

    def explain(self) -> list[tuple[str, str]]:
        """Help on the curves and marks."""
        return explain_figures(self._data)

    def build(self, width: int, height: int) -> list[Line]:
        """Build the title, a plot for each unit, and the axis."""
        chart = draw_figures(self._data, self.options, width - 1, height - 1)
        more = ", log scale" if self._options.logarithmic else ""
        if self._options.smoothing:
            more += f", smoothing {self._options.smoothing:g}"
        return self.titled(chart, self._title, more, width)


class SplitChart(ChartWidget):
    """Data wait, compute, and synchronization as a stack; draws only if something changed."""

    def __init__(self, title: str = "step time", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._data = SplitData()
        self._options = SplitOptions()

    @property
    def options(self) -> SplitOptions:
        """How the chart is drawn."""
        return replace(self._options, view=self.view)

    def show(self, data: SplitData, title: str | None = None) -> None:
        """Show new parts and a title; showing the same objects again costs nothing."""
        if data is self._data and title in (None, self._title):
            return
        self._data, self._title = data, self._title if title is None else title
        self.redraw()

    def next_mode(self) -> None:
        """Switch between seconds and shares of the step."""
        self._options = replace(self._options, shares=not self._options.shares)
        self.redraw()

    def explain(self) -> list[tuple[str, str]]:
        """Help on the curves and marks."""
        return explain_split()

    def build(self, width: int, height: int) -> list[Line]:
        """Build the title with current values, the stack, and the axes."""
        chart = draw_split(self._data, self.options, width - 1, height - 1)
        return self.titled(chart, self._title, ", shares" if self._options.shares else "", width)
