"""Charts a device: utilization, memory, power, and temperature. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddptop.charts.curves import Curve, Curves
from ddptop.job.series import DeviceHistory, Points
from ddptop_runner.model.snapshot import GpuSample

MAX_PAUSE_S = 15.0
NOTHING = Points()


def figures_of(gpu: GpuSample, history: DeviceHistory) -> Curves:
    """Utilization, memory, power against its limit, and temperature.

    Figures that the driver does not report have no curve.
    """
    known = history.figures
    memory = _share(known.get("memory", NOTHING), gpu.mem_total_bytes)
    curves = (
        Curve("util", known.get("util", NOTHING), "%", 0.0, 100.0, band="samples"),
        Curve("memory", memory, "%", 0.0, 100.0),
        Curve("power", known.get("power", NOTHING), "W", 0.0, gpu.power_limit_w, band="samples"),
        Curve("temperature", known.get("temperature", NOTHING), "°C"),
    )
    recorded = tuple(curve for curve in curves if curve.points.t)
    first = history.until if history.first is None else history.first
    return Curves(
        recorded,
        since=history.since,
        until=history.until,
        window_s=history.until - history.since,
        marks=history.marks,
        watched=True,
        whole=(min(first, history.until - 1), history.until),
        empty="no history yet: recording starts now",
    )


def _share(points: Points, total: int | None) -> Points:
    """Bytes as a percentage of `total`; empty if that is unknown."""
    if not total:
        return NOTHING
    low, mean, high = (
        [None if value is None else 100 * value / total for value in values]
        for values in (points.low, points.mean, points.high)
    )
    return Points(points.t, low, mean, high)


def pause_s(span_s: float | None, history: DeviceHistory, cells: int) -> float:
    """How long the chart can stay unchanged: until it would differ by one column."""
    shown_s = history.until - (history.first or history.since) if span_s is None else span_s
    return min(MAX_PAUSE_S, max(0.9, shown_s / max(1, 2 * cells)))


def device_curves(device: GpuSample, figures: Mapping[str, Points]) -> Sequence[Curve]:
    """A device's load, memory, and power, each with its limit at the top."""
    most = {
        "util": ("GPU", "%", 100.0),
        "memory": ("GPU mem", "bytes", device.mem_total_bytes),
        "power": ("power", "W", device.power_limit_w),
    }
    return [
        Curve(title, figures[name], unit, least=0.0, most=None if top is None else float(top))
        for name, (title, unit, top) in most.items()
        if name in figures
    ]
