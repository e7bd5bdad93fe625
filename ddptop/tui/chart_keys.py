"""What the keys of charts do: functions that get the screen, one for each name in CHART_ACTIONS.

The keys go to the chart that has the focus, else to the first that is visible. All charts of a
screen show the same part of the time and the same cursor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ddptop.sources.chart import ChartQuery
from ddptop.tui.messages import QueryChanged

if TYPE_CHECKING:
    from ddptop.tui.screens.base import MonitorScreen
    from ddptop.tui.widgets.chart_widget import ChartWidget


def chart_query(screen: MonitorScreen[Any], columns: int, rank: int | None = None) -> ChartQuery:
    """What the screen's charts show; of one without a chart the whole run."""
    charts = screen.charts()
    window_s, until = charts[0].time_span() if charts else (None, None)
    return ChartQuery(columns, window_s, until, rank)


def escape(screen: MonitorScreen[Any]) -> bool:
    """Take the cursor away; whether there was one."""
    there = [chart.drop_cursor() for chart in screen.charts()]
    if (before := screen.keys_before) is not None:
        if before.is_attached:
            before.focus()
        screen.keys_before = None
    return any(there)


def viewed(screen: MonitorScreen[Any], message: ChartWidget.Viewed) -> None:
    """Have the other charts show what one shows."""
    for chart in screen.charts():
        if chart is not message.chart:
            view = message.chart.view
            chart.follow(view if chart.has_steps else message.chart.time_view())
    if message.moved:
        screen.post_message(QueryChanged())


def press(screen: MonitorScreen[Any], name: str, amount: int) -> None:
    """Do what a key of charts does, to the chart that the keys go to."""
    charts = screen.charts()
    focused = next((chart for chart in charts if chart.has_focus), None)
    chart = focused or next((chart for chart in charts if chart.size.height), None)
    if chart is not None:
        _DONE[name](screen, chart, amount)


def _axis(screen: MonitorScreen[Any], chart: ChartWidget, amount: int) -> None:
    if chart.has_steps:
        chart.next_axis()
    else:
        screen.notify(chart.no_steps, severity="warning")


def _pan(screen: MonitorScreen[Any], chart: ChartWidget, direction: int) -> None:
    """What came before or after; where other cells take the arrows, the chart gets the keys."""
    taker = screen.active_bindings.get("left")
    if taker is not None and taker.node is not screen and screen.focused is not chart:
        screen.keys_before = screen.focused
        chart.focus()
    chart.pan(direction)


_DONE: Mapping[str, Callable[[MonitorScreen[Any], ChartWidget, int], None]] = {
    "mode": lambda screen, chart, amount: chart.next_mode(),
    "figure": lambda screen, chart, amount: chart.next_figure(),
    "log": lambda screen, chart, amount: chart.next_scale(),
    "axis": _axis,
    "smooth": lambda screen, chart, amount: chart.next_smoothing(),
    "zoom": lambda screen, chart, direction: chart.zoom(direction),
    "whole": lambda screen, chart, amount: chart.show_whole(),
    "cursor": lambda screen, chart, cells: chart.move_cursor(cells),
    "pan": _pan,
    "end": lambda screen, chart, direction: chart.cursor_to_end(direction),
}
"""By name, with the screen and a direction or a number of cells."""
