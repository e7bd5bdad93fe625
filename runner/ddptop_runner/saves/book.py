"""The checkpoints of a job, as its ranks' probes tell of them, and what a failure costs."""

from __future__ import annotations

from dataclasses import dataclass

from ddptop_runner.clock import utc_from_boottime
from ddptop_runner.model import Checkpoint
from ddptop_runner.probe_message import SavedFile


@dataclass(frozen=True)
class WorkLost:
    """What has to be done again after a failure."""

    steps: int | None
    seconds: float | None
    since: Checkpoint | None
    """The checkpoint since which; None: all of the attempt."""

    def in_words(self) -> str:
        """One sentence."""
        return ""


class CheckpointBook:
    """Remembers the last checkpoint over all attempts."""

    def __init__(self, last: Checkpoint | None = None) -> None:
        self.last = last

    def saved(
        self, file: SavedFile, *, rank: int, attempt: int, global_step: int | None = None
    ) -> Checkpoint | None:
        """A rank's probe tells of the last file it saved; the checkpoint, if it is a new one."""
        checkpoint = Checkpoint(
            path=file.path,
            at=utc_from_boottime(file.ended_t),
            rank=rank,
            attempt=attempt,
            step=file.steps,
            global_step=global_step,
            size_bytes=file.size_bytes,
            took_s=file.ended_t - file.began_t,
        )
        if self.last is not None and self.last.at >= checkpoint.at:
            return None
        self.last = checkpoint
        return checkpoint

    def work_lost(self, attempt: int, steps: int | None, lived_s: float) -> WorkLost:
        """What is lost when an attempt fails now.

        Args:
            attempt: its number.
            steps: the most steps that a rank took in it; None when not known.
            lived_s: how long it lived.
        """
        del attempt
        return WorkLost(steps, lived_s, None)
