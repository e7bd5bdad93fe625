"""`ddptop rm`: delete ended jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner import commands
from ddptop_runner.registry import resolve


def run(jobs: Sequence[str]) -> int:
    """Delete each; all are looked up first, so that a wrong name deletes nothing."""
    views = [resolve(job) for job in jobs]
    for view in views:
        commands.remove(view)
    return 0
