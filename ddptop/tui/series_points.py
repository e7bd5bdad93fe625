"""Stored series as the chart takes them."""

from __future__ import annotations

from ddptop.tui.render.series import Points
from ddptop_runner.history import Series


def points_of(series: Series) -> Points:
    """A stored series as the chart takes it; a point stands at the middle of its bucket."""
    half = series.bucket_s / 2
    return Points(
        t=[t + half for t in series.t],
        low=series.min,
        mean=series.mean,
        high=series.max,
        not_finite=[t + half for t in series.nonfinite_t],
    )
