"""The keys of charts: one implementation for every screen that has some."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual import on
from textual.widget import Widget

from ddptop.sources.snapshot import Wish
from ddptop.tui.messages import WishChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.chart_widget import ChartWidget


class ChartKeys(MonitorScreen):
    """A screen with charts: override `charts`, and include CHART_ACTIONS in the screen's table.

    The keys go to the chart that has the focus, else to the first that is visible. All charts of
    a screen show the same part of the time and the same cursor.

    A screen whose `action_back` is its own begins it with `if self.chart_escape(): return`.
    """

    _keys_before: Widget | None = None
    """What had the keys before a chart took them."""

    def charts(self) -> Sequence[ChartWidget]:
        """The screen's charts, the most important first."""
        raise NotImplementedError

    def with_chart(self, wish: Wish) -> Wish:
        """A wish that also asks for what the charts show."""
        charts = self.charts()
        if not charts:
            return wish
        window_s, until = charts[0].time_span()
        return replace(wish, chart_window_s=window_s, chart_until=until)

    def chart_escape(self) -> bool:
        """Take the cursor away; whether there was one."""
        there = [chart.drop_cursor() for chart in self.charts()]
        if self._keys_before is not None:
            if self._keys_before.is_attached:
                self._keys_before.focus()
            self._keys_before = None
        return any(there)

    def keyed_chart(self) -> ChartWidget | None:
        """The chart that the keys go to."""
        charts = self.charts()
        for chart in charts:
            if chart.has_focus:
                return chart
        return next((chart for chart in charts if chart.size.height), None)

    @on(ChartWidget.Viewed)
    def _chart_viewed(self, message: ChartWidget.Viewed) -> None:
        message.stop()
        for chart in self.charts():
            if chart is not message.chart:
                view = message.chart.view
                chart.follow(view if chart.has_steps else message.chart.time_view())
        if message.moved:
            self.post_message(WishChanged())

    def action_back(self) -> None:
        """Remove the cursor, or go back to the previous screen."""
        if not self.chart_escape():
            super().action_back()

    def action_chart_mode(self) -> None:
        """Median, all ranks, one rank."""
        if (chart := self.keyed_chart()) is not None:
            chart.next_mode()

    def action_chart_figure(self) -> None:
        """Loss or throughput."""
        if (chart := self.keyed_chart()) is not None:
            chart.next_figure()

    def action_chart_log(self) -> None:
        """Linear or logarithmic values."""
        if (chart := self.keyed_chart()) is not None:
            chart.next_scale()

    def action_chart_axis(self) -> None:
        """By time or by step."""
        if (chart := self.keyed_chart()) is None:
            return
        if chart.has_steps:
            chart.next_axis()
        else:
            self.notify(chart.no_steps, severity="warning")

    def action_chart_smooth(self) -> None:
        """Not at all, a little, more, most."""
        if (chart := self.keyed_chart()) is not None:
            chart.next_smoothing()

    def action_chart_zoom(self, direction: int) -> None:
        """Less or more of the axis."""
        if (chart := self.keyed_chart()) is not None:
            chart.zoom(direction)

    def action_chart_whole(self) -> None:
        """The whole run."""
        if (chart := self.keyed_chart()) is not None:
            chart.show_whole()

    def action_chart_cursor(self, cells: int) -> None:
        """Read values to the left or right."""
        if (chart := self.keyed_chart()) is not None:
            chart.move_cursor(cells)

    def action_chart_pan(self, direction: int) -> None:
        """What came before or after; where other cells take the arrows, the chart gets the keys."""
        if (chart := self.keyed_chart()) is None:
            return
        taker = self.active_bindings.get("left")
        if taker is not None and taker.node is not self and self.focused is not chart:
            self._keys_before = self.focused
            chart.focus()
        chart.pan(direction)

    def action_chart_end(self, direction: int) -> None:
        """Read values at an edge."""
        if (chart := self.keyed_chart()) is not None:
            chart.cursor_to_end(direction)
