"""What can be done with a chart, on every screen that has one."""

from __future__ import annotations

from ddptop.tui.actions.common import Action

CHART_ACTIONS: tuple[Action, ...] = (
    Action("chart.mode", "chart_mode", "a", "Chart", "chart: median, all ranks, one rank"),
    Action(
        "chart.log",
        "chart_log",
        "y",
        "Log values",
        "chart: values linear or logarithmic",
        show=False,
    ),
    Action("chart.axis", "chart_axis", "b", "Axis", "chart: by time or by step", show=False),
    Action(
        "chart.smooth",
        "chart_smooth",
        "w",
        "Smooth",
        "chart: smoothed by an exponential moving average: not at all, 0.6, 0.9, 0.97",
        show=False,
    ),
    Action(
        "chart.in",
        "chart_zoom(1)",
        "plus,equals_sign",
        "Zoom in",
        "chart: less of the axis, around the cursor or at the right edge",
        show=False,
    ),
    Action("chart.out", "chart_zoom(-1)", "minus", "Zoom out", "chart: more of it", show=False),
    Action("chart.whole", "chart_whole", "0", "Whole run", "chart: the whole run", show=False),
    Action(
        "chart.left",
        "chart_cursor(-1)",
        "left",
        "Read left",
        "chart: a cursor that reads the values, one cell to the left; esc takes it away",
        show=False,
    ),
    Action(
        "chart.right",
        "chart_cursor(1)",
        "right",
        "Read right",
        "chart: that cursor, one cell to the right",
        show=False,
    ),
    Action(
        "chart.pan_left",
        "chart_pan(-1)",
        "shift+left",
        "Pan left",
        "chart: what came before; of the whole run the cursor ten cells on",
        show=False,
    ),
    Action(
        "chart.pan_right",
        "chart_pan(1)",
        "shift+right",
        "Pan right",
        "chart: what comes after; of the whole run the cursor ten cells on",
        show=False,
    ),
    Action(
        "chart.first", "chart_end(-1)", "home", "Read first", "chart: cursor to the left edge",
        show=False,
    ),
    Action(
        "chart.last", "chart_end(1)", "end", "Read last", "chart: cursor to the right edge",
        show=False,
    ),
)  # fmt: skip
"""Keys of the charts; screens with ChartKeys include them."""
