"""Stored series as the chart takes them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ddptop.view.series import Points
from ddptop_runner.store.history import Series
from ddptop_runner.store.history_reader import Band


def points_of(series: Series) -> Points:
    """A stored series as the chart takes it; a point stands at the middle of its bucket."""
    half = series.bucket_s / 2
    return Points(
        t=[t + half for t in series.t],
        low=series.min,
        mean=series.mean,
        high=series.max,
        not_finite=[t + half for t in series.nonfinite_t],
        step=series.step,
        attempt=series.attempt,
        bucket_s=series.bucket_s,
    )


def at_new_steps(points: Points) -> Points:
    """Only the samples in which a step was taken: what is repeated between two steps is not new.

    A series without steps ends where its value changed last; before that, nothing tells which of
    its values are new.
    """
    if all(step is None for step in points.step):
        end = len(points.t)
        while end > 1 and points.mean[end - 1] == points.mean[end - 2]:
            end -= 1
        return points if end <= 1 or end == len(points.t) else _those(points, range(end))
    new = [
        place for place in range(len(points.t)) if not place or not _same(points, place, place - 1)
    ]
    return points if len(new) == len(points.t) else _those(points, new)


def _same(points: Points, place: int, other: int) -> bool:
    """Whether two samples are of one step of one attempt, with the same value."""
    if not points.step or points.step[place] is None:
        return False
    return (points.step[place], points.mean[place], points.attempt[place]) == (
        points.step[other],
        points.mean[other],
        points.attempt[other],
    )


def _those(points: Points, places: Sequence[int]) -> Points:
    names = ("t", "low", "mean", "high", *[n for n in ("step", "attempt") if getattr(points, n)])
    return replace(points, **{name: [getattr(points, name)[i] for i in places] for name in names})


def band_points(band: Band) -> Points:
    """All ranks as one: least, median and greatest of them in each bucket."""
    half = band.bucket_s / 2
    return Points(
        t=[t + half for t in band.t],
        low=band.low,
        mean=band.median,
        high=band.high,
        not_finite=[t + half for t in band.nonfinite_t],
        step=band.step,
        attempt=band.attempt,
        bucket_s=band.bucket_s,
    )
