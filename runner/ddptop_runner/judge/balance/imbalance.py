"""How unevenly a job's work is spread: one number per kind of figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ddptop_runner.model.snapshot import Alert, GpuSample, Imbalance, RankSample
from ddptop_runner.model.words import ENDED

Figure = Literal["memory", "utilization", "power", "step_time", "loss"]
"""What ranks are compared by."""

POINTS_APART_LEAST = 5.0
"""Percentage points of utilization: up to here it is even, though 1 % is twice 0.5 %."""


MARKED_BY: Mapping[str, Figure] = {
    "straggler": "step_time",
    "slow-node": "step_time",
    "loss-diverged": "loss",
    "uneven-memory": "memory",
    "uneven-load": "utilization",
    "uneven-power": "power",
}
"""By id of alert: in what the ranks that it names are marked. Nothing else marks a rank."""


WORST_FIRST: tuple[Figure, ...] = ("step_time", "loss", "memory", "utilization", "power")
"""Which figure names a rank that is an outlier in several."""


class RankDeviation(msgspec.Struct, frozen=True):
    """How far one rank lies from its job's median: -0.2 is 20 % below. None where unknown."""

    memory: float | None = None
    """Of its processes on its devices; of resident memory in a job without devices."""
    utilization: float | None = None
    """Of its device; of its CPU time in a job without devices."""
    power: float | None = None
    step_time: float | None = None
    loss: float | None = None
    outliers: frozenset[Figure] = frozenset()
    """Figures in which an alert names the rank: they are drawn as a warning."""
    own_time: float | None = None
    """How much longer it is busy by itself: where all wait for each other in each step, its time is
    the same for all of them."""

    @property
    def slower(self) -> float | None:
        """How much longer it takes, where it is marked as slow; None where that is not known."""
        ratio = self.step_time if self.own_time is None else self.own_time
        return ratio if ratio is not None and ratio > 0 else None

    def marked(self, figure: Figure) -> tuple[float | None, bool]:
        """How far off it is in that figure, and whether that is drawn as a warning.

        Where ranks wait for each other the time of a step is the same for all: then what is said
        of the rank marks it, and not the figure.
        """
        own = figure == "step_time" and (self.slower is None or self.own_time is not None)
        return self.of(figure), figure in self.outliers and not own

    @property
    def odd_in(self) -> list[tuple[Figure, float | None]]:
        """The figures in which the rank is an outlier and how far off it is, the worst first.

        Ranks that reduce gradients together take equally long for a step, however slow one of them
        is: the slow one's ratio is how much longer it is busy by itself, if that is known.
        """
        return [
            (figure, self.slower if figure == "step_time" else self.of(figure))
            for figure in WORST_FIRST
            if figure in self.outliers
        ]

    def of(self, figure: Figure) -> float | None:
        """The deviation of that figure."""
        ratio: float | None = getattr(self, figure)
        return ratio


def imbalance(values: Iterable[float | None]) -> float | None:
    """The formula max / median - 1 over the known values: 0 is even, 0.5 is half more than usual.

    The median of an even number of values is the mean of the middle two. None with fewer than two
    known values, and where the median is 0, against which nothing can be measured.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    median = statistics.median(known)
    return max(known) / median - 1 if median else None


def deviation(value: float | None, values: Iterable[float | None]) -> float | None:
    """How far one value lies from the median, (value - median) / |median|: -0.2 is 20 % below.

    `values` include `value` itself. None where `imbalance` would be None or `value` is unknown.
    """
    known = [other for other in values if other is not None]
    if value is None or len(known) < 2:
        return None
    return _ratio(value, statistics.median(known))


def _ratio(value: float, median: float) -> float | None:
    return (value - median) / abs(median) if median else None


def seen(ranks: Sequence[RankSample]) -> Sequence[RankSample]:
    """Without those on hosts that cannot be reached, whose figures are old; all, if all are."""
    return [rank for rank in ranks if rank.state != "unknown"] or ranks


def of_job(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> Imbalance:
    """The imbalance of a job over its living ranks and its devices.

    Memory is what each rank holds on its devices, or the devices' memory in use where that is not
    known for two ranks; utilization and power are the devices'. In a job without devices memory is
    the ranks' resident memory and utilization their CPU time.
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


def is_even_load(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> bool:
    """Whether utilization differs by a few percentage points only, whatever the ratio says.

    False where it is not known of two devices, or of two ranks in a job without devices.
    """
    known = [
        value
        for value in (
            [gpu.util_percent for gpu in gpus]
            if gpus
            else [rank.cpu_percent for rank in ranks if rank.state not in ENDED]
        )
        if value is not None
    ]
    return len(known) > 1 and max(known) - min(known) <= POINTS_APART_LEAST


def deviations(
    ranks: Sequence[RankSample], gpus: Sequence[GpuSample], alerts: Sequence[Alert] = ()
) -> dict[int, RankDeviation]:
    """Each rank's distance from the median of the job's living ranks, by rank.

    A rank that ended has no deviation. Figures are the ranks' own, as joined with their devices.

    Args:
        ranks: of the job.
        gpus: its devices.
        alerts: those of now; they say which ranks are marked, and in what.
    """
    living = [rank for rank in seen(ranks) if rank.state not in ENDED]
    found: dict[int, dict[str, float]] = {rank.rank: {} for rank in ranks}
    for name, read in (_OF_DEVICES if gpus else _OF_PROCESSES).items():
        values = {rank.rank: read(rank) for rank in living}
        known = {rank: value for rank, value in values.items() if value is not None}
        median = statistics.median(known.values()) if len(known) > 1 else 0.0
        for rank, value in known.items():
            if name == "utilization" and max(value, median) <= POINTS_APART_LEAST:
                continue  # 2 % is twice 1 %, and means nothing
            if (ratio := _ratio(value, median)) is not None:
                found[rank][name] = ratio
    outlying = marked(alerts)
    return {
        rank: RankDeviation(**ratios, outliers=frozenset(outlying.get(rank, ())))
        for rank, ratios in found.items()
    }


def marked(alerts: Iterable[Alert]) -> dict[int, set[Figure]]:
    """By rank, the figures in which it is marked."""
    found: dict[int, set[Figure]] = {}
    for alert in alerts:
        if (figure := MARKED_BY.get(alert.id)) is not None:
            for rank in alert.ranks:
                found.setdefault(rank, set()).add(figure)
    return found


def alone_s(rank: RankSample) -> float | None:
    """Seconds of a mean step in which a rank does not wait for others; None where not known."""
    if rank.step_time_s is None or rank.sync_s is None:
        return None
    return max(0.0, rank.step_time_s - rank.sync_s)


_Read = Callable[[RankSample], "float | None"]
_ALL: Mapping[str, _Read] = {
    "step_time": lambda rank: rank.step_time_s,
    "own_time": alone_s,
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
