"""What can be done with a chart, on every screen that has one."""

from __future__ import annotations

from ddptop.tui.actions.common import Action

CHART_ACTIONS: tuple[Action, ...] = (
    Action(
        "chart.mode", "chart_mode", "a", "Chart", "chart: show the median, all ranks, or one rank"
    ),
    Action(
        "chart.figure",
        "chart_figure",
        "M",
        "Throughput",
        "chart: show the loss or the throughput",
        show=False,
    ),
    Action(
        "chart.log",
        "chart_log",
        "y",
        "Log scale",
        "chart: use a linear or logarithmic scale",
        show=False,
    ),
    Action("chart.axis", "chart_axis", "b", "Axis", "chart: plot against time or step", show=False),
    Action(
        "chart.smooth",
        "chart_smooth",
        "w",
        "Smooth",
        "chart: set smoothing to 0.6, 0.9, 0.97, or off",
        show=False,
    ),
    Action(
        "chart.in",
        "chart_zoom(1)",
        "plus,equals_sign",
        "Zoom in",
        "chart: zoom in at the cursor or the right edge",
        show=False,
    ),
    Action("chart.out", "chart_zoom(-1)", "minus", "Zoom out", "chart: zoom out", show=False),
    Action("chart.whole", "chart_whole", "0", "Whole run", "chart: show the whole run", show=False),
    Action(
        "chart.left",
        "chart_cursor(-1)",
        "left",
        "Cursor left",
        "chart: move the cursor left to read values; esc hides it",
        show=False,
    ),
    Action(
        "chart.right",
        "chart_cursor(1)",
        "right",
        "Cursor right",
        "chart: move the cursor right to read values",
        show=False,
    ),
    Action(
        "chart.pan_left",
        "chart_pan(-1)",
        "shift+left",
        "Pan left",
        "chart: pan left, or move the cursor left ten cells",
        show=False,
    ),
    Action(
        "chart.pan_right",
        "chart_pan(1)",
        "shift+right",
        "Pan right",
        "chart: pan right, or move the cursor right ten cells",
        show=False,
    ),
    Action(
        "chart.first",
        "chart_end(-1)",
        "home",
        "Cursor to start",
        "chart: move the cursor to the left edge",
        show=False,
    ),
    Action(
        "chart.last",
        "chart_end(1)",
        "end",
        "Cursor to end",
        "chart: move the cursor to the right edge",
        show=False,
    ),
)
"""Keys of the charts; screens with ChartKeys include them."""
