"""The hang verdict: only progress proves life, and a paused rank is not hung."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner.hangs.types import HangVerdict, RankProgress

START_FLOOR_S = 300.0
"""Least time allowed before an attempt's first step: imports, data and compilation take minutes."""

QUIET_FACTOR = 10.0
QUIET_FLOOR_S = 10.0
"""A rank is called quiet after this many times its step time, and never before the floor."""


def is_quiet(since_progress_s: float, step_time_s: float | None) -> bool:
    """Whether a rank's silence is long beside its own step time; no alarm yet."""
    if step_time_s is None:
        return False
    return since_progress_s > max(QUIET_FLOOR_S, QUIET_FACTOR * step_time_s)


def verdict(ranks: Sequence[RankProgress], timeout_s: float | None) -> HangVerdict | None:
    """Whether the group hangs: alive, not paused, and no rank took a step for `timeout_s`.

    Before the attempt's first step at least `START_FLOOR_S` are allowed. Without a probe nothing
    proves progress, so there is no verdict.

    Args:
        ranks: all ranks of the attempt.
        timeout_s: seconds without a step that are allowed; None: off.
    """
    alive = [rank for rank in ranks if rank.alive]
    if timeout_s is None or not alive:
        return None
    if any(rank.paused for rank in alive) or all(rank.steps is None for rank in alive):
        return None
    steps = [rank.steps or 0 for rank in alive]
    allowed_s = timeout_s if max(steps) > 0 else max(timeout_s, START_FLOOR_S)
    quiet_s = min(rank.since_progress_s for rank in alive)
    if quiet_s <= allowed_s:
        return None
    fewest = min(steps)
    behind = tuple(rank.rank for rank in alive if (rank.steps or 0) == fewest)
    where = (
        f"all ranks stand at step {fewest}"
        if fewest == max(steps)
        else f"rank{'s' if len(behind) > 1 else ''} {', '.join(map(str, behind))} "
        f"stopped at step {fewest}, the others at {max(steps)}"
    )
    return HangVerdict(
        ranks=behind,
        quiet_s=quiet_s,
        message=f"no rank took a step for {quiet_s:.0f} s (allowed: {allowed_s:g} s); {where}",
    )
