"""The hang verdict as a table: the limits, and when all of them are exceeded."""

from __future__ import annotations

import pytest
from tests.support.hang_ranks import standing
from tests.support.tables import table

from ddptop_runner.judge.hangs.verdict import (
    ASKED_START_FLOOR_S,
    FLOORS_S,
    PROVEN_BUSY_S,
    PROVEN_IDLE_S,
    UNPROVEN_BUSY_S,
    UNPROVEN_IDLE_S,
    Limits,
    allowed_idle_s,
    judge,
)

AUTO = Limits(None, {})
ASKED = Limits(60.0, {})

ALLOWED = {
    # (rules, doing, proven, busy) -> idle seconds
    "asked: steps": (ASKED, "steps", False, True, 60.0),
    "asked: a collective": (ASKED, "collective", False, None, 60.0),
    "asked: the start takes minutes": (ASKED, "start", False, False, ASKED_START_FLOOR_S),
    "asked: but not where others wait": (ASKED, "start", True, False, 60.0),
    "asked: a process's end": (ASKED, "end", False, None, 60.0),
    "asked: but not where others wait for it": (ASKED, "end", True, None, 60.0),
    "asked: an evaluation": (ASKED, "evaluation", True, False, 60.0),
    "asked: waiting for data": (ASKED, "data", True, None, 60.0),
    "asked: longer than the floor": (Limits(9000.0, {}), "checkpoint", True, False, 9000.0),
    "asked: what was learned changes nothing": (
        Limits(60.0, {"steps": 500.0}),
        *("steps", False, False, 60.0),
    ),
    "learned: others wait for an idle rank": (AUTO, "steps", True, False, PROVEN_IDLE_S),
    "learned: others wait for a busy one": (AUTO, "steps", True, True, PROVEN_BUSY_S),
    "learned: whether it is busy is unknown": (AUTO, "steps", True, None, PROVEN_BUSY_S),
    "learned: nobody waits, idle": (AUTO, "steps", False, False, UNPROVEN_IDLE_S),
    "learned: nobody waits, busy": (AUTO, "steps", False, True, UNPROVEN_BUSY_S),
    "learned: all wait": (AUTO, "collective", False, True, UNPROVEN_IDLE_S),
    "learned: the end": (AUTO, "end", False, False, FLOORS_S["end"]),
    "learned: others wait for one that ends": (AUTO, "end", True, True, PROVEN_IDLE_S),
    "learned: waiting for data": (AUTO, "data", True, False, FLOORS_S["data"]),
    "learned: the start": (AUTO, "start", True, False, FLOORS_S["start"]),
    "learned: five times the longest": (
        Limits(None, {"steps": 500.0}),
        *("steps", True, False, 2500.0),
    ),
    "learned: of that phase alone": (
        Limits(None, {"data": 5000.0}),
        *("steps", True, False, PROVEN_IDLE_S),
    ),
    "learned: more patience after a verdict": (
        Limits(None, {}, patience=2.0),
        *("steps", True, False, 2 * PROVEN_IDLE_S),
    ),
}


@pytest.mark.parametrize("case", ALLOWED.values(), ids=list(ALLOWED))
def test_what_is_allowed(case):
    rules, doing, proven, busy, idle_s = case
    assert allowed_idle_s(rules, doing, proven=proven, busy=busy) == idle_s


BEHIND = [standing(0, 40, 61), standing(1, 39, 62), standing(2, 40, 61)]

CASES = table(__file__, "cases")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_verdict(case):
    rules = Limits(case["rules"].get("asked_s"), {})
    judgment = judge([standing(**one) for one in case["ranks"]], [], rules)
    found = list(judgment.verdict().ranks) if judgment.used > 1 else None
    assert found == case.get("expected")


def test_the_message_names_who_is_behind_and_what_was_allowed():
    found = judge(BEHIND, [], ASKED).verdict()
    assert found.message() == (
        "no rank made progress for 61 s (limit: 60 s); "
        "rank 1 is stuck at step 39; the others are at step 40"
    )
