"""The back end of a machine without devices; ranks are then known by CPU and memory alone."""

from __future__ import annotations

from ddptop_runner.model.devices import GpuSample


class NoDevices:
    """Answers that there is no device, and why."""

    source = None
    queries = 0

    def __init__(self, note: str | None, driver: str | None = None) -> None:
        self.note = note
        self.driver = driver

    def sample(self, boottime_s: float) -> list[GpuSample]:
        """Always empty."""
        return []

    def close(self) -> None:
        """Nothing is open."""
