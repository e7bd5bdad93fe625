"""Whether the kernel ended a process because memory had run out."""

from __future__ import annotations


class OomWatch:
    """Remembers the kernel's counts from before an attempt, to compare with after a SIGKILL."""

    def begin_attempt(self) -> None:
        """Note the counts of now."""

    def explain(self, pid: int) -> str | None:
        """Why the kernel killed that process, in a sentence; None when nothing readable says so."""
        return None
