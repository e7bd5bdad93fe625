"""How unevenly a job's work is spread: one number per kind of figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ddptop_runner.model import GpuSample, Imbalance, RankSample

_ENDED = ("exited", "failed", "stopped")

Figure = Literal["memory", "utilization", "power", "step_time", "loss"]
"""What ranks are compared by."""

OUT_OF_SPREAD = 3.0
"""An outlier is this much farther from the median than the median rank is: where all differ, as
stages of a pipeline do, none is singled out."""

ENOUGH_FOR_A_SPREAD = 4
"""With fewer ranks there is no telling what is usual between them."""

_GIB = 1024**3


LOSS_APART = 0.5
"""Of the median: from here on a rank's loss is an outlier ..."""

LOSS_APART_LEAST = 0.05
"""... unless it is no more than this away."""


POINTS_APART_LEAST = 5.0
"""Percentage points of utilization: up to here it is even, though 1 % is twice 0.5 %."""


class _Bounds(msgspec.Struct, frozen=True):
    """From when on a figure is drawn as a warning: both bounds must be reached."""

    read: Callable[[RankSample], float | None]
    ratio: float
    """Of the median."""
    least: float
    """In the figure's own unit: 1 % against 2 % utilization is no outlier."""


_COMMON_BOUNDS: dict[Figure, _Bounds] = {
    "step_time": _Bounds(lambda rank: rank.step_time_s, 0.2, 0.01),
    "loss": _Bounds(lambda rank: rank.loss, LOSS_APART, LOSS_APART_LEAST),
}
_DEVICE_BOUNDS: dict[Figure, _Bounds] = {
    "memory": _Bounds(lambda rank: rank.gpu_mem_used_bytes, 0.2, 1.0 * _GIB),
    "utilization": _Bounds(lambda rank: rank.gpu_util_percent, 0.25, 15.0),
    "power": _Bounds(lambda rank: rank.gpu_power_w, 0.2, 20.0),
    **_COMMON_BOUNDS,
}
_CPU_BOUNDS: dict[Figure, _Bounds] = {
    "memory": _Bounds(lambda rank: rank.rss_bytes, 0.2, 0.5 * _GIB),
    "utilization": _Bounds(lambda rank: rank.cpu_percent, 0.25, 25.0),
    **_COMMON_BOUNDS,
}


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
    """Figures so far off that they are to be drawn as a warning."""

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


def of_job(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> Imbalance:
    """The imbalance of a job over its living ranks and its devices.

    Memory is what each rank holds on its devices, or the devices' memory in use where that is not
    known for two ranks; utilization and power are the devices'. In a job without devices memory is
    the ranks' resident memory and utilization their CPU time.
    """
    living = [rank for rank in ranks if rank.state not in _ENDED]
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
            else [rank.cpu_percent for rank in ranks if rank.state not in _ENDED]
        )
        if value is not None
    ]
    return len(known) > 1 and max(known) - min(known) <= POINTS_APART_LEAST


def deviations(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> dict[int, RankDeviation]:
    """Each rank's distance from the median of the job's living ranks, by rank.

    A rank that ended has no deviation. Figures are the ranks' own, as joined with their devices.
    """
    living = [rank for rank in ranks if rank.state not in _ENDED]
    found: dict[int, dict[str, float]] = {rank.rank: {} for rank in ranks}
    outlying: dict[int, set[Figure]] = {rank.rank: set() for rank in ranks}
    for figure, bounds in (_DEVICE_BOUNDS if gpus else _CPU_BOUNDS).items():
        values = {rank.rank: bounds.read(rank) for rank in living}
        known = {rank: value for rank, value in values.items() if value is not None}
        median = statistics.median(known.values()) if len(known) > 1 else 0.0
        for rank, value in known.items():
            if (ratio := _ratio(value, median)) is not None:
                found[rank][figure] = ratio
        for rank in _far_off(values, bounds):
            outlying[rank].add(figure)
    return {
        rank: RankDeviation(**ratios, outliers=frozenset(outlying[rank]))
        for rank, ratios in found.items()
    }


def _far_off(values: Mapping[int, float | None], bounds: _Bounds) -> list[int]:
    """Ranks beyond both bounds, and beyond what is usual between this job's ranks."""
    known = {rank: value for rank, value in values.items() if value is not None}
    if len(known) < 2:
        return []
    median = statistics.median(known.values())
    distances = {rank: abs(value - median) for rank, value in known.items()}
    usual = statistics.median(distances.values()) if len(known) >= ENOUGH_FOR_A_SPREAD else 0.0
    least = max(bounds.least, bounds.ratio * abs(median), OUT_OF_SPREAD * usual)
    return [rank for rank, distance in distances.items() if distance >= least and distance > 0]
