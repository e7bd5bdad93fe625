"""Computes figures for a whole job: run time, loss, and pace. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop_runner.job import registry
from ddptop_runner.job.registry import AnyJob
from ddptop_runner.model.snapshot import NodeSnapshot, RankSample


def elapsed_s(view: AnyJob, now: dt.datetime) -> float | None:
    """How long the job has run, or ran before it ended."""
    return None if view.snapshot is None else registry.elapsed_s(view, now)


def median_loss(snapshot: NodeSnapshot) -> tuple[float | None, str | None]:
    """(the median of the ranks' losses, the state of a loss that is not finite)."""
    from ddptop_runner.judge.balance.imbalance import seen  # `ls` prints no loss

    for rank in snapshot.ranks:
        if rank.loss_state in ("nan", "inf"):
            return None, rank.loss_state
    known = sorted(rank.loss for rank in seen(snapshot.ranks) if rank.loss is not None)
    if not known:
        return None, None
    middle = len(known) // 2
    return (known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2), "ok"


def steps_per_s(ranks: Sequence[RankSample]) -> float | None:
    """The slowest rank's pace, because the others wait for it."""
    known = [rank.steps_per_s for rank in ranks if rank.steps_per_s is not None]
    return min(known) if known else None


def restarts_text(snapshot: NodeSnapshot) -> str:
    """`1 used, 2 left`."""
    return f"{snapshot.restarts_used} used, {snapshot.restarts_left} left"


def assigned_devices(snapshot: NodeSnapshot) -> set[tuple[str, int]]:
    """Hosts and machine indices of a job's devices."""
    own = {(rank.host, rank.gpu) for rank in snapshot.ranks if rank.gpu is not None}
    return own | {(gpu.host or snapshot.host, gpu.index) for gpu in snapshot.gpus}
