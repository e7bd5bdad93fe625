"""Which rank is to blame: the order of exits, victims, ranks that exit early, and missing ranks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.tables import table

from ddptop_runner.judge.causes.culprit import RankEnd, find
from ddptop_runner.model.diagnose import PythonException, RankExit


def end(
    rank: int, at_s: float, code: int | None = None, by_us: bool = False, **more: Any
) -> RankEnd:
    if "exception" in more:
        more["exception"] = PythonException(**more["exception"])
    return RankEnd(RankExit(rank, 1000 + rank, code, at_s, by_us), **more)


CASES = table(__file__, "cases")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_whom_to_blame(case):
    ends = [end(**one) for one in case["ends"]]
    for order in (ends, ends[::-1]):
        found = find(order)
        told = None
        if found is not None:
            victim = None if found.victim is None else found.victim.rank
            told = (found.end.rank, found.how, victim)
        expected = case.get("blamed")
        assert told == (None if expected is None else (*expected, None)[:3])
