"""Charts of several figures over time, and of the parts of a step."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.charts.figures import FigureOptions, FiguresData, draw_figures, units_of
from ddptop.charts.help import explain_figures, explain_split
from ddptop.charts.smooth import next_weight
from ddptop.charts.split import SplitData, SplitOptions, draw_split
from ddptop.tui.widgets.charts import ChartWidget
from ddptop.view.text import Line


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
        return explain_split(self._data)

    def build(self, width: int, height: int) -> list[Line]:
        """Build the title with current values, the stack, and the axes."""
        chart = draw_split(self._data, self.options, width - 1, height - 1)
        return self.titled(chart, self._title, ", shares" if self._options.shares else "", width)
