"""Which ranks the others wait for, as a table."""

from __future__ import annotations

import pytest
from tests.support.hang_ranks import rank, standing

from ddptop_runner.judge.hangs.verdict import find_culprits

WAITS = {"doing": "collective", "at": (9, 8)}

CASES = {
    # (live ranks, ended ranks) -> (culprits, whether that is proven, words of the message)
    "one did not enter the collective": (
        [standing(0, **WAITS), standing(1, at=(8, 8)), standing(2, **WAITS)],
        [],
        ((1,), True, "ranks 0, 2 are waiting in collective 9; rank 1 never reached it"),
    ),
    "and where it stands instead": (
        [standing(0, **WAITS), standing(1, at=(8, 8), stands_at="t.py:9 in g")],
        [],
        ((1,), True, "rank 1 never reached it"),
    ),
    "the one that is furthest behind": (
        [standing(0, **WAITS), standing(1, at=(8, 8)), standing(2, at=(7, 7))],
        [],
        ((2,), True, "rank 0 is waiting in collective 9; rank 2 never reached collective 8"),
    ),
    "steps say another thing, collectives are surer": (
        [standing(0, 41, **WAITS), standing(1, 41, at=(8, 8)), standing(2, 40, **WAITS)],
        [],
        ((1,), True, "never reached it"),
    ),
    "who waits in another group is held up itself": (
        [
            standing(0, doing="collective", enqueued={"0": 9, "1": 5}, completed={"0": 9, "1": 4}),
            standing(1, enqueued={"0": 9, "1": 4}, completed={"0": 9, "1": 4}),
            standing(2, doing="collective", enqueued={"0": 10}, completed={"0": 9}),
        ],
        [],
        ((1,), True, "rank 2 is waiting in collective 10; rank 1 never reached it"),
    ),
    "of a smaller group only its members are behind": (
        [
            standing(0, doing="collective", enqueued={"pp": 9}, completed={"pp": 8}),
            standing(1, enqueued={"pp": 8}, completed={"pp": 8}),
            standing(2, enqueued={"tp": 3}, completed={"tp": 3}),
        ],
        [],
        ((1,), True, "collective 9 of process group pp"),
    ),
    "a number that is a rank's own compares with nobody's": (
        [
            standing(0, doing="collective", enqueued={"#1": 9}, completed={"#1": 8}),
            standing(1, enqueued={"#1": 4}, completed={"#1": 4}),
        ],
        [],
        ((1,), False, ""),
    ),
    "a rank that ended never entered": (
        [standing(0, **WAITS), standing(2, **WAITS)],
        [rank(1, alive=False, exited_with=0, at=(8, 8))],
        ((1,), True, "it (rank 1 has exited with status 0)"),
    ),
    "a rank that ended, of which no collective is known": (
        [standing(0, **WAITS)],
        [rank(1, alive=False, exited_with=0)],
        ((1,), True, "rank 0 is waiting in a collective; rank 1 has exited"),
    ),
    "a rank that ended holds nobody up who does not wait": (
        [standing(0, 40), standing(2, 39)],
        [rank(1, 40, alive=False, exited_with=0)],
        ((2,), False, "rank 2 is stuck at step 39; the other is at step 40"),
    ),
    "a rank that does not answer did not enter": (
        [standing(0, **WAITS), standing(1, at=(8, 8), unheard_s=30)],
        [],
        (
            (1,),
            False,
            "rank 0 is waiting in collective 9; rank 1 last reported before entering it (",
        ),
    ),
    "fewer steps": (
        [standing(0, 40), standing(1, 39), standing(2, 40)],
        [],
        ((1,), False, "rank 1 is stuck at step 39; the others are at step 40"),
    ),
    "fewer steps, and the others wait": (
        [standing(0, 40, doing="collective"), standing(1, 39)],
        [],
        ((1,), True, "rank 1 is stuck at step 39; the other is at step 40"),
    ),
    "several behind": (
        [standing(0, 1), standing(1, 1), standing(2, 2)],
        [],
        ((0, 1), False, "ranks 0, 1 are stuck at step 1; the other is at step 2"),
    ),
    "all interpreters answer nothing": (
        [standing(0, unheard_s=70), standing(1, unheard_s=70)],
        [],
        ((0, 1), False, "all ranks are stuck at step 40"),
    ),
    "one is not in the collective": (
        [standing(0, doing="collective"), standing(1, doing="data")],
        [],
        ((1,), False, "rank 0 is waiting in a collective; rank 1 is waiting for data"),
    ),
    "all wait": (
        [standing(n, **WAITS) for n in range(2)],
        [],
        ((0, 1), False, "all ranks are waiting in collective 9, which has not completed"),
    ),
    "all wait, and no collective is known": (
        [standing(n, doing="collective") for n in range(2)],
        [],
        ((0, 1), False, "all ranks are waiting in a collective at step 40"),
    ),
    "only one": (
        [standing(0, 7, stands_at="t.py:4 in f")],
        [],
        ((0,), False, "rank 0 is stuck at step 7"),
    ),
    "no collective is known of some": (
        [standing(0, **WAITS), standing(1, at=None)],
        [],
        ((1,), False, "rank 0 is waiting in a collective; rank 1 is not"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_culprit(case):
    alive, ended, (ranks, proven, words) = case
    found = find_culprits(alive, ended)
    assert (found.ranks, found.proven) == (ranks, proven)
    assert words in found.because


def test_no_rank_is_named_if_none_is_behind():
    assert not find_culprits([standing(0), standing(1)]).named
    assert find_culprits([standing(0, 1), standing(1, 2)]).named


@pytest.mark.parametrize(
    ("standings", "place"),
    [
        ([standing(0, **WAITS), standing(1, at=(8, 8), stands_at="t.py:9 in g")], "t.py:9 in g"),
        ([standing(0, **WAITS), standing(1, at=(8, 8), stands_at="t.py:9", unheard_s=30)], None),
        ([standing(0, 40), standing(1, 39, stands_at="t.py:4 in f")], "t.py:4 in f"),
        ([standing(0, doing="collective"), standing(1, stands_at="t.py:4")], "t.py:4"),
        ([standing(n, stands_at="t.py:4 in f") for n in range(2)], "t.py:4 in f"),
        ([standing(n, stands_at=f"t.py:{n} in f") for n in range(2)], None),
    ],
)
def test_the_place_is_that_of_the_culprits_if_it_is_the_same(standings, place):
    assert find_culprits(standings).place == place
