"""Smooths curves by an exponential moving average. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ddptop.job.series import Columns

WEIGHTS: tuple[float, ...] = (0.0, 0.6, 0.9, 0.97)
"""Selectable weights of the average so far at each value; 0 for no smoothing."""


def next_weight(weight: float) -> float:
    """The next weight, wrapping around."""
    return next((one for one in WEIGHTS if one > weight + 1e-9), WEIGHTS[0])


def smoothed(
    values: Sequence[float | None], weight: float, breaks: Collection[int] = ()
) -> list[float | None]:
    """The moving average of the values up to each one, as TensorBoard and W&B draw it.

    Each average is divided by the sum of its weights, so that the first values are not biased
    toward zero. A missing value stays missing and does not affect the average.

    Args:
        values: in order; None if missing.
        weight: from 0 (no smoothing) to below 1.
        breaks: indices where the average restarts, such as the first of an attempt.
    """
    if weight <= 0:
        return list(values)
    total, seen = 0.0, 0.0
    found: list[float | None] = []
    for place, value in enumerate(values):
        if place in breaks:
            total, seen = 0.0, 0.0
        if value is None:
            found.append(None)
            continue
        total = weight * total + (1 - weight) * value
        seen = weight * seen + (1 - weight)
        found.append(total / seen)
    return found


def smoothed_columns(
    columns: Columns, weight: float, breaks: Collection[int] = (), *, logarithmic: bool = False
) -> Columns:
    """The columns with minimum, mean, and maximum averaged alike, so that they keep their order.

    With `logarithmic`, logarithms are averaged: a mean of the values would lie far above a loss
    that falls by decades. Columns whose mean is not positive are then omitted.
    """
    if weight <= 0:
        return columns

    def averaged(values: Sequence[float | None]) -> list[float | None]:
        if not logarithmic:
            return smoothed(values, weight, breaks)
        logs = [
            math.log(value if value > 0 else least)
            if value is not None and mean is not None and mean > 0
            else None
            for value, mean in zip(values, columns.mean, strict=True)
        ]
        means = smoothed(logs, weight, breaks)
        return [None if value is None else math.exp(value) for value in means]

    least = min((value for value in columns.mean if value is not None and value > 0), default=1.0)
    return replace(
        columns,
        low=averaged(columns.low),
        mean=averaged(columns.mean),
        high=averaged(columns.high),
    )
