"""Memory that grows steadily until it is full, and what kind of memory it is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training.window import Memory
from ddptop_runner.model.snapshot import RankSample

GROWTH_PARTS = 6
"""Memory must grow in each of so many parts of the time, by at least half of the usual."""
GROWTH_LEAST = 0.1
"""And by this part of what the ranks hold, in all."""
SOON_S, LATER_S = 180.0, 86400.0
"""Memory that is full so soon is named after 40 s; later, after LATEST_S."""
LATEST_S = 600.0


def memory_growth(memory: Sequence[Memory], ranks: Sequence[RankSample]) -> list[Finding]:
    """The ranks' memory grows steadily, and will be full.

    It counts only as far as the machine has less left: mapped files are no growth.
    """
    points = list(memory)
    if len(points) < 9:
        return []
    first, last = points[0], points[-1]
    edges = [points[round(i * (len(points) - 1) / GROWTH_PARTS)] for i in range(GROWTH_PARTS + 1)]
    growth = [
        (after.used_bytes - before.used_bytes) / (after.now_s - before.now_s)
        for before, after in itertools.pairwise(edges)
    ]
    rate, total = median(growth), last.used_bytes - first.used_bytes
    if rate <= 0 or min(growth) < rate / 2 or total < GROWTH_LEAST * first.used_bytes:
        return []
    full_in_s = last.available_bytes / rate
    is_soon = full_in_s <= SOON_S or last.now_s - first.now_s >= LATEST_S
    is_taken = first.available_bytes - last.available_bytes >= total / 2
    if full_in_s > LATER_S or not is_soon or not is_taken:
        return []
    who = "the ranks'" if len(ranks) > 1 else "its"
    what, advice = _kind(first, last)
    message = (
        f"{who} memory grows by {units.size(rate * 60)} per minute{what}; at this rate the "
        f"machine's memory is full in {units.duration_in_words(full_in_s)}: {advice}"
    )
    evidence = {
        "bytes_per_s": round(rate),
        "full_in_s": round(full_in_s),
        "children_share": round((last.children_bytes - first.children_bytes) / total, 2),
        "python_blocks": last.python_blocks - first.python_blocks,
    }
    numbers = tuple(rank.rank for rank in ranks)
    return [Finding("memory-growth", "warning", message, numbers, hold_s=5.0, evidence=evidence)]


MOST = 0.7
"""Part of the growth from which on one kind of memory is named."""
BLOCK_BYTES = 64
"""A usual size of the blocks that Python's small objects take; up to 512 bytes."""


def _kind(first: Memory, last: Memory) -> tuple[str, str]:
    """(what grows, what to look for)."""
    total = last.used_bytes - first.used_bytes
    in_children = last.children_bytes - first.children_bytes
    if in_children >= MOST * total:
        return (
            " in loader workers",
            "does the dataset keep what it has loaded, or hold lists that each worker copies?",
        )
    blocks = last.python_blocks - first.python_blocks if first.python_blocks else 0
    if blocks * BLOCK_BYTES >= MOST * (total - in_children):
        return (
            " in Python objects",
            f"{blocks:,} more blocks of them are held: does a list or dictionary keep growing?",
        )
    if first.python_blocks and blocks * BLOCK_BYTES < total / 10:
        return (
            ", not in Python objects",
            "does something keep tensors or arrays, such as losses that were not detached?",
        )
    return "", "does something keep tensors, such as losses that were not detached?"
