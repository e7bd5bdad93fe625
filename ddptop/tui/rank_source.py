"""One rank over time."""

from __future__ import annotations

from dataclasses import dataclass

from ddptop_runner.registry import JobView


@dataclass(frozen=True)
class RankHistory:
    """One rank over time."""

    job: str = ""
    rank: int = 0


class RankSource:
    """Reads it. Used by the collector's thread alone."""

    def read(self, view: JobView, rank: int, now_s: float) -> RankHistory | None:
        """What is shown of it; None where there is nothing."""
        return RankHistory(view.job, rank)
