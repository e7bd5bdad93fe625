"""Shows steps per second or a scalar on the loss chart instead of the loss. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.view.series import ChartData, Points

LOSS, THROUGHPUT = "loss", "throughput"
OVER_S = 10.0
"""Time over which steps are counted; over one second, a single step would matter too much."""
_SOON = 3
"""Number of samples after which a younger attempt has a rate."""


def names_of(data: ChartData) -> tuple[str, ...]:
    """Names of everything that the chart can show, the loss first."""
    return (LOSS, THROUGHPUT, *data.scalars)


def shown_as(data: ChartData, name: str) -> ChartData:
    """The chart with the curve of that name instead of losses."""
    if name == LOSS:
        return data
    if data.stepped is not None:
        data = replace(data, stepped=shown_as(data.stepped, name))
    if name == THROUGHPUT:
        return throughput(data)
    points = data.scalars.get(name)
    return replace(
        data,
        name=name,
        series={} if points is None else {0: points},
        scalars={},
        middle=None,
        odd=(),
        apart={},
        empty=f"no {name} yet",
    )


def throughput(data: ChartData) -> ChartData:
    """The chart with steps per second instead of losses."""
    return replace(
        data,
        scalars={},
        name=THROUGHPUT,
        series={rank: rates(points) for rank, points in data.series.items()},
        middle=None if data.middle is None else rates(data.middle),
        odd=(),
        apart={},
        empty="no throughput yet; it needs a loss with step numbers",
    )


def rates(points: Points) -> Points:
    """Steps per second up to each sample; restarts at a new attempt or when steps go back."""
    known = [
        (t, step, attempt, place)
        for place, (t, step, attempt) in enumerate(
            zip(points.t, points.step, points.attempt or [None] * len(points.t), strict=False)
        )
        if step is not None
    ]
    kept: list[int] = []
    found: list[float] = []
    first = before = 0
    for now, (t, step, attempt, place) in enumerate(known):
        if now and (attempt != known[now - 1][2] or step < known[now - 1][1]):
            first = before = now
        while before + 1 < now and t - known[before + 1][0] >= OVER_S:
            before += 1
        if now - first < _SOON and t - known[before][0] < OVER_S:
            continue
        kept.append(place)
        found.append((step - known[before][1]) / (t - known[before][0]))
    return Points(
        t=[points.t[place] for place in kept],
        low=found,
        mean=found,
        high=found,
        step=[points.step[place] for place in kept],
        attempt=[points.attempt[place] for place in kept] if points.attempt else (),
        bucket_s=points.bucket_s,
    )
