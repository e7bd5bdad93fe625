"""Charts a device: utilization, memory, power, and temperature. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ddptop.charts.curves import Curve, Curves
from ddptop.job.series import DeviceHistory, Points
from ddptop_runner.model.snapshot import GpuSample

LEAST_SPAN_S = 900.0
"""A history of devices is drawn over at least this time."""


def device_curves(device: GpuSample, figures: Mapping[str, Points]) -> list[Curve]:
    """Utilization, memory, and power with their limits at the top, and temperature.

    Figures that the driver does not report have no curve.
    """
    known = {
        "util": Curve("GPU", Points(), "%", 0.0, 100.0),
        "memory": Curve("GPU mem", Points(), "bytes", 0.0, device.mem_total_bytes),
        "power": Curve("power", Points(), "W", 0.0, device.power_limit_w),
        "temperature": Curve("temperature", Points(), "°C"),
    }
    return [
        replace(curve, points=points)
        for name, curve in known.items()
        if (points := figures.get(name)) is not None and points.t
    ]


def figures_of(gpu: GpuSample, history: DeviceHistory) -> Curves:
    """The history of a device."""
    return Curves(
        tuple(device_curves(gpu, history.figures)),
        since=min(history.since, history.until - LEAST_SPAN_S),
        until=history.until,
        marks=history.marks,
        watched=True,
        empty="no history yet: recording starts now",
    )
