"""How unevenly a job's work is spread: one number per kind of figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ddptop_runner.base.median import median
from ddptop_runner.model.snapshot import Alert, GpuSample, Imbalance, RankSample
from ddptop_runner.model.words import ENDED

Figure = Literal["memory", "utilization", "power", "step_time", "own_time", "loss"]
"""A figure by which ranks are compared."""

STRAGGLER = "straggler"
"""The id of the alert on slow ranks."""

POINTS_APART_LEAST = 5.0
"""Utilization within this many percentage points counts as even, even if the ratio is high."""


class RankDeviation(msgspec.Struct, frozen=True):
    """A rank's relative deviation from its job's median: -0.2 is 20 % below. None if unknown."""

    memory: float | None = None
    """Its processes' memory on its devices, or resident memory in a job without devices."""
    utilization: float | None = None
    """Its device's utilization, or CPU time in a job without devices."""
    power: float | None = None
    step_time: float | None = None
    loss: float | None = None
    own_time: float | None = None
    """How much longer than the median of the others it is busy by itself, as a share of its step,
    which is the `share_percent` of an alert on it; the step time is the same for all ranks if they
    wait for each other in each step."""
    is_slow: bool = False
    """Whether an alert says that it holds up the others."""

    def warns(self, figure: Figure) -> bool:
        """Whether that figure is drawn as a warning: the busy time of a slow rank.

        It is the step time if the busy time is unknown; else, all ranks take the same step time.
        """
        reason: Figure = "step_time" if self.own_time is None else "own_time"
        return figure == reason and self.is_slow and (self.of(reason) or 0.0) > 0

    def of(self, figure: Figure) -> float | None:
        """The deviation of that figure."""
        ratio: float | None = getattr(self, figure)
        return ratio


def imbalance(values: Iterable[float | None]) -> float | None:
    """Computes max / median - 1 over the known values: 0 is even, 0.5 is 50 % above the median.

    The median of an even number of values is the mean of the middle two. None with fewer than two
    known values or a median of 0.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    usual = median(known)
    return max(known) / usual - 1 if usual else None


def median_of_others(values: Iterable[float]) -> float:
    """The median without any one value above the median: what a slow rank is compared with."""
    return median(sorted(values)[:-1])


def seen(ranks: Sequence[RankSample]) -> Sequence[RankSample]:
    """Leave out ranks on unreachable hosts, whose figures are outdated, unless all are."""
    return [rank for rank in ranks if rank.state != "unknown"] or ranks


def of_job(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> Imbalance:
    """The imbalance of a job across its live ranks and its devices.

    Memory is what each rank holds on its devices or, unless known for two ranks, the devices'
    memory in use; utilization and power are the devices'. In a job without devices, memory is the
    ranks' resident memory, and utilization their CPU time.
    """
    living = [rank for rank in seen(ranks) if rank.state not in ENDED]
    step_time = imbalance(rank.step_time_s for rank in living)
    if not gpus:
        return Imbalance(
            memory=imbalance(rank.rss_bytes for rank in living),
            utilization=imbalance(rank.cpu_percent for rank in living),
            step_time=step_time,
        )
    memory = [rank.gpu_mem_used_bytes for rank in living]
    if sum(value is not None for value in memory) < 2:
        memory = [gpu.mem_used_bytes for gpu in gpus]
    return Imbalance(
        memory=imbalance(memory),
        utilization=imbalance(gpu.util_percent for gpu in gpus),
        power=imbalance(gpu.power_w for gpu in gpus),
        step_time=step_time,
    )


def deviations(
    ranks: Sequence[RankSample], gpus: Sequence[GpuSample], alerts: Sequence[Alert] = ()
) -> dict[int, RankDeviation]:
    """By rank, its deviation from the median of the job's live ranks.

    A rank that ended has none. Figures are the ranks' own, as joined with their devices.

    Args:
        ranks: of the job.
        gpus: its devices.
        alerts: the present ones, one of which may name slow ranks.
    """
    living = [rank for rank in seen(ranks) if rank.state not in ENDED]
    steps_s = {rank.rank: rank.step_time_s or 0.0 for rank in living}
    found: dict[int, dict[str, float]] = {rank.rank: {} for rank in ranks}
    for name, read in (_OF_DEVICES if gpus else _OF_PROCESSES).items():
        values = {rank.rank: read(rank) for rank in living}
        known = {rank: value for rank, value in values.items() if value is not None}
        if len(known) < 2:
            continue
        usual = (median_of_others if name == "own_time" else median)(known.values())
        for rank, value in known.items():
            if name == "utilization" and max(value, usual) <= POINTS_APART_LEAST:
                continue  # 2 % is twice 1 %, but insignificant
            whole = steps_s[rank] if name == "own_time" else usual
            if whole:
                found[rank][name] = (value - usual) / abs(whole)
    slow = slow_ranks(alerts)
    return {rank: RankDeviation(**ratios, is_slow=rank in slow) for rank, ratios in found.items()}


def slow_ranks(alerts: Iterable[Alert]) -> set[int]:
    """The ranks that hold up the others according to the alerts."""
    return {rank for alert in alerts if alert.id == STRAGGLER for rank in alert.ranks}


def busy_s(rank: RankSample) -> float | None:
    """Seconds of a mean step in which a rank does not wait for others; None if unknown."""
    if rank.step_time_s is None or rank.sync_s is None:
        return None
    return max(0.0, rank.step_time_s - rank.sync_s)


_Read = Callable[[RankSample], "float | None"]
_ALL: Mapping[str, _Read] = {
    "step_time": lambda rank: rank.step_time_s,
    "own_time": busy_s,
    "loss": lambda rank: rank.loss,
}
_OF_DEVICES: Mapping[str, _Read] = {
    "memory": lambda rank: rank.gpu_mem_used_bytes,
    "utilization": lambda rank: rank.gpu_util_percent,
    "power": lambda rank: rank.gpu_power_w,
    **_ALL,
}
_OF_PROCESSES: Mapping[str, _Read] = {
    "memory": lambda rank: rank.rss_bytes,
    "utilization": lambda rank: rank.cpu_percent,
    **_ALL,
}
