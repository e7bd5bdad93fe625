"""Properties of the hang verdict that hold whatever the ranks do."""

from __future__ import annotations

import dataclasses

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hang_ranks import rank

from ddptop_runner.judge.hangs.verdict import (
    FACTOR,
    FLOORS_S,
    Limits,
    RankProgress,
    Standing,
    judge,
)
from ddptop_runner.judge.hangs.watch import LONGEST_GAP_S, HangWatch

steady = settings(max_examples=15, deadline=None, derandomize=True, database=None)
"""Use the same examples in each run, so that the result depends only on the code."""

PHASES = ("start", "steps", "compile", "evaluation", "checkpoint", "data", "collective")
LONGEST_FLOOR_S = max(FLOORS_S.values())

times = st.floats(0.0, 1e5)
counts = st.integers(0, 50)
maybe_phases = st.one_of(st.none(), st.sampled_from(PHASES))
groups = st.dictionaries(st.sampled_from(["0", "1", "pp", "#2", "other"]), counts, max_size=3)


@st.composite
def progress(draw: st.DrawFn, number: int, *, known: bool = True) -> RankProgress:
    """Any live rank."""
    entered = draw(groups) if known else {}
    done = {group: draw(st.integers(0, count)) for group, count in entered.items()}
    return RankProgress(
        rank=number,
        alive=True,
        paused=False,
        steps=draw(counts) if known else None,
        since_progress_s=draw(times),
        phase=draw(maybe_phases),
        phase_s=draw(times),
        enqueued=entered,
        completed=done if known else {},
        batches=draw(st.one_of(st.none(), counts)),
        cpu_s=draw(st.one_of(st.none(), times)),
        written_bytes=draw(st.one_of(st.none(), st.integers(0, 10**9))),
        unheard_s=draw(st.one_of(st.none(), times)),
        stands_at=draw(st.sampled_from([None, "a.py:1 in f", "a.py:2 in g"])),
    )


@st.composite
def groups_of_ranks(draw: st.DrawFn, *, known: bool = True) -> list[RankProgress]:
    world = draw(st.integers(1, 4))
    return [draw(progress(number, known=known)) for number in range(world)]


@st.composite
def standings(draw: st.DrawFn) -> list[Standing]:
    found = []
    for one in draw(groups_of_ranks()):
        silent_s = draw(times)
        idle_s = draw(st.floats(0.0, 1.0)) * silent_s
        doing, busy = draw(st.sampled_from(PHASES)), draw(st.sampled_from([None, True, False]))
        found.append(Standing(one, doing, silent_s, idle_s, busy))  # type: ignore[arg-type]
    return found


learned = st.dictionaries(st.sampled_from(PHASES), times, max_size=3)
rules = st.builds(
    Limits, st.one_of(st.none(), st.floats(0.1, 1e5)), learned, st.sampled_from([1.0, 4.0])
)
watches = st.builds(HangWatch, st.one_of(st.none(), st.floats(0.5, 60.0)), auto=st.booleans())
lives = st.lists(st.tuples(groups_of_ranks(), st.floats(0.0, 20.0)), max_size=8)


@steady
@given(standings(), rules, st.floats(0.1, 1e5))
def test_more_time_that_is_asked_for_never_brings_a_verdict_earlier(ranks, told, asked_s):
    shorter = msgspec.structs.replace(told, timeout_s=asked_s / 2)
    longer = msgspec.structs.replace(told, timeout_s=asked_s)
    if judge(ranks, [], longer).used > 1:
        assert judge(ranks, [], shorter).used > 1


@steady
@given(standings(), rules)
def test_a_rank_that_progresses_lets_all_live(ranks, told):
    fresh = Standing(rank(99), "steps", silent_s=0.0, idle_s=0.0)
    assert judge([*ranks, fresh], [], told).used == 0.0


@steady
@given(standings(), rules)
def test_verdict_names_ranks_of_the_group_and_the_reason(ranks, told):
    verdict = judge(ranks, [], told).verdict()
    assert verdict.ranks and set(verdict.ranks) <= {standing.rank.rank for standing in ranks}
    assert "no rank made progress for" in verdict.message()


@steady
@given(standings(), rules)
def test_waits_are_bounded(ranks, told):
    asked_s = told.timeout_s or 0.0
    learned_s = FACTOR * max(told.longest_idle_s.values(), default=0.0)
    silent_s = max(asked_s, told.patience * LONGEST_FLOOR_S, learned_s) + 1
    dead = [dataclasses.replace(one, silent_s=silent_s, idle_s=silent_s) for one in ranks]
    assert judge(dead, [], told).used > 1


def look_at_all(watch, life):
    """Each update of a run: (seconds observed, what was found)."""
    now_s = looked_s = 0.0
    for ranks, passed_s in life:
        looked_s += min(passed_s, LONGEST_GAP_S) if now_s else 0.0
        now_s += passed_s + 1e-6
        yield looked_s, watch.update(ranks, now_s)


@steady
@given(watches, st.lists(st.tuples(groups_of_ranks(known=False), times), max_size=8))
def test_unknown_progress_is_never_counted_as_none(watch, life):
    for _, looked in look_at_all(watch, life):
        assert looked.verdict is None and looked.suspicion is None and not looked.quiet


@steady
@given(watches, lives, st.data())
def test_nor_that_of_one_rank_among_others(watch, life, data):
    unknown = data.draw(progress(99, known=False))
    for _, looked in look_at_all(watch, [([*ranks, unknown], s) for ranks, s in life]):
        assert looked.verdict is None and looked.suspicion is None


@steady
@given(watches, lives)
def test_no_verdict_while_a_rank_is_paused(watch, life):
    life = [([dataclasses.replace(ranks[0], paused=True), *ranks[1:]], s) for ranks, s in life]
    for _, looked in look_at_all(watch, life):
        assert looked.verdict is None and looked.suspicion is None and not looked.quiet


@steady
@given(watches, lives)
def test_a_verdict_was_suspected_and_its_time_was_looked_at(watch, life):
    asked_s = watch._limits.timeout_s
    for looked_s, looked in look_at_all(watch, life):
        if looked.verdict is not None:
            assert looked.suspicion is not None
            assert asked_s is not None and looked_s > asked_s  # learned times are longer than this


@steady
@given(watches, lives)
def test_no_verdict_while_any_rank_steps(watch, life):
    for number, (ranks, _) in enumerate(life):
        ranks[0] = dataclasses.replace(ranks[0], steps=100 + number, since_progress_s=0.0)
    for looked_s, looked in look_at_all(watch, life):
        if looked_s > 0:
            assert looked.verdict is None


@settings(steady, max_examples=8)
@given(groups_of_ranks(), st.floats(2.0, 20.0), st.integers(1, 60))
def test_a_frozen_group_is_seen_in_time_though_the_supervisor_is_started_again(
    ranks, asked_s, dies_at
):
    watch = HangWatch(asked_s)
    limit_s = max(asked_s, LONGEST_FLOOR_S)
    for look in range(int(limit_s / LONGEST_GAP_S) + 4):
        second = look * LONGEST_GAP_S
        if look == dies_at:
            memory = watch.remember()
            watch = HangWatch(asked_s)
            watch.recall(memory)
        frozen = [
            dataclasses.replace(one, since_progress_s=one.since_progress_s + second, unheard_s=1.0)
            for one in ranks
        ]
        if watch.update(frozen, 1e6 + second).verdict is not None:
            assert second > asked_s
            return
    raise AssertionError(f"not within {limit_s} s")
