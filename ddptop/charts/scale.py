"""Computes axes: round ticks, their labels, and the mapping of values to dots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ddptop_runner.base.units import duration

_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 432000, 864000, 1728000, 4320000, 8640000, 31536000),
)

DIGITS = 12
"""Decimal places of ticks."""
SMALLEST = 10.0**-DIGITS
"""Values that are closer than this have the same tick."""


def nice_step(span: float, parts: int) -> float:
    """The smallest step of 1, 2, or 5 times a power of ten that divides `span` into ≤ `parts`."""
    rough = span / max(1, parts)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    for factor in (1, 2, 5, 10):
        if factor * magnitude >= rough * (1 - 1e-9):
            return factor * magnitude
    return 10 * magnitude


def value_ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most `most` if the steps allow."""
    if not (math.isfinite(low) and math.isfinite(high)) or high - low < SMALLEST:
        return [low] if math.isfinite(low) else []
    step = nice_step(high - low, max(1, most - 1))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, DIGITS) for index in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten, with 2 and 5 between them if there are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(ticks) <= most:
            if len(ticks) >= 2:
                return ticks
            even = value_ticks(low, high, most)
            return even if len(even) >= 2 else [low, high]
    stride = -(-len(ticks) // most)
    return ticks[::stride]


def value_label(value: float, step: float) -> str:
    """A tick's label with only as many digits as distinguish it from its neighbors."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 1e5 or magnitude < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 2
    return f"{value:.{min(digits, 6)}f}"


def time_step_s(span_s: float, most: int) -> int:
    """The step that divides a time axis into at most `most` intervals."""
    for step in _TIME_STEPS_S:
        if span_s / step <= max(1, most):
            return step
    return math.ceil(span_s / max(1, most))


def time_label(seconds: float) -> str:
    """A tick's label: `0`, `30s`, `12m`, `1h30`, `3d`; negative is before the right edge."""
    if seconds < 0:
        return "-" + time_label(-seconds)
    whole = round(seconds)
    if whole == 0:
        return "0"
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}d" + (f"{hours:02}h" if hours else "")
    if hours:
        return f"{hours}h" + (f"{minutes:02}" if minutes else "")
    if minutes:
        return f"{minutes}m" + (f"{rest:02}" if rest else "")
    return f"{rest}s"


def window_label(window_s: float | None) -> str:
    """The visible time span, in words."""
    return "whole run" if window_s is None else f"last {duration(window_s).removesuffix(' 00s')}"


class Scale(msgspec.Struct, frozen=True):
    """Maps values to dots: 0 is the first dot, `dots` - 1 the last."""

    low: float
    high: float
    dots: int
    logarithmic: bool = False

    def position(self, value: float) -> float:
        """The position of a value in dots, clamped to the range."""
        low, high = self.low, self.high
        if self.logarithmic:
            value = math.log(value) if value > 0 else math.log(low)
            low, high = math.log(low), math.log(high)
        if high <= low:
            return (self.dots - 1) / 2
        share = (value - low) / (high - low)
        return min(1.0, max(0.0, share)) * (self.dots - 1)

    def dots_of(self, values: Sequence[float | None]) -> list[int | None]:
        """The dots nearest to these values; None stays None."""
        low, span, top = self.low, self.high - self.low, self.dots - 1
        if self.logarithmic or span <= 0:
            return [None if value is None else self.dot(value) for value in values]
        return [
            None if value is None else round(min(1.0, max(0.0, (value - low) / span)) * top)
            for value in values
        ]

    def dot(self, value: float) -> int:
        """The dot nearest to a value."""
        return round(self.position(value))
