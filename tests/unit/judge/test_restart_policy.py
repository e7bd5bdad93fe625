"""The restart policy as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop_runner.judge.restarts import policy
from ddptop_runner.judge.restarts.policy import (
    BACKOFF_CAP_S,
    RULES,
    AttemptOutcome,
    Decision,
    History,
    decide,
)
from ddptop_runner.model.diagnose import PythonException


def raised(type_: str, message: str = "", place: str = "train.py:7 in main") -> PythonException:
    return PythonException(type_, message, place)


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


def after(*outcomes: AttemptOutcome, used: int = 0) -> History:
    """The history of such failed attempts, each but the last followed by a restart."""
    history = History(used=used)
    for attempt, outcome in enumerate(outcomes):
        history = policy.record(history, replace(outcome, attempt=attempt))
        if attempt < len(outcomes) - 1:
            history = replace(history, used=history.used + 1)
    return history


BOOM = raised("RuntimeError", "boom")
TRAINED = failed(steps=100, exception=BOOM)
TRAINED_ON = failed(steps=250, exception=BOOM)
SHORT = failed(steps=40, lived_s=9.0, exit_code=None, signal="SIGKILL")
KILLED = failed(steps=None, exit_code=None, signal="SIGKILL")
KILLED_AT_START = failed(steps=0, exit_code=None, signal="SIGKILL", lived_s=3.0)
USAGE = failed(steps=0, exit_code=2, lived_s=2.0)
IMPORT = failed(steps=0, lived_s=2.0, exception=raised("ModuleNotFoundError", "no module 'x'"))
BUG = failed(steps=0, lived_s=9.0, exception=raised("ValueError", "bad shape"))
OTHER_BUG = failed(steps=0, lived_s=9.0, exception=raised("ValueError", "bad shape", "data.py:1"))
NETWORK = failed(steps=0, lived_s=9.0, exception=raised("DistNetworkError", "port in use"))
HUNG = failed(steps=0, exit_code=None, hung=True)
SAVED = failed(steps=500, exit_code=None, signal="SIGKILL", new_checkpoint=True)
UNSAVED = failed(steps=60, exit_code=None, signal="SIGKILL", new_checkpoint=False)
OOM = failed(steps=30, kind="cuda_oom", lived_s=20.0)
HOST_OOM = failed(steps=30, kind="host_oom", lived_s=20.0, exit_code=None, signal="SIGKILL")
NAN = failed(steps=70, kind="nan", exit_code=None, bad_loss=True, lived_s=20.0)
LEFT = failed(steps=12, kind="early_exit", exit_code=0, lived_s=20.0)
CRASH = failed(steps=33, kind="signal", exit_code=None, signal="SIGSEGV", lived_s=20.0)

CASES = {
    # (failed attempts, max restarts) -> (restart, requeue, words of the reason)
    "after an hour of steps it is worth another try": (
        [TRAINED],
        3,
        True,
        True,
        "made progress (100 steps in attempt 0)",
    ),
    "the same exception at another step may be the data": (
        [TRAINED, TRAINED_ON],
        3,
        True,
        True,
        "made progress",
    ),
    "at the same step it will come again": (
        [TRAINED, TRAINED],
        3,
        False,
        False,
        "RuntimeError raised at the same line twice without further progress",
    ),
    "a kill says nothing of the script": ([KILLED], 3, True, True, "first failure"),
    "a kill before the first step neither": ([KILLED_AT_START], 3, True, True, "without a step"),
    "a kill while it imports is no import error": (
        [failed(steps=0, exit_code=None, signal="SIGKILL", exception=raised("ImportError", "x"))],
        3,
        True,
        True,
        "1 attempt without",
    ),
    "an empty budget ends it": ([KILLED], 0, False, True, "no restarts left"),
    "and says what it was spent on": (
        [SHORT] * 4,
        3,
        False,
        True,
        "no restarts left: 3 restarts without further progress",
    ),
    "bad arguments stay bad": ([USAGE], 3, False, False, "arguments"),
    "also when there is no budget": ([USAGE], 0, False, False, "arguments"),
    "exit 2 with an exception is no usage error": (
        [TRAINED, failed(steps=0, exit_code=2, exception=raised("OSError", "disk"))],
        3,
        True,
        True,
        "1 attempt without",
    ),
    "exit 2 after steps is no usage error": ([failed(steps=9, exit_code=2)], 3, True, True, ""),
    "exit 2 after an hour without a probe neither": ([failed(exit_code=2)], 3, True, True, ""),
    "exit 2 at once without a probe is": (
        [failed(exit_code=2, lived_s=2.0)],
        3,
        False,
        False,
        "arguments",
    ),
    "an import error stays": ([IMPORT], 3, False, False, "ModuleNotFoundError"),
    "an import error after steps may be a file system's": (
        [failed(steps=5, exception=raised("ImportError", "libx.so"))],
        3,
        True,
        True,
        "made progress",
    ),
    "a script that raises before its first step is not tried again": (
        [BUG],
        3,
        False,
        None,
        "before its first step",
    ),
    "but for the network it is": ([NETWORK], 3, True, True, "1 attempt without"),
    "and as long as the budget lasts": ([NETWORK] * 3, 3, True, True, "3 attempts in a row"),
    "without a probe, at once counts as before the first step": (
        [failed(lived_s=5.0, exception=raised("ValueError", "bad"))],
        3,
        False,
        None,
        "before its first step",
    ),
    "without a probe, unknown progress is not zero progress": ([failed()], 3, True, True, ""),
    "nor is it progress": ([failed()] * 4, 3, False, True, "no restarts left"),
    "a second attempt that raises elsewhere gets another": (
        [TRAINED, BUG],
        3,
        True,
        True,
        "1 attempt without",
    ),
    "the same exception at the same place twice without a step": (
        [TRAINED, BUG, BUG],
        3,
        False,
        False,
        "same line twice",
    ),
    "at another place it is another": (
        [TRAINED, BUG, OTHER_BUG],
        3,
        True,
        True,
        "2 attempts in a row",
    ),
    "a kill between two equal exceptions": (
        [BUG, KILLED_AT_START, BUG],
        3,
        True,
        True,
        "3 attempts in a",
    ),
    "a hang is no fault of the arguments": ([HUNG], 3, True, True, "1 attempt without"),
    "a hang twice at the same step may be the network": (
        [HUNG] * 2,
        3,
        True,
        True,
        "2 attempts in a row",
    ),
    "three times it is not": ([HUNG] * 3, 5, False, True, "a hang at the same step three times"),
    "a checkpoint is progress": ([SAVED], 3, True, True, "a checkpoint in attempt 0"),
    "an attempt that did not come to its checkpoint is in vain": (
        [SAVED, UNSAVED],
        3,
        True,
        True,
        "1 attempt without further progress",
    ),
    "memory of the device gone": ([OOM], 3, True, True, "first failure; waiting"),
    "twice at the same step": ([OOM, OOM], 3, False, False, "same step twice"),
    "at another step it may be the data": ([OOM, replace(OOM, steps=80)], 3, True, True, ""),
    "memory of the host gone once": ([HOST_OOM], 3, True, True, "waiting"),
    "twice, where another machine may have more": (
        [replace(HOST_OOM, steps=0)] * 2,
        3,
        False,
        True,
        "out of host memory twice",
    ),
    "a loss gone bad at the same step": (
        [NAN, NAN],
        3,
        False,
        False,
        "non-finite loss at the same step",
    ),
    "a loss gone bad later": ([NAN, replace(NAN, steps=99)], 3, True, True, ""),
    "a rank that leaves at the same step": ([LEFT, LEFT], 3, False, False, "exited early"),
    "a crash at the same step twice": ([CRASH] * 2, 3, True, True, ""),
    "three times": ([CRASH] * 3, 5, False, True, "SIGSEGV at the same step three times"),
    "an exit status three times at the same step": (
        [failed(steps=7, exit_code=9, lived_s=20.0)] * 3,
        5,
        False,
        True,
        "exit status 9 at the same step three times",
    ),
    "a kind that is not known here": ([failed(kind="comet", steps=3)], 3, True, True, ""),
    "no rank could be started": ([failed(kind="launch")], 3, False, False, "no rank"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_decision(case):
    outcomes, max_restarts, restart, requeue, words = case
    decision = decide(after(*outcomes), max_restarts, jitter=0.5)
    assert (decision.restart, decision.requeue) == (restart, requeue)
    assert words in decision.reason
    if not restart:
        assert decision.reason and decision.delay_s == 0.0


@pytest.mark.parametrize(
    ("outcomes", "delay_s"),
    [
        ([TRAINED], 0.0),
        ([failed()], 0.0),
        ([SHORT] * 5, 0.0),
        ([KILLED_AT_START], 2.0),
        ([KILLED_AT_START] * 2, 4.0),
        ([KILLED_AT_START] * 5, 32.0),
        ([KILLED_AT_START] * 6, BACKOFF_CAP_S),
        ([KILLED_AT_START] * 2000, BACKOFF_CAP_S),
        ([KILLED_AT_START, TRAINED, KILLED_AT_START], 2.0),
        # an attempt that had begun to train is followed at once, the first time
        ([SAVED, UNSAVED], 0.0),
        ([SAVED, UNSAVED, UNSAVED], 2.0),
        # a hang has already waited for its limit
        ([replace(HUNG, steps=50, new_checkpoint=True)], 0.0),
        # memory that others may still hold is always waited for
        ([OOM], 2.0),
    ],
)
def test_waits_grow_from_the_last_progress_up_to_the_cap(outcomes, delay_s):
    assert decide(after(*outcomes), 9999, jitter=1.0).delay_s == delay_s


@pytest.mark.parametrize("in_vain", [1, 3, 6, 50])
def test_jitter_spreads_waits_and_never_passes_the_cap(in_vain):
    history = after(*[KILLED_AT_START] * in_vain)
    low, high = (decide(history, 99, jitter).delay_s for jitter in (0.0, 1.0))
    assert 0 < low < high <= BACKOFF_CAP_S


def test_a_stop_can_be_requeued_unless_it_is_hopeless():
    assert Decision(restart=False, reason="").requeue is True


@pytest.mark.parametrize(
    ("outcome", "used", "restart"),
    [
        # raised at once, before any step: no restart loop
        (BUG, 0, False),
        # a script that takes no optimizer steps and ran for an hour
        (replace(BUG, lived_s=3600.0), 0, True),
        # not the job's first attempt, although a new supervisor remembers no other
        (BUG, 1, True),
    ],
)
def test_only_a_first_attempt_that_fails_soon_without_a_step_is_not_tried_again(
    outcome, used, restart
):
    assert decide(after(outcome, used=used), 3, 0.5).restart is restart


BUDGET = {
    # (failed attempts) -> (restarts used before the last decision, what refilled them)
    "a checkpoint refills": ([SHORT, SHORT, SAVED], 0, "a checkpoint in attempt 2"),
    "a checkpoint no further than the last does not": (
        [
            replace(SAVED, checkpoint_step=40),
            replace(SAVED, checkpoint_step=40, steps=90),
            replace(SAVED, checkpoint_step=40, steps=200),
        ],
        2,
        None,
    ),
    "a step that no attempt had reached refills": (
        [replace(SHORT, global_step=120), replace(SHORT, global_step=130)],
        0,
        "step 130",
    ),
    "the same step again does not": ([replace(SHORT, global_step=120)] * 3, 2, None),
    "where nothing tells, an attempt that lived long refills": (
        [SHORT, failed(steps=5000, exit_code=None, signal="SIGKILL")],
        0,
        "5000 steps in attempt 1",
    ),
    "but not one that had just come up": (
        [SHORT, failed(steps=3, lived_s=400.0, startup_s=390.0, signal="SIGKILL")],
        1,
        None,
    ),
    "nor a short one": ([SHORT, SHORT, SHORT], 2, None),
    "nor one of which nothing is known": ([KILLED, KILLED, KILLED], 2, None),
}


@pytest.mark.parametrize("case", BUDGET.values(), ids=list(BUDGET))
def test_new_progress_and_only_that_refills_the_budget(case):
    outcomes, used, refilled = case
    history = after(*outcomes)
    assert (history.used, history.refilled) == (used, refilled)


def test_a_script_that_saves_and_never_resumes_does_not_refill_for_ever():
    same = replace(TRAINED, new_checkpoint=True)
    history = after(same, same)
    assert history.used == 1
    assert decide(history, 3, 0.5) == Decision(
        restart=False,
        reason="RuntimeError raised at the same line twice without further progress",
        requeue=False,
    )


def test_every_stopping_rule_explains_what_happened():
    assert all(rule.again for rule in RULES.values() if rule.tries is not None)
