"""Whether a running job takes steps, pauses, or is stalled: a pure function of recorded facts.

Pauses are part of training: an evaluation, a checkpoint, the first batch of an epoch. A pause is at
first only shown, with its reason. It becomes a warning once it no longer resembles this job's own
pauses, or once the other ranks wait for an idle one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.base.units import duration_in_words, is_or_are, name_ranks
from ddptop_runner.judge.hangs.verdict import (
    DOING,
    UNEXPLAINED,
    Culprits,
    Judgment,
    RankProgress,
    Standing,
)
from ddptop_runner.model.words import PauseState, Phase

LEAST_S = 15.0
"""A shorter time without a step is never shown."""
USUAL_STEPS = 3.0
"""Minimum number of usual step times without a step."""
OWN_PAUSES = 2.0
"""Multiple of the longest pause in that phase that ended with progress."""
AWAITED_IDLE_S = 60.0
"""How long the others may wait for a rank without a sign of life."""
SPENT = 0.75
"""Fraction of the time after which the job counts as hung."""


@dataclass(frozen=True)
class Facts:
    """What is known about a job at one moment."""

    stepless_s: float
    """Since any rank took a step."""
    usual_s: float | None = None
    """The usual step time; None if unknown."""
    idle_s: float = 0.0
    """Since a rank that could continue showed a sign of life."""
    longest_s: float | None = None
    """The longest pause in the same phase that ended; None without one."""
    awaited_idle: bool = False
    """Whether the others wait for a rank that uses no CPU."""
    spent: float = 0.0
    """Fraction of the allowed time used; above 1, the job hangs."""
    stalled_before: bool = False
    """Whether it was already stalled, without a step since."""
    hung: bool = False
    """Whether there was a verdict."""
    begun: bool = True
    """Whether it has taken a step; startup is not a pause."""


def begins_after_s(usual_s: float | None) -> float:
    """The time without a step from which a pause is shown."""
    return max(LEAST_S, USUAL_STEPS * (usual_s or 0.0))


def pause_state(facts: Facts) -> PauseState | None:
    """The kind of pause; None while there are steps."""
    if facts.hung:
        return "hung"
    if facts.spent > SPENT:
        return "stalled"
    if not facts.begun or facts.stepless_s < begins_after_s(facts.usual_s):
        return None
    unlike_its_own = (
        facts.longest_s is not None
        and facts.stepless_s > OWN_PAUSES * facts.longest_s
        and facts.idle_s > LEAST_S
    )
    awaited = facts.awaited_idle and facts.idle_s > AWAITED_IDLE_S
    return "stalled" if facts.stalled_before or unlike_its_own or awaited else "no_step"


_ALL_DO: dict[Phase, str] = {
    "start": "starting",
    "compile": "compilation",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "data": "all ranks are waiting for their data loaders",
    "end": "the script is exiting",
}


def awaited(judgment: Judgment, standings: Sequence[Standing]) -> tuple[int, ...]:
    """Ranks that the others wait for, if any."""
    if judgment.culprits.named:
        return judgment.culprits.ranks
    deciding = tuple(one.rank.rank for one in judgment.deciding)
    return deciding if len(deciding) < len(standings) else ()


def reason(judgment: Judgment, standings: Sequence[Standing]) -> str | None:
    """The reason for a pause, if known.

    For example `rank 0 is saving a checkpoint`, or `waiting for rank 1, last seen at train.py:79`.
    """
    explained = [one for one in judgment.deciding if one.doing not in UNEXPLAINED]
    doing = {one.doing for one in explained}
    if explained and len(explained) == len(judgment.deciding) and len(doing) == 1:
        what = doing.pop()
        ranks = [one.rank.rank for one in explained]
        if len(ranks) == len(standings) and len(ranks) > 1:
            return _ALL_DO[what]
        does = DOING[what]
        if len(ranks) > 1:
            does = does.replace("its data loader", "their data loaders")
        return f"{name_ranks(ranks)} {is_or_are(ranks)} {does}"
    those = awaited(judgment, standings)
    waiting = [one.rank.rank for one in standings if one.rank.rank not in those]
    stood = [one.rank.stands_at for one in standings if not those or one.rank.rank in those]
    place = stood[0] if stood and len(set(stood)) == 1 else None
    seen = "" if place is None else f", last seen at {short_place(place)}"
    if those and waiting:
        who = "waiting" if len(waiting) > 1 else f"{name_ranks(waiting)} is waiting"
        return f"{who} for {name_ranks(those)}{seen}"
    if all(one.doing == "collective" for one in standings) and len(standings) > 1:
        return f"all ranks are waiting in a collective{seen}"
    return seen.removeprefix(", ") or None


def short_place(place: str) -> str:
    """`train.py:79` of `/home/me/train.py:79 in main`."""
    return place.partition(" in ")[0].rpartition("/")[2]


# -- why a rank takes no step, for screens -----------------------------------------------------

SHOWN_AFTER_S = 2.0
"""Anything shorter would only flicker."""
UNKNOWN_AFTER_S = 30.0
DEAF = "the probe stopped reporting: progress unknown"


def of_unknown(rank: RankProgress) -> str | None:
    """For a rank that should have reported by now and has not."""
    if rank.since_progress_s < UNKNOWN_AFTER_S:
        return None
    return "no reports from the probe: progress unknown"


def of_silent(standing: Standing, culprits: Culprits | None, paused: tuple[int, ...]) -> str | None:
    """Why a rank is silent but healthy; None if that is unexplained or it is not silent.

    Args:
        standing: the rank.
        culprits: the ranks that the others wait for, if known.
        paused: ranks stopped by a signal.
    """
    rank = standing.rank
    if standing.doing == "collective":
        return _in_collective(standing, culprits, paused)
    since_s = rank.phase_s
    if since_s < SHOWN_AFTER_S or rank.phase != standing.doing:
        return None
    what = DOING.get(standing.doing)
    if what is None or standing.doing == "start":
        return None
    if standing.doing == "end":
        what = "exit in progress"
    elif standing.doing == "checkpoint" and not rank.steps:
        what = "saving or loading a checkpoint"
    counted = standing.doing == "evaluation" and standing.batches
    batch = f" (batch {standing.batches})" if counted else ""
    return f"{what} for {duration_in_words(since_s)}{batch}"


def _in_collective(
    standing: Standing, culprits: Culprits | None, paused: tuple[int, ...]
) -> str | None:
    if paused:
        return f"waiting in a collective while {name_ranks(paused)} {is_or_are(paused)} paused"
    if standing.silent_s < SHOWN_AFTER_S:
        return None
    for_ranks = ""
    if culprits is not None and culprits.named and standing.rank.rank not in culprits.ranks:
        for_ranks = f" for {name_ranks(culprits.ranks)}"
    return f"waiting{for_ranks} in a collective for {duration_in_words(standing.silent_s)}"


def of_quiet(standing: Standing, usual_s: float) -> str:
    """The note for a rank that takes longer than usual."""
    rank = standing.rank
    what = "a step" if rank.steps else "progress"
    quiet = f"{duration_in_words(standing.silent_s)} without {what} (usually {usual_s:.2g} s)"
    return f"{quiet}; last seen at {rank.stands_at}" if rank.stands_at else quiet
