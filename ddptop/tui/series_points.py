"""Stored series as the chart takes them."""

from __future__ import annotations

from ddptop.tui.render.series import Points
from ddptop_runner.history import Series
from ddptop_runner.history_bands import Band


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
