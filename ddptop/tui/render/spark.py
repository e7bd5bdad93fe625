"""Small curves of one row, for cards. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddptop.tui.render.series import Points

STEPS = "▁▂▃▄▅▆▇█"
GAP = " "


def cells_of(points: Points, since: float, until: float, cells: int) -> list[float | None]:
    """The mean within each cell; None in one without a sample."""
    sums, numbers = [0.0] * cells, [0] * cells
    factor = cells / max(1e-9, until - since)
    for t, mean in zip(points.t, points.mean, strict=False):
        if mean is not None and since <= t <= until:
            x = min(cells - 1, int((t - since) * factor))
            sums[x] += mean
            numbers[x] += 1
    return [sums[x] / numbers[x] if numbers[x] else None for x in range(cells)]


def bridged(values: Sequence[float | None], reach: int) -> list[float | None]:
    """With holes of up to `reach` cells filled from the left: fewer samples are no gap."""
    found: list[float | None] = list(values)
    last: int | None = None
    for x, value in enumerate(values):
        if value is not None:
            if last is not None and x - last <= reach + 1:
                found[last + 1 : x] = [values[last]] * (x - last - 1)
            last = x
    return found


def spark(values: Iterable[float | None], low: float, high: float) -> str:
    """A curve of blocks between two values; a cell without a value is empty."""
    span = high - low
    top = len(STEPS) - 1
    return "".join(
        GAP
        if value is None
        else STEPS[min(top, max(0, round((value - low) / span * top)))]
        if span > 0
        else STEPS[top // 2]
        for value in values
    )


def limits(series: Mapping[int, Points], *, from_zero: bool) -> tuple[float, float]:
    """One scale for all ranks, so that their curves can be compared by eye."""
    values = [v for points in series.values() for v in points.mean if v is not None]
    if not values:
        return 0.0, 1.0
    return (0.0 if from_zero else min(values)), max(values)
