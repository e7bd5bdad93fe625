"""The cause of an attempt that was ended because it hung."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddptop_runner.base.spans import name_ranks
from ddptop_runner.judge.causes import order
from ddptop_runner.judge.hangs import places
from ddptop_runner.judge.hangs.types import HangVerdict
from ddptop_runner.model.snapshot import Cause


def _left_order(evidence: Path, world_size: int) -> order.Left | None:
    """The rank that left the order of collectives, by the records in an evidence folder."""
    paths = {rank: evidence / f"flight-rank-{rank}.json" for rank in range(world_size)}
    records = {rank: calls for rank, path in paths.items() if (calls := order.read_calls(path))}
    return order.who_left(records, world_size)


def hang_cause(found: HangVerdict, evidence: str, stands_at: Mapping[int, str | None]) -> Cause:
    """What hung, who is to blame, and where it stood.

    Args:
        found: the verdict.
        evidence: the folder that holds the ranks' stacks, taken before any signal.
        stands_at: by rank, what its probe said.
    """
    left = None if found.named else _left_order(Path(evidence), len(stands_at))
    named = found.ranks if left is None else (left.rank,)
    culprits, place = places.explain(named, places.of_evidence(Path(evidence)))
    if place is None:
        told = {stands_at.get(rank) for rank in culprits} - {None}
        place = told.pop() if len(told) == 1 else None
    message, short = found.message, "" if place is None else place.rpartition("/")[2]
    head, found_at, tail = message.rpartition(f" at {short}")
    is_told = bool(place) and bool(found_at) and tail in ("", ")")
    if is_told:
        message = f"{head} at {place}{tail}"
    words = [f"The job hung: {message}."]
    if left is not None:
        words.append(left.in_words())
    one = len(culprits) == 1
    was = "was" if one else "were"
    if place is not None and not is_told:
        words.append(f"{name_ranks(culprits).capitalize()} {was} last seen at {place}.")
    elif culprits != named:
        words.append(
            f"{name_ranks(culprits).capitalize()} {was} not in the same place as the others."
        )
    return Cause(
        kind="hang",
        rank=culprits[0] if one else None,
        summary=" ".join(words),
        evidence=evidence,
        place=place,
    )
