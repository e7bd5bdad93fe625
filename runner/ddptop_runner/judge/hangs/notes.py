"""State reasons of ranks that take no step, in words for the screen."""

from __future__ import annotations

from ddptop_runner.base.spans import name_ranks
from ddptop_runner.base.units import duration_in_words
from ddptop_runner.judge.hangs.learned import Interval
from ddptop_runner.judge.hangs.types import Culprits, RankProgress, Standing

SHOWN_AFTER_S = 2.0
"""What lasts shorter only flickers."""
UNKNOWN_AFTER_S = 30.0
DEAF = "the probe stopped reporting: progress unknown"


def of_unknown(rank: RankProgress) -> str | None:
    """Of a rank from which nothing was heard, once it should have been."""
    if rank.since_progress_s < UNKNOWN_AFTER_S:
        return None
    return "no reports from the probe: progress unknown"


def of_silent(standing: Standing, culprits: Culprits | None, paused: tuple[int, ...]) -> str | None:
    """Why a rank is silent and well; None where nothing explains it, or it is not silent.

    Args:
        standing: the rank.
        culprits: whom the others wait for, as far as that is known.
        paused: ranks that a person has stopped by a signal.
    """
    rank = standing.rank
    if standing.doing == "collective":
        return _in_collective(standing, culprits, paused)
    since_s = rank.phase_s
    if since_s < SHOWN_AFTER_S or rank.phase != standing.doing:
        return None
    time = duration_in_words(since_s)
    if standing.doing == "evaluation":
        batch = f" (batch {standing.batches})" if standing.batches else ""
        return f"evaluating for {time}{batch}"
    if standing.doing == "checkpoint":
        what = "saving a checkpoint" if rank.steps else "saving or loading a checkpoint"
        return f"{what} for {time}"
    if standing.doing == "compile":
        return f"compiling for {time}"
    if standing.doing == "end":
        return f"exiting for {time}"
    if standing.doing == "data":
        return f"waiting for its data loader for {time}"
    return None


def _in_collective(
    standing: Standing, culprits: Culprits | None, paused: tuple[int, ...]
) -> str | None:
    if paused:
        return f"waiting in a collective while {name_ranks(paused)} {is_or_are(paused)} paused"
    if standing.silent_s < SHOWN_AFTER_S:
        return None
    whom = ""
    if culprits is not None and culprits.named and standing.rank.rank not in culprits.ranks:
        whom = f" for {name_ranks(culprits.ranks)}"
    return f"waiting{whom} in a collective for {duration_in_words(standing.silent_s)}"


def of_quiet(standing: Standing, interval: Interval) -> str:
    """What is known of a rank that takes longer than usual."""
    rank = standing.rank
    what = "a step" if rank.steps else "progress"
    quiet = (
        f"{duration_in_words(standing.silent_s)} without {what} (usually {interval.usual_s:.2g} s)"
    )
    return f"{quiet}; last seen at {rank.stands_at}" if rank.stands_at else quiet


def is_or_are(ranks: tuple[int, ...]) -> str:
    """For a sentence about some ranks."""
    return "is" if len(ranks) == 1 else "are"
