"""Profiles ranks of a live job, and reads their traces."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

from ddptop.job.profile import (
    Difference,
    RankProfile,
    analyze,
    difference_line,
    differences,
    rank_lines,
)
from ddptop_runner.base import bounded
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import profile
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.model.words import Base

MAX_TRACE_BYTES = 256 * 1024**2


class ProfileReport(Base, frozen=True, kw_only=True):
    """A few steps of a job, as profiled by torch.profiler."""

    schema: int = SCHEMA
    job: str
    ranks: list[RankProfile]
    """The slowest rank first, unless ranks were given."""
    differences: list[Difference]
    """Between the first rank and the second; empty for one rank."""

    def sections(self) -> list[tuple[str, str]]:
        """Titles and texts."""
        found = [(f"rank {one.rank}", "\n".join(rank_lines(one))) for one in self.ranks]
        if len(self.ranks) > 1:
            found.append(("difference", difference_line(self.ranks, self.differences)))
        paths = "\n".join(one.path for one in self.ranks)
        return [*found, ("traces, to open in ui.perfetto.dev", paths)]


def profile_job(
    view: JobView, ranks: Sequence[int] = (), steps: int = profile.STEPS
) -> ProfileReport:
    """Profile ranks; the slowest and the median one if none are given.

    Raises:
        DdptopError: they cannot be profiled, or a trace is damaged.
    """
    taken = profile.take(view, ranks, steps)
    read = [_read(rank, path) for rank, path in taken.items()]
    own = [times for _, times in read]
    return ProfileReport(
        job=view.job,
        ranks=[found for found, _ in read],
        differences=differences(own[0], own[1]) if len(own) > 1 else [],
    )


def _read(rank: int, path: Path) -> tuple[RankProfile, dict[str, float]]:
    """Compress a trace, and analyze it."""
    data = bounded.read_bytes(path, MAX_TRACE_BYTES)
    packed = path.with_suffix(".json.gz")
    packed.touch(mode=0o600)
    packed.write_bytes(gzip.compress(data, 6))
    path.unlink()
    return analyze(rank, str(packed), data)
