"""Charts a device: utilization, memory, power, and temperature. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddptop.charts.curves import Curve, Curves
from ddptop.job.series import DeviceHistory, Points
from ddptop_runner.model.snapshot import GpuSample

LEAST_SPAN_S = 900.0
"""A history of devices is drawn over at least this time."""

NOTHING = Points()


def figures_of(gpu: GpuSample, history: DeviceHistory) -> Curves:
    """Utilization, memory, power against its limit, and temperature.

    Figures that the driver does not report have no curve.
    """
    known = history.figures
    curves = (
        Curve("util", known.get("util", NOTHING), "%", 0.0, 100.0),
        Curve("memory", known.get("memory", NOTHING), "bytes", 0.0, gpu.mem_total_bytes),
        Curve("power", known.get("power", NOTHING), "W", 0.0, gpu.power_limit_w),
        Curve("temperature", known.get("temperature", NOTHING), "°C"),
    )
    recorded = tuple(curve for curve in curves if curve.points.t)
    return Curves(
        recorded,
        since=min(history.since, history.until - LEAST_SPAN_S),
        until=history.until,
        marks=history.marks,
        watched=True,
        empty="no history yet: recording starts now",
    )


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
