"""The base class of charts, the chart of a job's losses, and those of other metrics."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from textual import events
from textual.message import Message

from ddptop.charts.axis import (
    AXES,
    Area,
    View,
    cursor_moved,
    panned,
    window_label,
    zoomed,
)
from ddptop.charts.curves import (
    MODES,
    USUAL_WEIGHT,
    ChartOptions,
    Curves,
    draw_curves,
    next_weight,
    units_of,
)
from ddptop.charts.plots import THROUGHPUT, curves_of, names_of, no_steps
from ddptop.job.compare import LOSS
from ddptop.job.help import texts
from ddptop.job.keys import with_keys
from ddptop.job.series import ChartData
from ddptop.style import Line, rule
from ddptop.tui.widgets.lines import DraggedView

AXIS = ("┊", "gaps", "read values", "zoom")


def entries(*names: str) -> list[tuple[str, str]]:
    """Headings and texts on parts of a chart."""
    return [(name, with_keys(texts().charts[name])) for name in names]


PAN_CELLS = 10
"""Cells that the cursor moves at once when the whole run is shown."""


class ChartWidget(DraggedView, can_focus=True):
    """A chart with a cursor; subclasses draw it. Draws only if something changed."""

    DEFAULT_CSS = """
    ChartWidget { height: 1fr; }
    """

    class Viewed(Message):
        """The range of the axis or the cursor changed."""

        def __init__(self, chart: ChartWidget, moved: bool) -> None:
            """`moved` is whether the range changed, not only the cursor."""
            super().__init__()
            self.chart, self.moved = chart, moved

    def __init__(self, data: Any, title: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.options = ChartOptions()
        """How it is drawn, with the visible range of the axis and the cursor."""
        self.shown = ""
        """The name of the metric shown, one of `names`."""
        self.takes_mouse = True
        """Whether it handles clicks and the wheel."""
        self.area: Area | None = None
        """Where it was last drawn; None if there is no curve."""
        self._data = data
        self._title = title

    @property
    def view(self) -> View:
        """The visible range of the axis, and the cursor."""
        return self.options.view

    @view.setter
    def view(self, view: View) -> None:
        self.options = replace(self.options, view=view)

    @property
    def no_steps(self) -> str | None:
        """Why it cannot be drawn by step, in one sentence; None if it can."""
        return "by step: n/a (these metrics are recorded by time)"

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics it can show, if there are several."""
        return ()

    def show(self, data: Any, title: str | None = None) -> None:
        """Show new data and a title; showing the same objects again costs nothing."""
        if data is self._data and title in (None, self._title):
            return
        self._data, self._title = data, self._title if title is None else title
        self.redraw()

    def set_options(self, **changed: object) -> None:
        """Draw it in another way."""
        self.options = replace(self.options, **changed)
        self.redraw()

    def set_view(self, view: View) -> None:
        """Set the range and the cursor."""
        if view == self.view:
            return
        before, self.view = self.view, view
        self.redraw()
        moved = replace(before, cursor=None) != replace(view, cursor=None)
        self.post_message(self.Viewed(self, moved))

    def follow(self, view: View) -> None:
        """Take over the view of another chart of the screen.

        A chart without steps shows everything that is read: the time that the steps took.
        """
        if view.axis == "step" and self.no_steps is not None:
            view = View()
        elif view.axis != self.view.axis:
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
        """Switch between linear and logarithmic values."""
        self.set_options(logarithmic=not self.options.logarithmic)

    def next_smoothing(self) -> None:
        """Smooth more, or not at all."""
        self.set_options(smoothing=next_weight(self.options.smoothing))

    def next_axis(self) -> None:
        """Switch between time and steps and show everything, or say why that is not possible."""
        if (why_not := self.no_steps) is None:
            self.set_view(View(AXES[(AXES.index(self.view.axis) + 1) % len(AXES)]))
        else:
            self.notify(why_not, severity="warning")

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
            self.put_cursor(self.area.at(0 if direction < 0 else self.area.cells))

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
            self.put_cursor(self.area.at(x - self.area.left))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zoom in at the pointer."""
        self._wheel(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zoom out around the pointer."""
        self._wheel(event, -1)

    def _wheel(self, event: events.MouseEvent, direction: int) -> None:
        if self.area is not None and (cell := self._cell(event.x)) is not None:
            event.stop()
            self.zoom(direction, self.area.at(cell))

    def curves(self) -> Curves:
        """What it shows."""
        curves: Curves = self._data
        return curves

    def heading(self, curves: Curves, *, is_read: bool) -> str:
        """Its title; with a cursor, without the visible range."""
        return self._title

    def build(self, width: int, height: int) -> list[Line]:
        """Build the title with values at the cursor, or how it is drawn; plots; and the axis."""
        curves = self.curves()
        chart = draw_curves(curves, self.options, width - 1, height - 1)
        self.area, is_read = chart.area, chart.reading is not None
        title = self.heading(curves, is_read=is_read)
        if chart.scaling and not is_read:
            title += f", {chart.scaling}"
        room = width - len(title) - 10
        note = chart.fitting(room) if chart.reading is None else chart.reading.line(room)
        return [rule(title, width, note, "strong" if self.has_focus else "title"), *chart.lines]


class LossChart(ChartWidget):
    """The losses of a job: median, band, and outliers; or another metric of the job."""

    _data: ChartData

    def __init__(self, *, id: str | None = "chart", glance: bool = False) -> None:
        """With `glance`, it handles neither keys nor the mouse."""
        super().__init__(ChartData(), id=id)
        self.can_focus = self.takes_mouse = not glance
        self.shown = LOSS
        self.options = ChartOptions(smoothing=USUAL_WEIGHT)

    def show_job(self, data: ChartData, job: str = "", rank: int = 0) -> None:
        """Show a job's losses, with a selected rank; `job` is named in the title."""
        is_other = job != self._title
        if is_other:
            self.view = View()  # the zoomed range belongs to another job
            if self.shown != THROUGHPUT:
                self.shown = LOSS
        newly_stepped = data.stepped is not None and (is_other or self._data.stepped is None)
        if newly_stepped and self.view == View():
            self.view = View("step")  # by time, most samples are missing
        if rank != self.options.rank:
            self.set_options(rank=rank)
        self.show(data, job)

    @property
    def no_steps(self) -> str | None:
        """Why it cannot be drawn by step; None if it can."""
        return no_steps(self._data)

    @property
    def names(self) -> tuple[str, ...]:
        """All metrics, the loss first."""
        return names_of(self._data)

    def next_mode(self) -> None:
        """Switch between median, all ranks, and one rank."""
        mode = MODES[(MODES.index(self.options.mode) + 1) % len(MODES)]
        self.set_options(mode=mode)

    def curves(self) -> Curves:
        """The losses, or the metric shown."""
        return curves_of(self._data, self.options, self.shown)

    def heading(self, curves: Curves, *, is_read: bool) -> str:
        """The metric, the job, and the visible range."""
        name = "throughput, steps/s" if self.shown == THROUGHPUT else self.shown
        title = f"{name} for {self._title}" if self._title else name
        if is_read:
            return title
        return f"{title}, {self._range(curves)}" + ", by step" * curves.by_step

    def explain(self) -> list[tuple[str, str]]:
        """Help on the curves and marks."""
        options, name = self.options, self.shown
        lines = options.mode if name in (LOSS, THROUGHPUT) else "metric"
        extra = {
            "smoothing": bool(options.smoothing),
            "log scale": options.logarithmic,
            "peak": name == LOSS and not options.logarithmic,
            "by step": self.curves().by_step,
        }
        return [
            (name, with_keys(texts().loss_lines[lines])),
            *entries("metrics", "✕", *(one for one, is_on in extra.items() if is_on), *AXIS),
        ]

    def _range(self, curves: Curves) -> str:
        """The visible range, for the title."""
        view = self.view
        if view.span is None and curves.watched:
            return "since first observed"
        if curves.by_step:
            return "whole run" if view.span is None else f"{view.span:,.0f} steps"
        if view.span is not None and view.right is not None:
            return window_label(view.span).removeprefix("last ")
        return window_label(view.span)


class FigureChart(ChartWidget):
    """Curves of several metrics; those of one unit share a plot."""

    _data: Curves

    def __init__(self, title: str = "", *, id: str | None = None) -> None:
        super().__init__(Curves(), title, id=id)

    def next_mode(self) -> None:
        """Put the next unit first."""
        units = len(units_of(self._data))
        if units > 1:
            self.set_options(first=(self.options.first + 1) % units)

    def explain(self) -> list[tuple[str, str]]:
        """Help on the curves and marks."""
        names = ", ".join(dict.fromkeys(curve.name for curve in self._data.curves))
        return [("metrics", names or "no data yet"), *entries("units", *AXIS)]
