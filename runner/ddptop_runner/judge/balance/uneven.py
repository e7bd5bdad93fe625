"""Ranks whose memory, load or power lies far from the others'. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence

import msgspec

from ddptop_runner.base.units import name_ranks, size
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.model.snapshot import RankSample

OUT_OF_SPREAD = 3.0
"""An outlier is this much farther from the median than the median rank is: where all differ, as
stages of a pipeline do, none is singled out."""

ENOUGH_FOR_A_SPREAD = 4
"""With fewer ranks there is no telling what is usual between them."""

_GIB = 1024**3


class Kind(msgspec.Struct, frozen=True):
    """A figure by which ranks are compared."""

    id: str
    """Of its finding."""
    read: Callable[[RankSample], float | None]
    ratio: float
    """Of the median: so far away a rank must be ..."""
    least: float
    """... and so far in the figure's own unit: 1 % against 2 % utilization is no outlier."""
    more_is_worse: bool
    """Of two ranks the worse one is named: their median lies between them."""
    words: Callable[[str, str], str]
    """Of the ranks' figures, and of the median."""
    write: Callable[[float], str]


ON_DEVICES = (
    Kind(
        "uneven-memory",
        *(lambda rank: rank.gpu_mem_used_bytes, 0.2, 1.0 * _GIB, True),
        lambda here, usual: f"{here} of device memory in use (median {usual})",
        size,
    ),
    Kind(
        "uneven-load",
        *(lambda rank: rank.gpu_util_percent, 0.25, 15.0, False),
        lambda here, usual: f"a device that is busy {here} of the time (median {usual})",
        lambda percent: f"{percent:.0f}%",
    ),
    Kind(
        "uneven-power",
        *(lambda rank: rank.gpu_power_w, 0.2, 20.0, False),
        lambda here, usual: f"a device that draws {here} (median {usual})",
        lambda watts: f"{watts:.0f} W",
    ),
)
ON_CPUS = (
    Kind(
        "uneven-memory",
        *(lambda rank: rank.rss_bytes, 0.2, 0.5 * _GIB, True),
        lambda here, usual: f"{here} of resident memory (median {usual})",
        size,
    ),
    Kind(
        "uneven-load",
        *(lambda rank: rank.cpu_percent, 0.25, 25.0, True),
        lambda here, usual: f"a CPU load of {here} (median {usual}; 100% is one core)",
        lambda percent: f"{percent:.0f}%",
    ),
)


def far_off(kind: Kind, ranks: Sequence[RankSample]) -> list[int]:
    """Ranks beyond both bounds, and beyond what is usual between this job's ranks."""
    known = {rank.rank: value for rank in ranks if (value := kind.read(rank)) is not None}
    if len(known) < 2:
        return []
    median = statistics.median(known.values())
    away = {rank: value - median for rank, value in known.items()}
    if len(known) == 2:
        away = {rank: by for rank, by in away.items() if (by > 0) == kind.more_is_worse}
    is_known = len(known) >= ENOUGH_FOR_A_SPREAD
    spread = statistics.median(map(abs, away.values())) if is_known else 0.0
    least = max(kind.least, kind.ratio * abs(median), OUT_OF_SPREAD * spread)
    return [rank for rank, by in away.items() if abs(by) >= least]


def finding(kind: Kind, ranks: Sequence[RankSample], apart: Collection[int]) -> Finding:
    """Of ranks that are far off."""
    known = {rank.rank: value for rank in ranks if (value := kind.read(rank)) is not None}
    numbers = tuple(sorted(apart))
    low, high = (kind.write(of(known[number] for number in numbers)) for of in (min, max))
    here = low if low == high else f"{low} to {high}"
    words = kind.words(here, kind.write(statistics.median(known.values())))
    have = "has" if len(numbers) == 1 else "have"
    return Finding(kind.id, "info", f"{name_ranks(numbers)} {have} {words}", numbers)
