"""The devices' figures over the last minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.model import GpuSample
from ddptop_runner.registry import JobView


@dataclass(frozen=True)
class DeviceHistory:
    """The devices' figures over the last minutes."""

    since: float = 0.0
    until: float = 0.0


class DeviceHistorySource:
    """Remembers what was sampled. Used by the collector's thread alone."""

    def take(self, gpus: Sequence[GpuSample], now_s: float) -> None:
        """Remember a look."""

    def read(self, views: Sequence[JobView], span_s: float, now_s: float) -> DeviceHistory | None:
        """The last `span_s` seconds; what was before this viewer is read from jobs' histories."""
        return DeviceHistory(now_s - span_s, now_s)
