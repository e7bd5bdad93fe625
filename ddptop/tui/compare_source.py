"""Several jobs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.registry import JobView


@dataclass(frozen=True)
class Compared:
    """Several jobs beside each other."""

    jobs: tuple[str, ...] = ()


class CompareSource:
    """Reads it. Used by the collector's thread alone."""

    def read(self, views: Sequence[JobView], now_s: float) -> Compared | None:
        """The jobs' losses; None where there are none."""
        return Compared(tuple(view.job for view in views))
