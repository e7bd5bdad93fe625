"""What happened to a job, attempt by attempt."""

from __future__ import annotations

from dataclasses import dataclass

from ddptop_runner.registry import JobView


@dataclass(frozen=True)
class Story:
    """What happened to a job, attempt by attempt."""

    job: str = ""


class StorySource:
    """Reads it. Used by the collector's thread alone."""

    def read(self, view: JobView) -> Story | None:
        """What is shown of it; None where there is nothing."""
        return Story(view.job)
