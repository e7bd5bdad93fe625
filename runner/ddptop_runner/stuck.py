"""Stuck in a collective: full utilization at idle power, without progress."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner.alerts import Finding
from ddptop_runner.model import GpuSample, RankSample


class StuckWatch:
    """Remembers one job's progress and the power that it drew meanwhile.

    A kernel of a collective that waits for another rank keeps its device at 100 % utilization,
    reads next to no memory and draws little power.
    """

    def __init__(self) -> None:
        self.stuck_ranks: frozenset[int] = frozenset()
        """Ranks whose device spins, by the last update; empty while nothing is stuck."""
        self.reason: str | None = None
        """Why `stuck_ranks` are thought to be stuck, in words."""

    def update(
        self,
        now_s: float,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        job: str,
        *,
        progress_at_s: float | None = None,
    ) -> list[Finding]:
        """Look once more; at most one finding, which has waited long enough already.

        Args:
            now_s: a clock that only goes forward, in seconds.
            ranks: the job's ranks, joined with their devices. A change of a step, a loss's step
                or `last_progress_at` is progress.
            gpus: the job's devices, with `mem_util_percent` and `power_limit_w` where known.
            job: the job's name, as in `GpuProcess.job`.
            progress_at_s: when the caller last saw other progress, such as a log that grew; on
                the clock of `now_s`.
        """
        return []
