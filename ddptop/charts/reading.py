"""Reads a chart at its cursor: the place on the axis, and each curve's value there. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ddptop.charts.axis import AxisWords, clock_label, place_label
from ddptop.charts.braille import DOTS_X
from ddptop.view.series import Columns
from ddptop.view.text import Line, fill, line
from ddptop_runner.base.units import NOT_AVAILABLE, loss


class Reading(msgspec.Struct):
    """Parts of a line, most important first; a narrow chart drops the last ones."""

    columns: range
    """The dot columns under the cursor."""
    place: Line
    clock: str
    parts: list[Line] = msgspec.field(default_factory=list)

    def at(self, values: list[float | None], max_gap: int = 0) -> float | None:
        """The mean of the values under the cursor, or else the nearest within `max_gap` columns."""
        known = [v for x in self.columns if x < len(values) and (v := values[x]) is not None]
        if known:
            return sum(known) / len(known)
        for away in range(1, max_gap + 1):
            for x in (self.columns.start - away, self.columns.stop - 1 + away):
                if 0 <= x < len(values) and (value := values[x]) is not None:
                    return value
        return None

    def bad(self, columns: Columns) -> bool:
        """Whether a value under the cursor is not finite."""
        return any(x in columns.not_finite for x in self.columns)

    def value(
        self,
        name: str,
        raw: Columns,
        drawn: Columns,
        style: str,
        form: Callable[[float], str] = loss,
    ) -> None:
        """Add a curve's value; for a smoothed curve, also the raw value."""
        here, smooth = self.at(raw.mean, raw.max_gap // 2), self.at(drawn.mean, raw.max_gap // 2)
        if here is None or smooth is None:
            missing = "NaN" if self.bad(raw) else NOT_AVAILABLE
            self.parts.append(
                line((f"{name} ", "dim"), (missing, "bad" if missing == "NaN" else "dim"))
            )
            return
        spans = [(f"{name} ", "dim"), (form(smooth), style)]
        if drawn is not raw:
            spans.append((f" (raw {form(here)})", "dim"))
        self.parts.append(line(*spans))

    def spread(self, columns: Columns, form: Callable[[float], str] = loss) -> None:
        """Add the range from minimum to maximum."""
        low = [v for x in self.columns if x < len(columns.low) and (v := columns.low[x])]
        high = [v for x in self.columns if x < len(columns.high) and (v := columns.high[x])]
        if low and high and min(low) < max(high):
            self.parts.append(line((f"{form(min(low))} to {form(max(high))}", "dim")))

    def note(self, text: str, style: str) -> None:
        """Add any other text."""
        self.parts.append(line((text, style)))

    def line(self, cells: int) -> Line:
        """The reading as far as it fits: the place, the values, and last the time of day."""
        clock = line((self.clock, "dim")) if self.clock else ()
        return fill([self.place, *self.parts, clock], cells, "  ")


def reading(words: AxisWords, at: float, cell: int) -> Reading:
    """An empty reading at a cell of a plot."""
    columns = range(cell * DOTS_X, (cell + 1) * DOTS_X)
    return Reading(columns, line((place_label(words, at), "strong")), clock_label(words, at))
