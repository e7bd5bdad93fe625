"""Which ranks the others wait for, as a table."""

from __future__ import annotations

import pytest
from tests.support.hang_ranks import rank, standing
from tests.support.tables import table

from ddptop_runner.judge.hangs.verdict import find_culprits

WAITS = {"doing": "collective", "at": (9, 8)}

CASES = table(__file__, "cases")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_culprit(case):
    alive = [standing(**one) for one in case["alive"]]
    found = find_culprits(alive, [rank(**one) for one in case["ended"]])
    ranks, proven, words = case["expected"]
    assert (list(found.ranks), found.proven) == (ranks, proven)
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
