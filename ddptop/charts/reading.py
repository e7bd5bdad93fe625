"""What a chart's cursor reads: the place on the axis, and each curve's value there. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ddptop.charts.axis import AxisWords, clock_label, place_label
from ddptop.charts.braille import DOTS_X
from ddptop.view.series import Columns
from ddptop.view.text import Line, fill, line
from ddptop_runner.base.units import NOT_AVAILABLE, loss


class Reading(msgspec.Struct):
    """Parts of a line, the most important first: a narrow chart leaves out the last."""

    columns: range
    """The dot columns under the cursor."""
    place: Line
    clock: str
    parts: list[Line] = msgspec.field(default_factory=list)

    def at(self, values: list[float | None], reach: int = 0) -> float | None:
        """The mean of what lies under the cursor, else what is nearest; None where nothing is.

        `reach` are the columns that may lie between two samples without being a gap.
        """
        known = [v for x in self.columns if x < len(values) and (v := values[x]) is not None]
        if known:
            return sum(known) / len(known)
        for away in range(1, reach + 1):
            for x in (self.columns.start - away, self.columns.stop - 1 + away):
                if 0 <= x < len(values) and (value := values[x]) is not None:
                    return value
        return None

    def bad(self, columns: Columns) -> bool:
        """Whether there is a value here that is not finite."""
        return any(x in columns.not_finite for x in self.columns)

    def value(
        self,
        name: str,
        raw: Columns,
        drawn: Columns,
        style: str,
        form: Callable[[float], str] = loss,
    ) -> None:
        """A curve's value; where it is drawn smoothed, that and what was measured."""
        here, smooth = self.at(raw.mean, raw.reach // 2), self.at(drawn.mean, raw.reach // 2)
        if here is None or smooth is None:
            said = "NaN" if self.bad(raw) else NOT_AVAILABLE
            self.parts.append(line((f"{name} ", "dim"), (said, "bad" if said == "NaN" else "dim")))
            return
        spans = [(f"{name} ", "dim"), (form(smooth), style)]
        if drawn is not raw:
            spans.append((f" (raw {form(here)})", "dim"))
        self.parts.append(line(*spans))

    def spread(self, columns: Columns, form: Callable[[float], str] = loss) -> None:
        """From the least to the greatest."""
        low = [v for x in self.columns if x < len(columns.low) and (v := columns.low[x])]
        high = [v for x in self.columns if x < len(columns.high) and (v := columns.high[x])]
        if low and high and min(low) < max(high):
            self.parts.append(line((f"{form(min(low))} to {form(max(high))}", "dim")))

    def say(self, text: str, style: str) -> None:
        """Anything else."""
        self.parts.append(line((text, style)))

    def line(self, cells: int) -> Line:
        """As much as fits: the place, the values, and last the time of day."""
        clock = line((self.clock, "dim")) if self.clock else ()
        return fill([self.place, *self.parts, clock], cells, "  ")


def reading(words: AxisWords, at: float, cell: int) -> Reading:
    """An empty reading at a cell of a plot."""
    columns = range(cell * DOTS_X, (cell + 1) * DOTS_X)
    return Reading(columns, line((place_label(words, at), "strong")), clock_label(words, at))
