"""A job as it was at one moment, and where that lies in its history."""

from __future__ import annotations

from dataclasses import dataclass

from ddptop_runner.registry import JobView


@dataclass(frozen=True)
class Replay:
    """A job as it was at one moment, and where that lies in its history."""

    job: str = ""


class ReplaySource:
    """Reads it. Used by the collector's thread alone."""

    def read(self, view: JobView, at: float | None) -> Replay | None:
        """What is shown of it; None where there is nothing."""
        return Replay(view.job)
