"""How unevenly a job's work is spread: one number per kind of figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ddptop_runner.model import GpuSample, Imbalance, RankSample

_ENDED = ("exited", "failed", "stopped")


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
    median = statistics.median(known)
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
