"""Which rank the others wait for: pure, from what all ranks report.

The surest sign comes first: a collective that some have entered and one has not; then a rank that
ended; fewer steps; an interpreter that does not respond; and last the minority that is where most
ranks are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddptop_runner.base.units import name_ranks
from ddptop_runner.judge.hangs.types import Culprits, RankProgress, Standing
from ddptop_runner.model.words import Phase

DEFAULT_GROUP = "0"
"""Name of the process group of all ranks."""


def _is_shared(group: str) -> bool:
    """Whether the name stands for the same group on all ranks."""
    return not group.startswith("#") and group != "other"


DOING: dict[Phase, str] = {
    "start": "starting",
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving a checkpoint",
    "data": "waiting for its data loader",
    "end": "exiting",
}
"""What one rank does."""


def is_or_are(ranks: Sequence[int]) -> str:
    """For a sentence about some ranks."""
    return "is" if len(ranks) == 1 else "are"


def find(standings: Sequence[Standing], ended: Sequence[RankProgress] = ()) -> Culprits:
    """The ranks to look at first; all of `standings` where nothing tells them apart.

    Args:
        standings: ranks that live and whose progress is known, at least one.
        ended: ranks that have ended.
    """
    for sign in (_by_collective, _by_end):
        if found := sign(standings, ended):
            return found
    if len(standings) > 1:
        for other_sign in (_by_steps, _by_silence, _by_mismatch, _by_waiting, _by_place):
            if found := other_sign(standings):
                return found
    return Culprits(_numbers(standings), _together(standings), named=False)


def _by_collective(standings: Sequence[Standing], ended: Sequence[RankProgress]) -> Culprits | None:
    """Who has not entered a collective in which others wait."""
    alive = [standing.rank for standing in standings]
    groups = {group for rank in alive for group in rank.enqueued}
    unsure = None
    for group in sorted(groups, key=lambda name: (name != DEFAULT_GROUP, name)):
        members = [rank for rank in (*alive, *ended) if group in rank.enqueued]
        latest = max(rank.enqueued[group] for rank in members)
        waiting = [
            rank.rank
            for rank in members
            if rank.alive and rank.completed.get(group, latest) < latest <= rank.enqueued[group]
        ]
        behind = [rank for rank in members if rank.enqueued[group] < latest]
        if not waiting or not behind:
            continue
        # a rank that waits in another group's collective is held up itself
        roots = [rank for rank in behind if not rank.alive or not rank.pending]
        last = min(rank.enqueued[group] for rank in roots or behind)
        those = [rank for rank in roots or behind if rank.enqueued[group] == last]
        numbers = tuple(rank.rank for rank in those)
        where = "" if group == DEFAULT_GROUP else f" of process group {group}"
        unheard = any(rank.alive and rank.is_unheard for rank in those)
        missed = "it" if latest == last + 1 else f"collective {last + 1}"
        missing = (
            f"last reported before entering {missed}" if unheard else f"never reached {missed}"
        )
        facts = [_ended_in_words(those), _silent_in_words(those), _standing_in_words(those)]
        because = (
            f"{_are(waiting)} waiting in collective {latest}{where}; "
            f"{name_ranks(numbers)} {missing}{_aside(facts)}"
        )
        found = Culprits(numbers, because, proven=_is_shared(group) and not unheard)
        if roots and _is_shared(group):
            return found
        unsure = unsure or found
    return unsure


def _by_end(standings: Sequence[Standing], ended: Sequence[RankProgress]) -> Culprits | None:
    """Who has ended while all others wait."""
    gone = [rank for rank in ended if rank.exited_with is not None]
    if not gone or not all(standing.doing == "collective" for standing in standings):
        return None
    numbers = tuple(rank.rank for rank in gone)
    waiting = _numbers(standings)
    because = f"{_are(waiting)} waiting in a collective; {_ended_in_words(gone)}"
    return Culprits(numbers, because, proven=True)


def _are(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {is_or_are(ranks)}"


def _aside(facts: Sequence[str]) -> str:
    known = "; ".join(filter(None, facts))
    return f" ({known})" if known else ""


def _standing_in_words(ranks: Sequence[RankProgress]) -> str:
    """Where they are instead; empty where that differs or one of them has ended."""
    if any(not rank.alive or rank.is_unheard for rank in ranks):
        return ""
    places = {rank.stands_at for rank in ranks}
    place = places.pop() if len(places) == 1 else None
    if place is None:
        return ""
    return f"last seen at {place}"


def _ended_in_words(ranks: Sequence[RankProgress]) -> str:
    gone = [rank for rank in ranks if not rank.alive]
    if not gone:
        return ""
    how = "" if gone[0].exited_with is None else f" with status {gone[0].exited_with}"
    have = "has" if len(gone) == 1 else "have"
    return f"{name_ranks([rank.rank for rank in gone])} {have} exited{how}"


def _by_steps(standings: Sequence[Standing]) -> Culprits | None:
    """Who has taken fewer steps, and does not wait itself."""
    steps = {standing.rank.rank: standing.rank.steps or 0 for standing in standings}
    fewest, most = min(steps.values()), max(steps.values())
    if fewest == most:
        return None
    behind = [standing for standing in standings if steps[standing.rank.rank] == fewest]
    ahead = [standing for standing in standings if steps[standing.rank.rank] == most]
    others = "the other is" if len(standings) - len(behind) == 1 else "the others are"
    numbers = _numbers(behind)
    because = f"{_are(numbers)} stuck at step {fewest}; {others} at step {most}"
    proven = all(standing.doing == "collective" for standing in ahead) and all(
        standing.doing != "collective" for standing in behind
    )
    silent = _aside([_silent_in_words([standing.rank for standing in behind])])
    return Culprits(numbers, because + silent, proven)


def _by_silence(standings: Sequence[Standing]) -> Culprits | None:
    """Whose interpreter does not respond, while others' do."""
    silent = [standing for standing in standings if standing.rank.is_unheard]
    if not silent or len(silent) == len(standings):
        return None
    numbers = _numbers(silent)
    unheard_s = max(standing.rank.unheard_s or 0.0 for standing in silent)
    because = (
        f"{name_ranks(numbers)} {'has' if len(numbers) == 1 else 'have'} not reported for "
        f"{unheard_s:.0f} s: {_silent_in_words([standing.rank for standing in silent])}"
    )
    return Culprits(numbers, because)


def _by_mismatch(standings: Sequence[Standing]) -> Culprits | None:
    """All have entered the same collective, and it does not complete: no one's absence."""
    ranks = [standing.rank for standing in standings]
    for group, entered in ranks[0].enqueued.items():
        if _is_shared(group) and all(
            rank.enqueued.get(group) == entered > rank.completed.get(group, entered)
            for rank in ranks
        ):
            places = sorted({rank.stands_at for rank in ranks if rank.stands_at})
            apart = f"; last seen at {' and '.join(places[:3])}" if len(places) > 1 else ""
            because = (
                f"all ranks are waiting in collective {entered}, which has not completed{apart}"
            )
            return Culprits(_numbers(standings), because, named=False)
    return None


def _by_waiting(standings: Sequence[Standing]) -> Culprits | None:
    """Who does not wait in a collective, while others do."""
    waiting = [standing for standing in standings if standing.doing == "collective"]
    others = [standing for standing in standings if standing.doing != "collective"]
    if not waiting or not others:
        return None
    numbers = _numbers(others)
    doing = {standing.doing for standing in others}
    what = DOING.get(doing.pop()) if len(doing) == 1 else None
    if what == DOING["checkpoint"]:  # it may load it as well
        what = "at a checkpoint"
    return Culprits(
        numbers,
        f"{_are(_numbers(waiting))} waiting in a collective; "
        f"{_are(numbers)} {what or 'not'}{_places_in_words(others)}",
    )


def _by_place(standings: Sequence[Standing]) -> Culprits | None:
    """The ranks at the least common place."""
    places = Counter(standing.rank.stands_at for standing in standings)
    if None in places or len(places) < 2:
        return None
    (_, most), *rest = places.most_common()
    if rest[0][1] == most:
        return None
    fewest = rest[-1][1]
    odd = [s for s in standings if places[s.rank.stands_at] == fewest]
    here = ", ".join(sorted({standing.rank.stands_at or "" for standing in odd}))
    return Culprits(_numbers(odd), f"{_are(_numbers(odd))} at {here}; the others are elsewhere")


def _together(standings: Sequence[Standing]) -> str:
    steps = {standing.rank.steps for standing in standings} - {None}
    if len(standings) == 1:
        (only,) = standings
        at = "" if not only.rank.steps else f" at step {only.rank.steps}"
        return f"rank {only.rank.rank} is stuck{at}{_places_in_words(standings)}"
    at = f" at step {steps.pop()}" if len(steps) == 1 else ""
    if all(standing.doing == "collective" for standing in standings):
        return f"all ranks are waiting in a collective{at}"
    return f"all ranks are stuck{at}{_places_in_words(standings)}"


def _places_in_words(standings: Sequence[Standing]) -> str:
    places = {standing.rank.stands_at for standing in standings} - {None}
    return f" (last seen at {places.pop()})" if len(places) == 1 else ""


def _silent_in_words(ranks: Sequence[RankProgress]) -> str:
    silent = sum(rank.alive and rank.is_unheard for rank in ranks)
    if silent > 1:
        return "their interpreters are not responding"
    return "its interpreter is not responding" if silent else ""


def _numbers(standings: Sequence[Standing]) -> tuple[int, ...]:
    return tuple(standing.rank.rank for standing in standings)
