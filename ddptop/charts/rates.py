"""What a loss chart shows in place of the loss: steps per second, or a scalar by name. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.view.series import ChartData, Points

LOSS, THROUGHPUT = "loss", "throughput"
OVER_S = 10.0
"""Steps are counted over this time: a step more or less in a second says nothing."""
_SOON = 3
"""Samples after which an attempt that is younger has a rate."""


def names_of(data: ChartData) -> tuple[str, ...]:
    """Everything that the chart can show, the loss first."""
    return (LOSS, THROUGHPUT, *data.scalars)


def shown_as(data: ChartData, name: str) -> ChartData:
    """The chart with what goes by that name in place of losses."""
    if name == LOSS:
        return data
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
    """The chart with steps per second in place of losses."""
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
    """Steps per second up to each sample; an attempt, or steps that go back, begin anew."""
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
