"""The base of every chart: what part is shown, the cursor, and the mouse."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace
from textual import events
from textual.message import Message

from ddptop.charts.view import AXES, Area, View, cursor_moved, cursor_to, panned, zoomed
from ddptop.tui.widgets.dragged import DraggedView

PAN_CELLS = 10
"""Cells that the cursor of a whole run goes at once."""


class ChartWidget(DraggedView, can_focus=True):
    """A chart with a cursor. Subclasses draw, and put where they drew into `area`."""

    DEFAULT_CSS = """
    ChartWidget { height: 1fr; }
    """

    @dataclass
    class Viewed(Message):
        """Another part of the axis is wanted, or the cursor is somewhere else."""

        chart: ChartWidget
        moved: bool
        """Whether another part is wanted, and not the cursor alone."""

        @property
        def control(self) -> ChartWidget:
            """The chart, for @on selectors."""
            return self.chart

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.view = View()
        """What is shown of the axis."""
        self.shown = ""
        """Which of `names`."""
        self.takes_mouse = True
        """Whether clicks and the wheel do something."""
        self.area: Area | None = None
        """Where it was drawn last; None while there is no curve."""

    @property
    def has_steps(self) -> bool:
        """Whether it can be drawn by step."""
        return False

    @property
    def no_steps(self) -> str:
        """Why it cannot, in one sentence."""
        return "by step: n/a (these metrics are recorded by time)"

    def time_span(self) -> tuple[float | None, float | None]:
        """What must be read to draw it: seconds, and the right edge in unix seconds.

        None is everything, and for the edge what is newest.
        """
        return self.view.span, self.view.right

    def time_view(self) -> View:
        """The same part of the axis, and the cursor, as time: for charts that know no steps."""
        return self.view

    def set_view(self, view: View) -> None:
        """Show another part of the axis, or move the cursor."""
        if view == self.view:
            return
        before, self.view = self.view, view
        self.redraw()
        moved = replace(before, cursor=None) != replace(view, cursor=None)
        self.post_message(self.Viewed(self, moved))

    def follow(self, view: View) -> None:
        """Take over the view of another chart of the same screen, where the axis is the same."""
        if view.axis != self.view.axis and (view.axis == "time" or not self.has_steps):
            return
        if view != self.view:
            self.view = view
            self.redraw()

    def put_cursor(self, at: float | None) -> None:
        """Put the cursor somewhere on the axis, or take it away."""
        self.set_view(replace(self.view, cursor=at))

    # --- what a person does ---------------------------------------------------------------------

    def next_mode(self) -> None:
        """Draw other curves, where there is a choice."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it can show, by name, if that is several."""
        return ()

    def show_as(self, name: str) -> None:
        """Show what goes by that name."""
        self.shown = name
        self.redraw()

    def next_figure(self) -> None:
        """The next of its names."""
        if self.names:
            place = self.names.index(self.shown) if self.shown in self.names else -1
            self.show_as(self.names[(place + 1) % len(self.names)])

    def next_scale(self) -> None:
        """Linear or logarithmic values, where there is a choice."""

    def next_smoothing(self) -> None:
        """Smooth more, or not at all, where there is a choice."""

    def next_axis(self) -> None:
        """By time or by step, where steps are known; everything is shown again."""
        if self.has_steps:
            self.set_view(View(AXES[(AXES.index(self.view.axis) + 1) % len(AXES)]))

    def zoom(self, direction: int, at: float | None = None) -> None:
        """Less (1) or more (-1) of the axis."""
        if self.area is not None:
            self.set_view(zoomed(self.view, self.area, direction, at))

    def pan(self, direction: int) -> None:
        """A quarter to the left or right; of a whole run the cursor ten cells on."""
        if self.area is None:
            return
        if self.view.span is None:
            self.set_view(cursor_moved(self.view, self.area, direction * PAN_CELLS))
        else:
            self.set_view(panned(self.view, self.area, direction * max(1, self.area.cells // 4)))

    def move_cursor(self, cells: int) -> None:
        """Read the values some cells on."""
        if self.area is not None:
            self.set_view(cursor_moved(self.view, self.area, cells))

    def cursor_to_end(self, direction: int) -> None:
        """Read the values at the left or right edge."""
        if self.area is not None:
            self.set_view(cursor_to(self.view, self.area, 0 if direction < 0 else self.area.cells))

    def drop_cursor(self) -> bool:
        """Take the cursor away; whether there was one."""
        there = self.view.cursor is not None
        self.put_cursor(None)
        return there

    def show_whole(self) -> None:
        """Everything there is."""
        self.set_view(replace(self.view, span=None, right=None))

    # --- mouse ----------------------------------------------------------------------------------

    def _cell(self, x: int) -> int | None:
        """The plot's cell at a place of the widget."""
        area = self.area
        if area is None or not self.takes_mouse or not area.left <= x < area.left + area.cells:
            return None
        return x - area.left

    def takes_drag(self, x: int) -> bool:
        """Where there is a curve."""
        return self._cell(x) is not None

    def dragged_to(self, x: int) -> None:
        """The cursor goes there, at most to the edges."""
        if self.area is not None:
            cell = min(max(x - self.area.left, 0), self.area.cells - 1)
            self.set_view(cursor_to(self.view, self.area, cell))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel looks closer, at the pointer."""
        self._wheel(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel shows more, around the pointer."""
        self._wheel(event, -1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        """A wheel that goes sideways moves along the axis."""
        self._sideways(event, -1)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        """The other way."""
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
        """The title says that the keys go here."""
        self.redraw()

    def on_blur(self) -> None:
        """They go elsewhere."""
        self.redraw()

    @property
    def title_style(self) -> str:
        """The style of its title: strong while it has the keys."""
        return "strong" if self.has_focus else "title"
