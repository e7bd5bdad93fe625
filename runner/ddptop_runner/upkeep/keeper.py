"""Looks after a live job's run folder once a second: log sizes and disk space."""

from __future__ import annotations

from ddptop_runner.alerts import Finding
from ddptop_runner.paths import RunFolder
from ddptop_runner.spec import JobSpec
from ddptop_runner.story import Story


class RunFolderKeeper:
    """Keeps logs within their limit and the disk's end from ending the training.

    Args:
        folder: the job's run folder.
        spec: the job.
        story: is told of what is given up, once.
    """

    def __init__(self, folder: RunFolder, spec: JobSpec, story: Story) -> None:
        self._folder = folder
        self._spec = spec
        self._story = story

    def look(self, attempt: int, now_s: float) -> list[Finding]:
        """Do what is due; what a person should know."""
        return []
