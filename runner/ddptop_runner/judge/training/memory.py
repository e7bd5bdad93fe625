"""Memory that grows steadily until it is full, and what kind of memory it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddptop_runner.base import units
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training.window import Memory, Window, grows_steadily

GROWTH_PARTS, LEAST_POINTS = 6, 9
"""Memory must grow in each of so many parts of the time."""
GROWTH_LEAST = 0.1
"""And by this part of what the ranks hold, in all."""
AHEAD, AHEAD_ON_DEVICE = 8.0, 1.0
"""Growth is foreseen for so many times as long as it was seen: a cache may be full by then."""
TENSORS = "does something keep tensors, such as losses that were not detached?"


class _Growth(NamedTuple):
    """How steadily growing memory goes on."""

    bytes_per_s: float
    full_in_s: float


def _growth(points: Sequence[Memory], ahead: float) -> _Growth | None:
    """How memory grows; None unless it is steady, takes from what is left, and will be full."""
    if len(points) < LEAST_POINTS:
        return None
    first, last = points[0], points[-1]
    total, since_s = last.used_bytes - first.used_bytes, last.now_s - first.now_s
    if not grows_steadily([point.used_bytes for point in points], GROWTH_PARTS):
        return None
    if total < GROWTH_LEAST * first.used_bytes:
        return None
    if first.available_bytes - last.available_bytes < total / 2:  # as of mapped files
        return None
    rate = total / since_s
    full_in_s = last.available_bytes / rate
    return None if full_in_s > ahead * since_s else _Growth(rate, full_in_s)


def memory_growth(window: Window) -> list[Finding]:
    """The ranks' memory grows steadily, and will be full: that of a device, or the machine's."""
    return _on_devices(window) or _on_host(window)


def _on_devices(window: Window) -> list[Finding]:
    """Tensors of some ranks, of which more are left after each step.

    Metrics keep theirs until an epoch ends, so no more is foreseen than was seen.
    """
    growing = {
        rank: growth
        for rank, points in window.memory.items()
        if rank is not None and (growth := _growth([*points], AHEAD_ON_DEVICE)) is not None
    }
    if not growing:
        return []
    worst = min(growing, key=lambda rank: growing[rank].full_in_s)
    now, numbers = growing[worst], tuple(sorted(growing))
    message = (
        f"{units.name_ranks(numbers)} {'keep' if len(numbers) > 1 else 'keeps'} more tensors on "
        f"the device with each step, {units.size(now.bytes_per_s * 60)} per minute; at this rate "
        f"that of rank {worst} is full in {units.duration_in_words(now.full_in_s)}: {TENSORS}"
    )
    evidence = {"bytes_per_s": round(now.bytes_per_s), "full_in_s": round(now.full_in_s)}
    return [Finding("memory-growth", "warning", message, numbers, hold_s=5.0, evidence=evidence)]


def _on_host(window: Window) -> list[Finding]:
    points = [*window.memory.get(None, ())]
    growth = _growth(points, AHEAD)
    if growth is None:
        return []
    first, last = points[0], points[-1]
    who = "the ranks'" if len(window.ranks) > 1 else "its"
    what, advice = _kind(first, last)
    message = (
        f"{who} memory grows by {units.size(growth.bytes_per_s * 60)} per minute{what}; at this "
        f"rate the machine's memory is full in {units.duration_in_words(growth.full_in_s)}: "
        f"{advice}"
    )
    in_children = last.children_bytes - first.children_bytes
    evidence = {
        "bytes_per_s": round(growth.bytes_per_s),
        "full_in_s": round(growth.full_in_s),
        "children_share": round(in_children / (last.used_bytes - first.used_bytes), 2),
        "python_blocks": last.python_blocks - first.python_blocks,
    }
    return [window.finding("memory-growth", "warning", message, evidence)]


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
    is_other = first.python_blocks and blocks * BLOCK_BYTES < total / 10
    return ", not in Python objects" if is_other else "", TENSORS
