"""The restart policy as a table."""

from __future__ import annotations

import pytest

from ddptop_runner.diagnose import PythonException
from ddptop_runner.restarts.policy import BACKOFF_CAP_S, AttemptOutcome, Decision, decide


def raised(type_: str, message: str = "", place: str = "train.py:7 in main") -> PythonException:
    return PythonException(type_, message, place)


def failed(**changes: object) -> AttemptOutcome:
    """An attempt whose rank exited with 1 after an hour; nobody counted its steps."""
    outcome = {
        "attempt": 0,
        "lived_s": 3600.0,
        "steps": None,
        "exit_code": 1,
        "signal": None,
        "exception": None,
    }
    return AttemptOutcome(**{**outcome, **changes})


TRAINED = failed(steps=100, exception=raised("RuntimeError", "boom"))
KILLED = failed(steps=None, exit_code=None, signal="SIGKILL")
KILLED_AT_START = failed(steps=0, exit_code=None, signal="SIGKILL", lived_s=3.0)
USAGE = failed(steps=0, exit_code=2, lived_s=2.0)
IMPORT = failed(steps=0, lived_s=2.0, exception=raised("ModuleNotFoundError", "no module 'x'"))
BUG = failed(steps=0, lived_s=9.0, exception=raised("ValueError", "bad shape"))
OTHER_BUG = failed(steps=0, lived_s=9.0, exception=raised("ValueError", "bad shape", "data.py:1"))
NETWORK = failed(steps=0, lived_s=9.0, exception=raised("DistNetworkError", "port in use"))
HUNG = failed(steps=0, exit_code=None, hung=True)

CASES = {
    # (failed attempts, restarts left) -> (restart, requeue, words of the reason)
    "after steps it is worth another try": ([TRAINED], 3, True, True, "made progress"),
    "after steps the same exception twice may be the data": (
        [TRAINED, TRAINED],
        2,
        True,
        True,
        "made progress",
    ),
    "a kill says nothing of the script": ([KILLED], 3, True, True, ""),
    "a kill before the first step neither": ([KILLED_AT_START], 3, True, True, "without a step"),
    "a kill while it imports is no import error": (
        [failed(steps=0, exit_code=None, signal="SIGKILL", exception=raised("ImportError", "x"))],
        3,
        True,
        True,
        "1 in a row",
    ),
    "an empty budget ends it": ([TRAINED], 0, False, True, "no restarts are left"),
    "bad arguments stay bad": ([USAGE], 3, False, False, "arguments"),
    "also when the budget is empty": ([USAGE], 0, False, False, "arguments"),
    "exit 2 with an exception is no usage error": (
        [TRAINED, failed(steps=0, exit_code=2, exception=raised("OSError", "disk"))],
        2,
        True,
        True,
        "1 in a row",
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
        True,
        "before its first step",
    ),
    "but for the network it is": ([NETWORK], 3, True, True, "1 in a row"),
    "without a probe, at once counts as before the first step": (
        [failed(lived_s=5.0, exception=raised("ValueError", "bad"))],
        3,
        False,
        True,
        "before its first step",
    ),
    "without a probe, unknown progress is not zero progress": ([failed()], 3, True, True, ""),
    "a second attempt that raises elsewhere gets another": (
        [TRAINED, BUG],
        2,
        True,
        True,
        "1 in a row",
    ),
    "the same exception at the same place twice without a step": (
        [TRAINED, BUG, BUG],
        2,
        False,
        False,
        "same place twice",
    ),
    "the same network trouble twice too": (
        [NETWORK, NETWORK],
        2,
        False,
        True,
        "same place twice",
    ),
    "at another place it is another": ([TRAINED, BUG, OTHER_BUG], 2, True, True, "2 in a row"),
    "a hang is no fault of the arguments": ([HUNG], 3, True, True, "1 in a row"),
    "hang and hang again, as long as the budget lasts": ([HUNG, HUNG], 2, True, True, "2 in a row"),
    "a kill between two equal exceptions": ([BUG, KILLED_AT_START, BUG], 1, True, True, "3 in a"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_decision(case):
    outcomes, restarts_left, restart, requeue, words = case
    decision = decide(outcomes, restarts_left, jitter=0.5)
    assert (decision.restart, decision.requeue) == (restart, requeue)
    assert words in decision.reason
    if not restart:
        assert decision.reason and decision.delay_s == 0.0


@pytest.mark.parametrize(
    ("outcomes", "delay_s"),
    [
        ([TRAINED], 0.0),
        ([failed()], 0.0),
        ([KILLED_AT_START], 2.0),
        ([KILLED_AT_START] * 2, 4.0),
        ([KILLED_AT_START] * 5, 32.0),
        ([KILLED_AT_START] * 6, BACKOFF_CAP_S),
        ([KILLED_AT_START] * 2000, BACKOFF_CAP_S),
        ([KILLED_AT_START, TRAINED, KILLED_AT_START], 2.0),
    ],
)
def test_waits_grow_from_the_last_progress_up_to_the_cap(outcomes, delay_s):
    assert decide(outcomes, 9, jitter=1.0).delay_s == delay_s


@pytest.mark.parametrize("fruitless", [1, 3, 6, 50])
def test_jitter_spreads_waits_and_never_passes_the_cap(fruitless):
    low, high = (decide([KILLED_AT_START] * fruitless, 9, jitter).delay_s for jitter in (0.0, 1.0))
    assert 0 < low < high <= BACKOFF_CAP_S


def test_a_stop_can_be_requeued_unless_it_is_hopeless():
    assert Decision(restart=False, reason="").requeue is True


@pytest.mark.parametrize(
    ("outcome", "restarts_used", "restart"),
    [
        # raised at once, before any step: no restart loop
        (AttemptOutcome(0, 3.0, 0, 1, None, PythonException("ValueError", "x", "a:1")), 0, False),
        # a script that takes no optimizer steps and worked for an hour
        (AttemptOutcome(0, 3600.0, 0, 1, None, PythonException("ValueError", "x", "a:1")), 0, True),
        # not the job's first attempt, although a new supervisor remembers no other
        (AttemptOutcome(2, 3.0, 0, 1, None, PythonException("ValueError", "x", "a:1")), 1, True),
    ],
)
def test_only_a_first_attempt_that_fails_soon_without_a_step_is_not_tried_again(
    outcome, restarts_used, restart
):
    assert decide([outcome], 3, 0.5, restarts_used).restart is restart


def test_a_network_error_twice_ends_the_job_but_may_be_requeued():
    error = PythonException("DistBackendError", "NCCL error: unhandled", "a:1")
    outcomes = [AttemptOutcome(n, 5.0, 0, 1, None, error) for n in (0, 1)]
    decision = decide(outcomes, 3, 0.5, 1)
    assert (decision.restart, decision.requeue) == (False, True)
