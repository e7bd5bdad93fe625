"""Whether a job that runs takes steps, pauses, or is stalled: one function of recorded facts.

Pauses are part of training: an evaluation, a checkpoint, the first batch of an epoch. So a pause is
first only shown, with its reason. It becomes a warning once it no longer looks like this job's own
pauses, or once the others wait for an idle rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.base.units import duration_in_words, is_or_are, name_ranks
from ddptop_runner.judge.hangs.verdict import (
    DOING,
    UNEXPLAINED,
    Culprits,
    Judgement,
    RankProgress,
    Standing,
)
from ddptop_runner.model.words import PauseState, Phase

LEAST_S = 15.0
"""A shorter time without a step is never told."""
USUAL_STEPS = 3.0
"""So many usual steps must be missing."""
OWN_PAUSES = 2.0
"""Times the longest pause of that phase that ended well."""
AWAITED_IDLE_S = 60.0
"""For how long the others may wait for a rank that gives no sign of life."""
SPENT = 0.75
"""Of the time after which the job is taken to hang."""


@dataclass(frozen=True)
class Facts:
    """What is known of a job at one moment."""

    stepless_s: float
    """Since any rank took a step."""
    usual_s: float | None = None
    """A usual step; None before that is known."""
    idle_s: float = 0.0
    """Since a rank that could go on gave a sign of life."""
    longest_s: float | None = None
    """The longest pause of the same phase that ended; None where there was none."""
    awaited_idle: bool = False
    """Whether the others wait for a rank that uses no CPU."""
    spent: float = 0.0
    """Share of what is allowed that is gone; above 1 the job hangs."""
    stalled_before: bool = False
    """Whether it was stalled already, without a step since."""
    hung: bool = False
    """Whether the verdict was given."""
    begun: bool = True
    """Whether it has taken a step: what a start takes is nobody's pause."""


def begins_after_s(usual_s: float | None) -> float:
    """From when on a time without a step is told."""
    return max(LEAST_S, USUAL_STEPS * (usual_s or 0.0))


def pause_state(facts: Facts) -> PauseState | None:
    """What the time without a step is; None while steps come."""
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


def awaited(judgement: Judgement, standings: Sequence[Standing]) -> tuple[int, ...]:
    """Ranks that the others wait for; empty where nobody waits for anybody."""
    if judgement.culprits.named:
        return judgement.culprits.ranks
    deciding = tuple(one.rank.rank for one in judgement.deciding)
    return deciding if len(deciding) < len(standings) else ()


def reason(judgement: Judgement, standings: Sequence[Standing]) -> str | None:
    """What is known of a pause; None where nothing is.

    For example `rank 0 is saving a checkpoint`, or `waiting for rank 1, last seen at train.py:79`.
    """
    explained = [one for one in judgement.deciding if one.doing not in UNEXPLAINED]
    doing = {one.doing for one in explained}
    if explained and len(explained) == len(judgement.deciding) and len(doing) == 1:
        what = doing.pop()
        ranks = [one.rank.rank for one in explained]
        if len(ranks) == len(standings) and len(ranks) > 1:
            return _ALL_DO[what]
        does = DOING[what]
        if len(ranks) > 1:
            does = does.replace("its data loader", "their data loaders")
        return f"{name_ranks(ranks)} {is_or_are(ranks)} {does}"
    whom = awaited(judgement, standings)
    waiting = [one.rank.rank for one in standings if one.rank.rank not in whom]
    stood = [one.rank.stands_at for one in standings if not whom or one.rank.rank in whom]
    place = stood[0] if stood and len(set(stood)) == 1 else None
    seen = "" if place is None else f", last seen at {short_place(place)}"
    if whom and waiting:
        who = "waiting" if len(waiting) > 1 else f"{name_ranks(waiting)} is waiting"
        return f"{who} for {name_ranks(whom)}{seen}"
    if all(one.doing == "collective" for one in standings) and len(standings) > 1:
        return f"all ranks are waiting in a collective{seen}"
    return seen.removeprefix(", ") or None


def short_place(place: str) -> str:
    """`train.py:79` of `/home/me/train.py:79 in main`."""
    return place.partition(" in ")[0].rpartition("/")[2]


# -- why a rank takes no step, for the screen -----------------------------------------------------

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
    whom = ""
    if culprits is not None and culprits.named and standing.rank.rank not in culprits.ranks:
        whom = f" for {name_ranks(culprits.ranks)}"
    return f"waiting{whom} in a collective for {duration_in_words(standing.silent_s)}"


def of_quiet(standing: Standing, usual_s: float) -> str:
    """What is known of a rank that takes longer than usual."""
    rank = standing.rank
    what = "a step" if rank.steps else "progress"
    quiet = f"{duration_in_words(standing.silent_s)} without {what} (usually {usual_s:.2g} s)"
    return f"{quiet}; last seen at {rank.stands_at}" if rank.stands_at else quiet
