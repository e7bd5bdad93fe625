"""Watches one job for trouble: which ranks hold up the others, and all of its alerts.

Everything that draws, names, or counts a slow rank reads the alert from here (see
`imbalance.slow_ranks`). Figures are first smoothed, and only while the job takes steps, since an
evaluation on one rank, a checkpoint, or a compilation looks like trouble and is not.

Ranks that reduce their gradients together take equally long for a step, since all wait for the
slowest, so step times identify no rank. The slow rank is the one that spends more time by itself:
waiting for its data, which the probe measures, and computing, which is the rest of a step without
the wait for others, if that is known.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ddptop_runner.base.units import is_or_are, name_ranks, step_time
from ddptop_runner.judge import alerts
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance import findings
from ddptop_runner.judge.balance.imbalance import (
    STRAGGLER,
    busy_s,
    median_of_others,
    seen,
)
from ddptop_runner.judge.training import findings as training
from ddptop_runner.judge.training.window import Window
from ddptop_runner.model.snapshot import Alert, GpuSample, NodeSnapshot, RankSample
from ddptop_runner.model.words import ENDED

SAMPLES, LEAST_SAMPLES = 40, 20
"""Times are smoothed by the median of so many samples: a rank must deviate in half of them."""
EVERY_S = 2.0
"""The medians of many ranks take a moment: how often they are computed."""
HOLD_S = 5.0
"""How long the medians must then deviate."""


class RankMarks:
    """Checks a job's ranks about once per second."""

    def __init__(self) -> None:
        self._ids: object = None
        self._start_over(())

    def _start_over(self, ranks: Sequence[RankSample]) -> None:
        self._samples = {rank.rank: deque[RankSample](maxlen=SAMPLES) for rank in ranks}
        self._steps: dict[int, int | None] = {}
        self._judged_s = -EVERY_S
        self._found: list[Finding] = []

    def update(
        self, ranks: Sequence[RankSample], now_s: float, attempt: int | None = None
    ) -> list[Finding]:
        """The finding on the ranks that hold up the others, if there are any.

        Args:
            ranks: of the job.
            now_s: a monotonic clock, in seconds.
            attempt: the job's; everything starts over with a new one.
        """
        living = [rank for rank in seen(ranks) if rank.state not in ENDED]
        ids = attempt, tuple((rank.rank, rank.pid) for rank in living)
        if ids != self._ids:
            self._ids = ids
            self._start_over(living)
        steps = {rank.rank: rank.step for rank in living}
        have_stepped = all(
            step is None or self._steps.get(rank) != step for rank, step in steps.items()
        )
        if have_stepped:
            self._steps = steps
            for rank in living:
                self._samples[rank.rank].append(rank)
        is_known = all(len(samples) >= LEAST_SAMPLES for samples in self._samples.values())
        if have_stepped and is_known and now_s - self._judged_s >= EVERY_S:
            self._judged_s = now_s
            smooth = [_smooth(rank, self._samples[rank.rank]) for rank in living]
            apart = slow(smooth)
            waits = {rank: _cpu_wait_s(samples) for rank, samples in self._samples.items()}
            self._found = [straggler_finding(smooth, apart, waits)] if apart else []
        return self._found


def _smooth(rank: RankSample, samples: Sequence[RankSample]) -> RankSample:
    """The rank with the medians of its latest times."""
    step_s = findings.median(one.step_time_s for one in samples)
    own_s = findings.median(map(busy_s, samples))
    return msgspec.structs.replace(
        rank,
        step_time_s=step_s,
        data_wait_s=findings.median(one.data_wait_s for one in samples),
        sync_s=None if step_s is None or own_s is None else max(0.0, step_s - own_s),
    )


def _cpu_wait_s(samples: Sequence[RankSample]) -> float | None:
    """How long a rank waited for a CPU in each step, over its samples; None if unknown."""
    first, last = samples[0], samples[-1]
    steps = (last.step or 0) - (first.step or 0)
    if first.cpu_wait_total_s is None or last.cpu_wait_total_s is None or steps <= 0:
        return None
    return (last.cpu_wait_total_s - first.cpu_wait_total_s) / steps


SHARE, ROUGH_SHARE = 0.16, 0.2
"""How much longer than the median of the others a rank must be busy by itself, in steps; more
where its wait for the others is unknown ..."""
LEAST_S = 0.010
"""... and at least, in seconds."""

Read = Callable[[RankSample], float | None]


def slow(ranks: Sequence[RankSample]) -> dict[int, float]:
    """By rank that holds up the others, for how many seconds per step.

    This includes ranks that do not wait for each other and whose steps simply take longer.
    """
    stepping = [rank for rank in ranks if rank.state == "running" and rank.steps_per_s]
    if len(stepping) < 2:
        return {}
    apart = _apart(stepping, busy_s, SHARE)
    if not apart and any(busy_s(rank) is None for rank in stepping):
        apart = _apart(stepping, lambda rank: rank.data_wait_s, ROUGH_SHARE)
        apart = apart or _apart(stepping, lambda rank: rank.step_time_s, ROUGH_SHARE)
    return {rank.rank: excess_s for rank, excess_s in apart}


def straggler_finding(
    ranks: Sequence[RankSample],
    apart: Mapping[int, float],
    cpu_waits: Mapping[int, float | None] | None = None,
) -> Finding:
    """The finding on the ranks in `slow`.

    Args:
        ranks: of the job, with smoothed times.
        apart: what `slow` returned for them.
        cpu_waits: by rank, how long it waited for a CPU in each step.
    """
    numbers = tuple(sorted(apart))
    worst = max(numbers, key=lambda number: apart[number])
    slowest = next(rank for rank in ranks if rank.rank == worst)
    there = {rank.host for rank in ranks if rank.rank in apart}
    where = f" on {slowest.host}" if len(there) == 1 < len({rank.host for rank in ranks}) else ""
    who = f"{name_ranks(numbers)}{where}"
    known = [rank for rank in ranks if rank.step_time_s is not None]
    why = _why(slowest, known, apart[worst], (cpu_waits or {}).get(worst))
    it = "it" if len(numbers) == 1 else f"rank {worst}"
    message = f"{who} {is_or_are(numbers)} holding up the others: {it} {why}"
    return Finding(STRAGGLER, "warning", message, numbers, hold_s=HOLD_S)


def _apart(ranks: Sequence[RankSample], read: Read, share: float) -> list[tuple[RankSample, float]]:
    """Ranks with a time far above the median of the others, with the difference in seconds."""
    known = [(rank, time_s) for rank in ranks if (time_s := read(rank)) is not None]
    if len(known) < len(ranks):
        return []
    usual_s = median_of_others([time_s for _, time_s in known])
    found = []
    for rank, time_s in known:
        step_s = rank.step_time_s
        if step_s and time_s - usual_s >= max(LEAST_S, share * step_s):
            found.append((rank, time_s - usual_s))
    return found


def _why(
    slowest: RankSample, ranks: Sequence[RankSample], excess_s: float, cpu_wait_s: float | None
) -> str:
    others = [rank for rank in ranks if rank is not slowest]
    step_s, wait_s, own_s = slowest.step_time_s or 0.0, slowest.data_wait_s, busy_s(slowest)
    usual_s: float | None
    usual_wait_s = findings.median(rank.data_wait_s for rank in others)
    usual_own_s = findings.median(map(busy_s, others))
    costs = f", costing {100 * excess_s / step_s:.0f}% of each step" if step_s else ""
    step = f"of each {step_time(step_s)} step"
    if wait_s and usual_wait_s is not None and wait_s - usual_wait_s >= excess_s / 2:
        what, usual_s = f"waits {step_time(wait_s)} {step} for data", usual_wait_s
    elif cpu_wait_s is not None and cpu_wait_s >= excess_s / 2:
        what = f"waits {step_time(cpu_wait_s)} {step} for a CPU, which other processes have"
        return f"{what}{costs}"
    elif own_s is not None and usual_own_s is not None:
        what, usual_s = f"is busy for {step_time(own_s)} {step}", usual_own_s
    else:
        what, costs = f"takes {step_time(step_s)} per step", ""
        usual_s = findings.median(rank.step_time_s for rank in others)
    return f"{what} (median of the others: {step_time(usual_s)}){costs}"


_AT_WORK = ("starting", "running", "hung")
"""States in which ranks should be on their devices."""


class JobWatch:
    """The alerts of one job. Keep one per job, and update it about once per second.

    Args:
        available_bytes: returns the memory that this host has left; None if unknown.
    """

    def __init__(self, available_bytes: Callable[[], int | None] = lambda: None) -> None:
        self._marks = RankMarks()
        self._window = Window(available_bytes)
        self._book = alerts.AlertBook()

    def recall(self, shown: Sequence[Alert]) -> None:
        """Continue with the alerts that an earlier supervisor has shown."""
        self._book.recall(shown)
        self._window.is_late = True

    def update(
        self,
        snapshot: NodeSnapshot,
        now_s: float,
        *,
        given: bool = True,
        extra: Sequence[Finding] = (),
    ) -> tuple[list[Alert], list[Alert]]:
        """(alerts to show, the new ones among them), worst first.

        Args:
            snapshot: the job now; its `alerts` are ignored.
            now_s: a monotonic clock, in seconds.
            given: see `findings.find`.
            extra: findings from elsewhere.
        """
        ranks, gpus, job = snapshot.ranks, snapshot.gpus, snapshot.job
        several = len({rank.host for rank in ranks}) > 1
        found = [*alerts.find(ranks, () if several else gpus), *extra]
        found += alerts.of_nodes(snapshot.nodes)
        if snapshot.state in _AT_WORK:
            if not several:
                found += findings.find(ranks, gpus, job, given=given)
            found += self._marks.update(ranks, now_s, snapshot.attempt)
            self._window.update(snapshot, now_s)
            found += training.find(self._window, snapshot.checkpoint)
        if several:
            found += _of_each_host(snapshot, given=given)
        return self._book.update(found, snapshot.ts, now_s)


def _of_each_host(snapshot: NodeSnapshot, *, given: bool) -> list[Finding]:
    """What is wrong with devices, host by host, since each host numbers its own from 0."""
    ranks_of: dict[str, list[RankSample]] = defaultdict(list)
    gpus_of: dict[str | None, list[GpuSample]] = defaultdict(list)
    for rank in snapshot.ranks:
        ranks_of[rank.host].append(rank)
    for gpu in snapshot.gpus:
        gpus_of[gpu.host].append(gpu)
    found = []
    for host, ranks in sorted(ranks_of.items()):
        gpus = gpus_of[host]
        here = alerts.lost(gpus)
        if snapshot.state in _AT_WORK:
            here += findings.find(ranks, gpus, snapshot.job, given=given)
        found += [
            msgspec.structs.replace(
                one, id=f"{one.id}@{host}", host=host, message=f"{host}: {one.message}"
            )
            for one in here
        ]
    return found
