"""Parts of the step time, over time."""

from __future__ import annotations

from dataclasses import replace

from ddptop.charts.help import explain_split
from ddptop.charts.split import SplitData, SplitOptions, draw_split
from ddptop.tui.widgets.chart_widget import ChartWidget
from ddptop.view.text import Line, rule


class SplitChart(ChartWidget):
    """Data wait, compute and synchronisation as a stack; draws only when something changed."""

    def __init__(self, title: str = "step time", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._data = SplitData()
        self._options = SplitOptions()

    @property
    def options(self) -> SplitOptions:
        """How it is drawn."""
        return replace(self._options, view=self.view)

    def show(self, data: SplitData, title: str | None = None) -> None:
        """Take new parts, and a title; the same objects again cost nothing."""
        if data is self._data and title in (None, self._title):
            return
        self._data, self._title = data, self._title if title is None else title
        self.redraw()

    def next_mode(self) -> None:
        """In seconds, or as shares of the step."""
        self._options = replace(self._options, shares=not self._options.shares)
        self.redraw()

    def explain(self) -> list[tuple[str, str]]:
        """What is drawn, and what the marks mean."""
        return explain_split(self._data)

    def build(self, width: int, height: int) -> list[Line]:
        """Title with the present values, stack and axes."""
        chart = draw_split(self._data, self.options, width - 1, height - 1)
        self.area = chart.area
        title = self._title
        if chart.reading is not None:
            note = chart.reading.line(width - len(title) - 10)
            return [rule(title, width, note, self.title_style), *chart.lines]
        title += ", shares" if self._options.shares else ""
        return [
            rule(title, width, chart.fitting(width - len(title) - 10), self.title_style),
            *chart.lines,
        ]
