"""The restart policy as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.tables import table

from ddptop_runner.judge.restarts import policy
from ddptop_runner.judge.restarts.policy import (
    BACKOFF_CAP_S,
    AttemptOutcome,
    History,
    decide,
)
from ddptop_runner.model.diagnose import PythonException


def raised(type: str, message: str = "", place: str = "train.py:7 in main") -> PythonException:
    return PythonException(type, message, place)


def failed(**changes: object) -> AttemptOutcome:
    """An attempt whose rank exited with 1 after an hour, with unknown steps."""
    outcome = {
        "attempt": 0,
        "lived_s": 3600.0,
        "steps": None,
        "exit_code": 1,
        "signal": None,
        "exception": None,
    }
    return AttemptOutcome(**{**outcome, **changes})


def outcomes(case: dict[str, Any]) -> list[AttemptOutcome]:
    """Those of a case; an exit status of -1 is none, and `times` repeats the last."""
    found = []
    for one in case["failed"]:
        known = dict(one)
        times = known.pop("times", 1)
        if "exception" in known:
            known["exception"] = raised(**known["exception"])
        if known.get("exit_code") == -1:
            known["exit_code"] = None
        found += [failed(**known)] * times
    return found


def after(*outcomes: AttemptOutcome, used: int = 0) -> History:
    """The history of such failed attempts, each but the last followed by a restart."""
    history = History(used=used)
    for attempt, outcome in enumerate(outcomes):
        history = policy.record(history, msgspec.structs.replace(outcome, attempt=attempt))
        if attempt < len(outcomes) - 1:
            history = replace(history, used=history.used + 1)
    return history


KILLED_AT_START = failed(steps=0, exit_code=None, signal="SIGKILL", lived_s=3.0)
BUG = failed(steps=0, lived_s=9.0, exception=raised("ValueError", "bad shape"))

CASES = table(__file__, "cases")


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_decision(case):
    decision = decide(after(*outcomes(case)), case["max_restarts"], jitter=0.5)
    assert (decision.restart, decision.requeue) == (case["restart"], case.get("requeue"))
    assert case["reason"] in decision.reason
    if not decision.restart:
        assert decision.reason and decision.delay_s == 0.0


@pytest.mark.parametrize("case", table(__file__, "waits"))
def test_waits_grow_from_the_last_progress_up_to_the_cap(case):
    assert decide(after(*outcomes(case)), 9999, jitter=1.0).delay_s == case["delay_s"]


@pytest.mark.parametrize("in_vain", [1, 3, 6, 50])
def test_jitter_spreads_waits_and_never_passes_the_cap(in_vain):
    history = after(*[KILLED_AT_START] * in_vain)
    low, high = (decide(history, 99, jitter).delay_s for jitter in (0.0, 1.0))
    assert 0 < low < high <= BACKOFF_CAP_S


@pytest.mark.parametrize(
    ("outcome", "used", "restart"),
    [
        # raised at once, before any step: no restart loop
        (BUG, 0, False),
        # a script that takes no optimizer steps and ran for an hour
        (msgspec.structs.replace(BUG, lived_s=3600.0), 0, True),
        # not the job's first attempt, although a new supervisor remembers no other
        (BUG, 1, True),
    ],
)
def test_only_a_first_attempt_that_fails_soon_without_a_step_is_not_tried_again(
    outcome, used, restart
):
    assert decide(after(outcome, used=used), 3, 0.5).restart is restart


BUDGET = table(__file__, "budget")


@pytest.mark.parametrize("case", BUDGET.values(), ids=list(BUDGET))
def test_new_progress_and_only_that_refills_the_budget(case):
    history = after(*outcomes(case))
    assert (history.used, history.refilled) == (case["used"], case.get("refilled"))
