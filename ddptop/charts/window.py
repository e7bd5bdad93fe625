"""Defines the visible part of a chart and its cursor, and reads the curves there. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

Axis = Literal["time", "step"]
AXES: tuple[Axis, ...] = ("time", "step")

TIME_SPANS: tuple[float, ...] = (
    *(10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 14400, 43200),
    *(86400, 172800, 432000, 864000, 2592000, 7776000, 31536000),
)
"""Spans in seconds at which zooming stops."""

STEP_SPANS: tuple[float, ...] = tuple(f * 10.0**e for e in range(1, 10) for f in (1, 2, 5))
"""Spans in steps at which zooming stops."""

_EDGE = 0.95
"""Zooming this far to the right keeps following the newest data."""


class View(msgspec.Struct, frozen=True):
    """A part of the axis, in seconds or in steps."""

    axis: Axis = "time"
    span: float | None = None
    """How much is visible; None for everything."""
    right: float | None = None
    """The right edge; None to follow the newest data."""
    cursor: float | None = None
    """Where values are read; None for no cursor."""


class Area(msgspec.Struct, frozen=True):
    """Where a chart was drawn: the plot's cells and the part of the axis in them."""

    left: int
    """The plot's first cell."""
    cells: int
    since: float
    until: float
    first: float
    """Start of all available data."""
    last: float
    """End of all available data."""

    @property
    def width(self) -> float:
        """How much of the axis is visible."""
        return max(1e-9, self.until - self.since)

    def cell(self, at: float) -> int | None:
        """The cell of a place on the axis, counted from the plot's first; None if outside."""
        if not self.since <= at <= self.until:
            return None
        return min(self.cells - 1, int((at - self.since) / self.width * self.cells))

    def at(self, cell: int) -> float:
        """The place on the axis at the middle of a cell."""
        inside = min(self.cells - 1, max(0, cell))
        return self.since + (inside + 0.5) / self.cells * self.width


def visible(view: View, first: float, last: float) -> tuple[float, float]:
    """The part of the axis between `first` and `last` that a view shows."""
    if view.span is None:
        return first, last
    if view.right is None:
        # when following, the chart is full from the first sample on
        return max(min(first, last - 1), last - view.span), last
    return view.right - view.span, view.right


def zoomed(view: View, area: Area, direction: int, at: float | None = None) -> View:
    """The view zoomed in (1) or out (-1).

    Args:
        view: the current view.
        area: what it shows.
        direction: 1 to zoom in, -1 to zoom out.
        at: the place that stays fixed; None for the cursor, or without one, the right edge.
    """
    spans = TIME_SPANS if view.axis == "time" else STEP_SPANS
    now = area.width
    if direction > 0:
        smaller = [span for span in spans if span < now * 0.99]
        if not smaller:
            return view
        span = smaller[-1]
    else:
        span = next((one for one in spans if one > now * 1.01), spans[-1])
        if span >= (area.last - area.first) * 0.99:
            return replace(view, span=None, right=None)
    anchor = view.cursor if at is None else at
    if anchor is None or area.cell(anchor) is None:
        return replace(view, span=span)
    share = (anchor - area.since) / now
    if share > _EDGE and view.right is None:
        return replace(view, span=span)
    return _inside(replace(view, span=span, right=anchor + (1 - share) * span), area)


def _inside(view: View, area: Area) -> View:
    """The view moved to where there is data; at the end, it follows the newest data."""
    if view.span is None or view.right is None:
        return view
    right = max(view.right, area.first + view.span)
    return replace(view, right=None if right >= area.last - view.span * 0.005 else right)


def panned(view: View, area: Area, cells: int) -> View:
    """The view moved along the axis; a view of everything does not move."""
    if view.span is None:
        return view
    return _inside(replace(view, right=area.until + cells / area.cells * area.width), area)


def cursor_moved(view: View, area: Area, cells: int) -> View:
    """The view with its cursor moved by cells; past an edge, the view moves along.

    A new cursor appears at the right edge when moving left, or at the left edge otherwise.
    """
    here = None if view.cursor is None else area.cell(view.cursor)
    if here is None:
        return replace(view, cursor=area.at(area.cells - 1 if cells < 0 else 0))
    target = here + cells
    if 0 <= target < area.cells:
        return replace(view, cursor=area.at(target))
    beyond = target if target < 0 else target - area.cells + 1
    moved = panned(view, area, beyond)
    since, until = visible(moved, area.first, area.last)
    there = replace(area, since=since, until=until)
    return replace(moved, cursor=there.at(min(area.cells - 1, max(0, target))))


def cursor_to(view: View, area: Area, cell: int) -> View:
    """The view with its cursor on a cell of the plot."""
    return replace(view, cursor=area.at(cell))
