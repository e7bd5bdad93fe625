"""Draws sparklines for cards and tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddptop.job.series import Points

_LEFT = (0x40, 0x04, 0x02, 0x01)
_RIGHT = (0x80, 0x20, 0x10, 0x08)
"""Bits of the braille dots of a cell's two columns, from the bottom."""


def cells_of(points: Points, since: float, until: float, cells: int) -> list[float | None]:
    """The mean within each cell; None in cells without samples."""
    sums, numbers = [0.0] * cells, [0] * cells
    factor = cells / max(1e-9, until - since)
    for t, mean in zip(points.t, points.mean, strict=False):
        if mean is not None and since <= t <= until:
            x = min(cells - 1, int((t - since) * factor))
            sums[x] += mean
            numbers[x] += 1
    return [sums[x] / numbers[x] if numbers[x] else None for x in range(cells)]


def bridged(values: Sequence[float | None], max_gap: int) -> list[float | None]:
    """Fill holes of up to `max_gap` cells from the left; infrequent samples are not a gap."""
    found: list[float | None] = list(values)
    last: int | None = None
    for x, value in enumerate(values):
        if value is not None:
            if last is not None and x - last <= max_gap + 1:
                found[last + 1 : x] = [values[last]] * (x - last - 1)
            last = x
    return found


def spark(values: Sequence[float | None], low: float, high: float) -> str:
    """A thin curve on a scale from `low` to `high`, two values per cell; unknown values are blank.

    Neighboring values that are apart are connected, so that it reads as one line.
    """
    span = high - low
    rows: list[int | None] = [
        None if value is None else min(3, max(0, round((value - low) / span * 3))) if span else 1
        for value in values
    ]
    text = []
    for x in range(0, len(rows), 2):
        bits = 0
        for column, dots in ((x, _LEFT), (x + 1, _RIGHT)):
            row = rows[column] if column < len(rows) else None
            if row is None:
                continue
            before = rows[column - 1] if column else None
            last = row if before is None else before
            step = 0 if last == row else 1 if last < row else -1
            for dot in range(last + step, row + step, step) if step else (row,):
                bits |= dots[dot]
        text.append(chr(0x2800 + bits) if bits else " ")
    return "".join(text)


def limits(series: Mapping[int, Points], *, from_zero: bool) -> tuple[float, float]:
    """One scale for all ranks, so that their curves can be compared by eye."""
    values = [v for points in series.values() for v in points.mean if v is not None]
    if not values:
        return 0.0, 1.0
    return (0.0 if from_zero else min(values)), max(values)
