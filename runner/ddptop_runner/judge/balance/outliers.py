"""Decides which ranks hold up the others.

Everything that draws, names, or counts an outlier reads the alerts from here (see
`imbalance.slow_ranks`). Figures are first smoothed, and only while the job takes steps, since an
evaluation on one rank, a checkpoint, or a compilation looks like trouble and is not. A rank must
then deviate for `HOLD_S` before it is marked.

Ranks that reduce their gradients together take equally long for a step, since all wait for the
slowest, so step times identify no rank. The slow rank is the one that spends more time by itself:
waiting for its data, which the probe measures, and computing, which is the rest of a step without
the wait for others, if that is known.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ddptop_runner.base.units import is_or_are, name_ranks, step_time
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.imbalance import busy_s, median_of_others, seen
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.model.words import ENDED

HOLD_S = 20.0
"""How long a rank must deviate before it is marked."""
CLEARS_AFTER_S = 5.0
"""How long a mark remains after the rank is back, so that borderline figures do not flicker."""

LOOKS = 20
"""Looks over which times are smoothed, by median."""
PAUSE_S, PAUSES = 5.0, 3.0
"""Each rank takes a step within this many seconds, or this many times its usual step time. Figures
from longer times without a step are not those of training."""
LONGEST_LOOK_S = 5.0
"""The most time that one look adds to a rank's deviation."""

_TIMES = ("step_time_s", "data_wait_s")


class _Smoothed:
    """One rank's figures in the latest looks."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {
            name: deque(maxlen=LOOKS) for name in (*_TIMES, "busy")
        }

    def take(self, rank: RankSample) -> None:
        """Add a look."""
        for name, values in self._values.items():
            value = busy_s(rank) if name == "busy" else getattr(rank, name)
            if value is not None:
                values.append(value)

    def of(self, rank: RankSample) -> RankSample:
        """The rank with smoothed times."""
        smooth: dict[str, float | None] = {}
        for name in _TIMES:
            known = self._values[name]
            smooth[name] = statistics.median(known) if known else None
        step_s, busy = smooth["step_time_s"], self._values["busy"]
        smooth["sync_s"] = None
        if step_s is not None and busy and rank.sync_s is not None:
            smooth["sync_s"] = max(0.0, step_s - statistics.median(busy))
        return msgspec.structs.replace(rank, **smooth)


class _Steps:
    """Looks between which each rank took a step."""

    def __init__(self) -> None:
        self._steps: dict[int, int | None] = {}
        self._stepped_s: float | None = None
        self._pending: list[Sequence[RankSample]] = []
        self._gaps_s: deque[float] = deque(maxlen=9)

    def look(
        self, ranks: Sequence[RankSample], now_s: float
    ) -> tuple[Sequence[Sequence[RankSample]], float]:
        """(looks while steps were taken, their duration)."""
        steps = {rank.rank: rank.step for rank in ranks}
        before_s = now_s if self._stepped_s is None else self._stepped_s
        self._pending.append(ranks)
        if any(step is not None and self._steps.get(one) == step for one, step in steps.items()):
            if now_s - before_s > self._allowed_s(ranks):
                self._pending.clear()
            return (), 0.0
        gap_s, allowed_s = now_s - before_s, self._allowed_s(ranks)
        looks = self._pending if gap_s <= allowed_s else self._pending[-1:]
        self._steps, self._stepped_s, self._pending = steps, now_s, []
        self._gaps_s.append(gap_s)
        return looks, gap_s if gap_s <= allowed_s else 0.0

    def _allowed_s(self, ranks: Sequence[RankSample]) -> float:
        usual_s = [rank.step_time_s or 0.0 for rank in ranks]
        usual_s += [statistics.median(self._gaps_s)] if self._gaps_s else []
        return max(PAUSE_S, PAUSES * max(usual_s, default=0.0))


class _Mark(msgspec.Struct):
    """One rank that holds up the others."""

    excess_s: float = 0.0
    """For how many seconds per step, as last seen."""
    held_s: float = 0.0
    absent_s: float = 0.0
    shown: bool = False


class RankMarks:
    """Checks a job's ranks about once per second."""

    def __init__(self) -> None:
        self._smoothed: dict[int, _Smoothed] = defaultdict(_Smoothed)
        self._steps = _Steps()
        self._marks: dict[int, _Mark] = {}
        self._ids: object = None
        self._updated_s: float | None = None

    def look(
        self,
        ranks: Sequence[RankSample],
        now_s: float,
        attempt: int | None = None,
    ) -> list[Finding]:
        """The present marks, as findings that have already held long enough.

        Args:
            ranks: of the job.
            now_s: a monotonic clock, in seconds.
            attempt: the job's; everything starts over with a new one.
        """
        living = [rank for rank in seen(ranks) if rank.state not in ENDED]
        ids = attempt, tuple(sorted((rank.rank, rank.pid) for rank in living if rank.pid))
        if ids != self._ids:
            self._smoothed.clear()
            self._marks.clear()
            self._steps = _Steps()
        self._ids = ids
        gap_s = 0.0 if self._updated_s is None else now_s - self._updated_s
        self._updated_s = now_s
        return self._found(living, min(max(0.0, gap_s), LONGEST_LOOK_S), now_s)

    def _found(self, ranks: Sequence[RankSample], passed_s: float, now_s: float) -> list[Finding]:
        looks, passed_s = self._steps.look(ranks, now_s)
        for look in looks:
            for rank in look:
                self._smoothed[rank.rank].take(rank)
        smooth = [self._smoothed[rank.rank].of(rank) for rank in ranks]
        self._hold(slow(smooth), passed_s)
        marked = {rank: mark.excess_s for rank, mark in self._marks.items() if mark.shown}
        return [straggler_finding(smooth, marked)] if marked else []

    def _hold(self, behind: Mapping[int, float], passed_s: float) -> None:
        """Track how long each rank has held up the others."""
        for rank, excess_s in behind.items():
            mark = self._marks.get(rank)
            if mark is None:
                mark = self._marks[rank] = _Mark()
            else:
                mark.held_s += passed_s
            mark.excess_s, mark.absent_s = excess_s, 0.0
            mark.shown = mark.shown or mark.held_s >= HOLD_S
        for rank in self._marks.keys() - behind.keys():
            mark = self._marks[rank]
            mark.absent_s += passed_s
            if not mark.shown or mark.absent_s > CLEARS_AFTER_S:
                del self._marks[rank]


SHARE = 0.2
"""How much longer than the median of the others a rank must be busy by itself, in steps ..."""
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
    apart = _apart(stepping, busy_s)
    if not apart and any(busy_s(rank) is None for rank in stepping):
        apart = _apart(stepping, lambda rank: rank.data_wait_s)
        apart = apart or _apart(stepping, lambda rank: rank.step_time_s)
    return {rank.rank: excess_s for rank, excess_s in apart}


def straggler_finding(ranks: Sequence[RankSample], apart: Mapping[int, float]) -> Finding:
    """The finding on the ranks in `slow`."""
    numbers = tuple(sorted(apart))
    worst = max(numbers, key=lambda number: apart[number])
    slowest = next(rank for rank in ranks if rank.rank == worst)
    there = {rank.host for rank in ranks if rank.rank in apart}
    where = f" on {slowest.host}" if len(there) == 1 < len({rank.host for rank in ranks}) else ""
    who = f"{name_ranks(numbers)}{where}"
    why = _why(slowest, [rank for rank in ranks if rank.step_time_s is not None], apart[worst])
    message = f"{who} {is_or_are(numbers)} holding up the others: it {why}"
    return Finding("straggler", "warning", message, numbers)


def _apart(ranks: Sequence[RankSample], read: Read) -> list[tuple[RankSample, float]]:
    """Ranks with a time far above the median of the others, with the difference in seconds."""
    known = [(rank, time_s) for rank in ranks if (time_s := read(rank)) is not None]
    if len(known) < len(ranks):
        return []
    usual_s = median_of_others([time_s for _, time_s in known])
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
                f"waits {step_time(wait_s)} {of_step} for data (median of the others: "
                f"{step_time(usual_s)}), costing {share}"
            )
    own_s = busy_s(slowest)
    known_s = [time_s for rank in others if (time_s := busy_s(rank)) is not None]
    if own_s is None or not known_s:
        steps_s = [rank.step_time_s for rank in others if rank.step_time_s is not None]
        median = (
            f" (median of the others: {step_time(statistics.median(steps_s))})" if steps_s else ""
        )
        return f"takes {step_time(step_s)} per step{median}"
    return (
        f"is busy for {step_time(own_s)} {of_step} (median of the others: "
        f"{step_time(statistics.median(known_s))}), costing {share}"
    )
