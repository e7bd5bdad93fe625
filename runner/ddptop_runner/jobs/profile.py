"""Has live ranks profile a few steps, and waits for their traces."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError, UsageError, WaitTimeoutError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.judge.balance.imbalance import busy_s
from ddptop_runner.model.snapshot import RankSample

STEPS = 5
POLL_S = 0.1
SEEN_AFTER_S = 2.0
"""How long after an order is written every rank that trains has seen it."""
LIMIT_S = 30.0
"""How long to wait beyond the time that the steps usually take."""


def choose(ranks: Sequence[RankSample]) -> list[int]:
    """The slowest rank and the median rank; one rank if there is no other."""
    order = sorted(ranks, key=lambda rank: (busy_s(rank) or rank.step_time_s or 0.0, rank.rank))
    if not order:
        return []
    slowest, middle = order[-1], order[(len(order) - 1) // 2]
    return list(dict.fromkeys((slowest.rank, middle.rank)))


def take(
    view: JobView,
    wanted: Sequence[int] = (),
    steps: int = STEPS,
) -> dict[int, Path]:
    """Profile the wanted ranks at the same steps; returns their traces by rank.

    Args:
        view: a live job.
        wanted: ranks; the slowest and the median one if empty.
        steps: how many steps.

    Raises:
        UsageError: the job or a rank cannot be profiled.
        ControlError: a rank refused, failed, or ended.
        WaitTimeoutError: a rank did not take the steps in time.
    """
    ranks = profilable(view, wanted)
    wanted = list(wanted) or choose(list(ranks.values()))
    step_s = max(ranks[rank].step_time_s or 0.0 for rank in wanted)
    ahead = math.ceil(SEEN_AFTER_S / step_s) if step_s else 0
    from_step = max(ranks[rank].step or 0 for rank in wanted) + min(ahead, 10**6)
    limit_s = LIMIT_S + SEEN_AFTER_S + 3 * (steps + 2) * step_s
    number, folder = int(time.strftime("%Y%m%d%H%M%S")), view.folder.profiles_dir
    order = {"id": number, "steps": steps, "until_t": boottime_s() + limit_s}
    order["from_step"] = from_step if len(wanted) > 1 else 0
    folder.mkdir(mode=0o700, exist_ok=True)
    orders = [folder / f"order-rank-{rank}.json" for rank in wanted]
    try:
        for path in orders:
            write_atomic(path, msgspec.json.encode(order))
        deadline_s = time.monotonic() + limit_s
        traces = {rank: folder / f"{number}-rank-{rank}.json" for rank in wanted}
        while missing := [rank for rank, path in traces.items() if not path.exists()]:
            _check(view, traces, missing)
            if time.monotonic() > deadline_s:
                raise WaitTimeoutError(
                    f"rank {missing[0]} of {view.job} did not finish {steps} steps within "
                    f"{limit_s:.0f} s",
                    f"see where it is: ddptop stacks {view.job} -r {missing[0]}",
                )
            time.sleep(POLL_S)
        return traces
    finally:
        for path in orders:
            path.unlink(missing_ok=True)


def profilable(view: JobView, wanted: Sequence[int]) -> dict[int, RankSample]:
    """By rank, those that can be profiled.

    Raises:
        UsageError: a wanted one cannot be, or none can.
    """
    snapshot = view.snapshot
    if not view.is_live or snapshot is None:
        raise UsageError(f"{view.job} is not running", "only live ranks can be profiled")
    if view.on_other_host or snapshot.nodes:
        raise UsageError(
            f"{view.job} has ranks on other hosts", "profiling is supported on one machine only"
        )
    ranks = {rank.rank: rank for rank in snapshot.ranks}
    for number in wanted:
        if number not in ranks:
            raise UsageError(f"rank {number} of {view.job} does not exist")
        if not ranks[number].has_probe or ranks[number].exit_code is not None:
            raise UsageError(f"rank {number} of {view.job} has no probe, or it has ended")
    ranks = {number: rank for number, rank in ranks.items() if rank.has_probe and rank.step}
    if not ranks or not set(wanted) <= ranks.keys():
        raise UsageError(f"{view.job} has taken no step yet", "try again once it trains")
    return ranks


def _check(view: JobView, traces: dict[int, Path], missing: Sequence[int]) -> None:
    """Raise if a rank refused, or if the job ended or restarted."""
    for rank in missing:
        if (failed := traces[rank].with_suffix(".error")).exists():
            why = bounded.read_text(failed, 1000)
            failed.unlink()
            raise ControlError(f"rank {rank} of {view.job} was not profiled: {why}")
    now, before = read_job(view.folder), view.snapshot
    attempt = None if now.snapshot is None else now.snapshot.attempt
    if not now.is_live or before is None or attempt != before.attempt:
        raise ControlError(f"{view.job} ended or restarted while it was profiled")
