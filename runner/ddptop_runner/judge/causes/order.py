"""Which rank left the order of collectives, by torch's flight records: pure, but for `read_calls`.

A training repeats itself: after the same few collectives comes the same one. So a rank that skips
one, or enters one more, breaks its own order, and each rank's record alone can tell that it did.
The record of a rank that ended at once is missing; it is to blame where every other rank kept to
its order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddptop_runner.base import bounded

RECORD_BYTES = 32 * 1024 * 1024
"""A longer record is not read."""
CALLS = 600
"""The latest of one rank that are looked at."""
CONTEXT = 8
"""So many collectives before one tell which it should be."""
LATEST = 4
"""A rank stops within so many collectives after it left the order."""
LEARNED = 24
"""Fewer collectives before those do not show an order."""
KEPT = 0.95
"""So many of those must have been the expected ones for there to be an order."""

DEFAULT_GROUP = "0"


@dataclass(frozen=True)
class Call:
    """One collective as a rank entered it."""

    number: int
    name: str
    sizes: str

    def in_words(self) -> str:
        """`all_reduce [16, 16]`."""
        return f"{self.name} {self.sizes}".strip()


@dataclass(frozen=True)
class Left:
    """A rank that left the order."""

    rank: int
    entered: Call | None = None
    """What it entered; None of a rank that is to blame because all others kept to theirs."""
    expected: str = ""
    """What should have come, in words."""

    def in_words(self) -> str:
        """The sentence for a cause."""
        if self.entered is None:
            return (
                f"The flight recorder shows that all ranks except rank {self.rank} "
                "issued their collectives in the same order."
            )
        return (
            f"Rank {self.rank} issued its collectives out of order: its collective "
            f"{self.entered.number} was {self.entered.in_words()} instead of {self.expected}."
        )


def who_left(records: Mapping[int, Sequence[Call]], world_size: int) -> Left | None:
    """The rank that left the order; None where the records do not tell.

    Args:
        records: by rank, what it entered, the oldest first.
        world_size: how many ranks there are.
    """
    breaks, kept = [], []
    for rank, calls in records.items():
        found = _break(calls)
        if found is not None:
            breaks.append(Left(rank, *found))
        elif _has_order([call.in_words() for call in calls]):
            kept.append(rank)
    if len(breaks) == 1:
        return breaks[0]
    silent = [rank for rank in range(world_size) if rank not in records]
    if not breaks and len(silent) == 1 and len(kept) == world_size - 1:
        return Left(silent[0])
    return None


def _break(calls: Sequence[Call]) -> tuple[Call, str] | None:
    """(the first collective out of order among the latest, what was due in its place)."""
    said = [call.in_words() for call in calls]
    for place in range(max(LEARNED, len(said) - LATEST), len(said)):
        if not _has_order(said[:place]):
            return None
        due = _due(said, place)
        if due and said[place] not in due:
            return calls[place], " or ".join(sorted(due))
    return None


def _has_order(said: Sequence[str]) -> bool:
    """Whether what came was mostly what was due."""
    if len(said) < LEARNED:
        return False
    places = range(max(CONTEXT, len(said) - 2 * LEARNED), len(said))
    known = [(said[place], due) for place in places if (due := _due(said, place))]
    right = sum(call in due for call, due in known)
    return len(known) >= LEARNED / 2 and right >= KEPT * len(known)


def _due(said: Sequence[str], place: int) -> set[str]:
    """What followed the same collectives before; empty where they were never entered so."""
    context = said[place - CONTEXT : place]
    return {
        said[start + CONTEXT]
        for start in range(place - CONTEXT)
        if said[start] == context[0] and said[start : start + CONTEXT] == context
    }


def read_calls(path: Path) -> list[Call]:
    """What a flight record holds of the group of all ranks; empty where it cannot be read."""
    try:
        entries = json.loads(bounded.read_bytes(path, RECORD_BYTES)).get("entries")
        calls = [_call(entry) for entry in entries if _counts(entry)]
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return []
    return sorted(calls, key=lambda call: call.number)[-CALLS:]


def _counts(entry: dict[str, Any]) -> bool:
    return not entry.get("is_p2p") and str(entry["process_group"][0]) == DEFAULT_GROUP


def _call(entry: dict[str, Any]) -> Call:
    name = str(entry.get("profiling_name", ""))[:80].rpartition(":")[2]
    sizes = entry.get("input_sizes")
    shown = ", ".join(str(size) for size in sizes[:3]) if isinstance(sizes, list) else ""
    return Call(int(entry["collective_seq_id"]), name, shown[:80])
