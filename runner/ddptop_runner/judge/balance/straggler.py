"""Which rank the others wait for, from what each does before they meet. Pure.

Ranks that reduce their gradients together take equally long for a step, however slow one of them
is: the others wait for it inside of the step. So the time of a step names nobody. What names the
slow rank is the time that it spends by itself: waiting for its data, which the probe measures, and
computing, which is what is left of a step without the wait for others, where that wait is known.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from ddptop_runner.base.units import name_ranks, step_time
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.imbalance import alone_s
from ddptop_runner.model.snapshot import RankSample

SHARE = 0.2
"""Of a step: so much longer than the median a rank must be busy by itself ..."""
LEAST_S = 0.010
"""... and at least this much."""

Read = Callable[[RankSample], float | None]


def slow(ranks: Sequence[RankSample]) -> dict[int, float]:
    """The ranks that hold up the others, and by how many seconds per step.

    Ranks that do not wait for each other, whose steps simply take longer, are found as well: the
    median of all is what a rank is measured by. With two ranks it lies between them, so the slower
    one has to be twice as far behind the faster.
    """
    stepping = [rank for rank in ranks if rank.state == "running" and rank.steps_per_s]
    if len(stepping) < 2:
        return {}
    apart = _apart(stepping, alone_s)
    if not apart and any(alone_s(rank) is None for rank in stepping):
        apart = _apart(stepping, lambda rank: rank.data_wait_s)
        apart = apart or _apart(stepping, lambda rank: rank.step_time_s)
    return {rank.rank: excess_s for rank, excess_s in apart}


def finding(ranks: Sequence[RankSample], apart: Mapping[int, float]) -> Finding:
    """Of ranks that `slow` found."""
    numbers = tuple(sorted(apart))
    several = len(numbers) > 1
    worst = max(numbers, key=lambda number: apart[number])
    slowest = next(rank for rank in ranks if rank.rank == worst)
    who = f"{name_ranks(numbers)}" + ("" if several or not slowest.pid else f" (pid {slowest.pid})")
    why = _why(slowest, [rank for rank in ranks if rank.step_time_s is not None], apart[worst])
    message = f"{who} {'are' if several else 'is'} holding up the others: {why}"
    return Finding("straggler", "warning", message, numbers)


def _apart(ranks: Sequence[RankSample], read: Read) -> list[tuple[RankSample, float]]:
    """Ranks for which a time is much longer than the median, and by how much, in seconds."""
    known = [(rank, time_s) for rank in ranks if (time_s := read(rank)) is not None]
    if len(known) < len(ranks):
        return []
    usual_s = statistics.median(time_s for _, time_s in known)
    found = []
    for rank, time_s in known:
        step_s = rank.step_time_s
        if step_s and time_s - usual_s >= max(LEAST_S, SHARE * step_s):
            found.append((rank, time_s - usual_s))
    return found


def _why(slowest: RankSample, ranks: Sequence[RankSample], excess_s: float) -> str:
    others = [rank for rank in ranks if rank is not slowest]
    step_s = slowest.step_time_s or 0.0
    share = f"{100 * excess_s / step_s:.0f}% of each step" if step_s else "part of each step"
    of_step = f"of each {step_time(step_s)} step"
    waits_s = [rank.data_wait_s for rank in others if rank.data_wait_s is not None]
    wait_s = slowest.data_wait_s
    if wait_s is not None and waits_s:
        usual_s = statistics.median(waits_s)
        if wait_s - usual_s >= excess_s / 2:
            return (
                f"it waits {step_time(wait_s)} {of_step} for data (median of the others: "
                f"{step_time(usual_s)}), costing {share}"
            )
    own_s = alone_s(slowest)
    known_s = [time_s for rank in others if (time_s := alone_s(rank)) is not None]
    if own_s is None or not known_s:
        steps_s = [rank.step_time_s for rank in others if rank.step_time_s is not None]
        median = (
            f" (median of the others: {step_time(statistics.median(steps_s))})" if steps_s else ""
        )
        return f"it takes {step_time(step_s)} per step{median}"
    return (
        f"it is busy for {step_time(own_s)} {of_step} (median of the others: "
        f"{step_time(statistics.median(known_s))}), costing {share}"
    )
