"""The losses of all ranks over time."""

from __future__ import annotations

from ddptop.tui.render.chart import ChartOptions, draw_chart
from ddptop.tui.render.scale import window_label
from ddptop.tui.render.series import ChartData
from ddptop.tui.render.text import Line, rule
from ddptop.tui.widgets.lines import LinesView


class LossChart(LinesView):
    """Median, band and outliers; draws only when its data, options or size changed."""

    def __init__(self) -> None:
        super().__init__(id="chart")
        self._data = ChartData()
        self._options = ChartOptions()
        self._job = ""

    def show(self, data: ChartData, options: ChartOptions, job: str = "") -> None:
        """Take new data; the same object again costs nothing. `job` is named in the title."""
        if data is self._data and options == self._options and job == self._job:
            return
        self._data, self._options, self._job = data, options, job
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """Title, plot and axes."""
        chart = draw_chart(self._data, self._options, width - 1, height - 1)
        scale = ", log axis" if self._options.logarithmic else ""
        of = f" of {self._job}" if self._job else ""
        shown = window_label(self._data.window_s)
        if self._data.watched and self._data.window_s is None:
            shown = "as far as it was watched"
        title = f"loss{of}, {shown}{scale}"
        return [rule(title, width, chart.note), *chart.lines]
