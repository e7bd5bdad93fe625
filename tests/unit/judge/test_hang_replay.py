"""100 simulated runs based on recorded ones have no false verdict, and each frozen rank is
detected.

`python -m pytest tests/unit/judge/test_hang_replay.py -s` prints the figures.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

import pytest
from tests.support.hang_replay import Disturbances, Moment, disturbed, live, names, read

from ddptop_runner.judge.hangs.verdict import HangReport
from ddptop_runner.judge.hangs.watch import HangWatch

LIVES = 100
SILENT_S = {"accumulation": 6.5, "collectives": 3.3, "compile_first": 5.0, "checkpoint": 12.0}
"""How long a recorded run shows no sign of activity at its steps, saves, or end; the others at most
0.5 s."""

HEALTHY = [name for name in names() if not name.startswith("hang_")]
HUNG = [name for name in names() if name.startswith("hang_")]


def watched(
    watch: HangWatch, life: Iterator[Moment], **again: object
) -> Iterator[tuple[Moment, HangReport]]:
    """Each moment of a run, with the watch's verdict."""
    for moment in life:
        if moment.attempt_began:
            watch.begin_attempt()
        if moment.supervisor_died:
            memory = watch.remember()
            watch = HangWatch(**again)  # type: ignore[arg-type]
            watch.recall(memory)
        yield moment, watch.update(moment.ranks, moment.now_s)


def sensible_s(name: str, scale: float) -> float:
    """The timeout that a user would choose who knows how long the script is silent."""
    return max(30.0, 3 * scale * SILENT_S.get(name, 0.5))


def scale_of(chance: random.Random) -> float:
    """From 1 to 60, mostly small: a run scaled by 60 takes an hour."""
    return 1.0 / chance.uniform(1 / 60, 1.0)


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_verdict_on_healthy_lives(name):
    chance = random.Random(name)
    lives = -(-LIVES // len(HEALTHY))
    for number in range(lives):
        scale = 60.0 if number == 0 else scale_of(chance)
        what = disturbed(chance, scale)
        auto = {"timeout_s": None, "auto": True}
        asked = {"timeout_s": sensible_s(name, scale)}
        seed = chance.random()
        for how in (auto, asked) if number % 2 else (auto,):
            life = live(read(name), what, random.Random(seed))
            for moment, looked in watched(HangWatch(**how), life, **how):
                assert looked.verdict is None, (number, how, what, moment, looked.verdict)


# -- the mirror: what must be seen ---------------------------------------------------------------

AUTO = {"timeout_s": None, "auto": True}
EXPLAINED_S = 1805.0
"""The limit if a rank freezes in the middle of an evaluation or a similar phase."""


def seen(
    life: Iterator[Moment], within_s: float, **how: object
) -> tuple[float | None, float | None, float, HangReport]:
    """(quiet, suspected, verdict: each in seconds after a rank froze, the last update)."""
    quiet_s = suspected_s = None
    for moment, looked in watched(HangWatch(**how), life, **how):  # type: ignore[arg-type]
        stands_s = moment.stands_s
        if stands_s is None:
            assert looked.verdict is None
            continue
        quiet_s = stands_s if quiet_s is None and looked.quiet else quiet_s
        suspected_s = stands_s if suspected_s is None and looked.suspicion else suspected_s
        if looked.verdict is not None:
            return quiet_s, suspected_s, stands_s, looked
        assert stands_s <= within_s, "never seen"
    raise AssertionError("nothing froze")


@pytest.mark.parametrize("asked_s", [20.0, None])
def test_every_rank_that_freezes_is_seen_and_named(asked_s):
    chance = random.Random(5)
    delays: dict[str, list[float]] = {"explained": [], "unexplained": []}
    quiet, named = [], 0
    for name in HEALTHY:
        for freeze_at in (0.55, 0.8):
            number = chance.randrange(2)
            what = Disturbances(drops=0.1, freeze_at=freeze_at, frozen_rank=number)
            how = {"timeout_s": max(asked_s, sensible_s(name, 1))} if asked_s else AUTO
            life = live(read(name), what, random.Random(freeze_at))
            quiet_s, suspected_s, verdict_s, looked = seen(life, EXPLAINED_S, **how)
            assert looked.verdict is not None and suspected_s is not None
            kind = "unexplained" if verdict_s < 700 else "explained"
            delays[kind].append(verdict_s)
            named += looked.verdict.ranks == (number,)
            if quiet_s is not None:
                quiet.append(quiet_s)
    count = sum(map(len, delays.values()))
    print(f"\n{'asked ' if asked_s else 'learned'}: {count} frozen, {named} named;", end=" ")
    for kind, found in delays.items():
        middle = statistics.median(found) if found else float("nan")
        print(
            f"{kind}: {len(found)}, {middle:.0f} s (longest {max(found, default=0):.0f});", end=" "
        )
    print(f"quiet in {len(quiet)}, {statistics.median(quiet):.1f} s")
    assert count == 2 * len(HEALTHY)
    assert named == count
    assert len(delays["unexplained"]) > len(delays["explained"])


CULPRITS = {
    # recorded run -> (ranks, words of the verdict)
    "hang_sleep": ((1,), "rank 0 is waiting in collective 307; rank 1 never reached it"),
    "hang_spin": ((1,), "in collective 307; rank 1 never reached it"),
    "hang_left": ((1,), "in collective 308; rank 1 never reached it"),
    "hang_in_c": (
        (1,),
        "rank 1 last reported before entering collective 302 (no response from the interpreter)",
    ),
    # rank 0 entered one more, of another kind: all wait
    "hang_skip": (
        (0, 1),
        "all ranks are waiting in collective 307, which has not completed",
    ),
}


@pytest.mark.parametrize("name", HUNG)
def test_real_hangs_are_seen_and_the_culprit_is_named(name):
    ranks, words = CULPRITS[name]
    watch, told = HangWatch(10.0), {}
    for moment, looked in watched(watch, live(read(name), Disturbances(), random.Random(1))):
        since_s = min(rank.since_progress_s for rank in moment.ranks)
        for what in ("suspicion", "verdict"):
            if getattr(looked, what) and what not in told:
                told[what] = since_s
        if looked.verdict is not None:
            break
    print(f"\n{name}:", {what: round(at_s, 1) for what, at_s in told.items()}, looked.notes)
    assert looked.verdict is not None
    assert looked.verdict.ranks == ranks
    assert words in looked.verdict.message()
    assert 7.5 <= told["suspicion"] <= 10.0
    assert told["verdict"] <= 12.5


LONG = {"checkpoint": 2.0, "evaluation_on_rank_0": 3.0, "evaluation": 4.0, "starving": 12.0}
"""Recorded run -> a scale at which its pauses last about half a minute."""


@pytest.mark.parametrize("name", LONG)
def test_half_minute_pauses_of_healthy_runs_are_shown_without_a_warning(name):
    longest_s = 0.0
    life = live(read(name), Disturbances(scale=LONG[name]), random.Random(1))
    for moment, looked in watched(HangWatch(**AUTO), life):
        assert looked.suspicion is None, (moment, looked.pause)
        if looked.pause is not None:
            assert looked.pause.state == "no_step"
            longest_s = max(longest_s, looked.pause.stepless_s)
    assert 20.0 <= longest_s <= 45.0


def test_there_are_enough_of_them():
    assert len(HEALTHY) >= 8
