"""Properties of the restart policy that always hold."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop_runner.judge.restarts import policy
from ddptop_runner.judge.restarts.policy import BACKOFF_CAP_S, RULES, AttemptOutcome, History
from ddptop_runner.model.diagnose import PythonException

SECONDS = st.sampled_from([0.5, 9.0, 59.0, 61.0, 599.0, 601.0, 1e5])
STEPS = st.sampled_from([0, 1, 2, 40, 41, 5000])
EXCEPTIONS = st.builds(
    PythonException,
    st.sampled_from(["ValueError", "ImportError", "RuntimeError"]),
    st.sampled_from(["", "NCCL error"]),
    st.sampled_from(["a.py:1 in f", "b.py:2 in g", None]),
)
OUTCOMES = st.builds(
    AttemptOutcome,
    attempt=st.just(0),
    lived_s=SECONDS,
    steps=st.none() | STEPS,
    exit_code=st.sampled_from([None, 0, 1, 2, 77]),
    signal=st.sampled_from([None, "SIGKILL", "SIGSEGV"]),
    exception=st.none() | EXCEPTIONS,
    hung=st.booleans(),
    bad_loss=st.booleans(),
    new_checkpoint=st.sampled_from([None, False, True]),
    global_step=st.none() | STEPS,
    kind=st.sampled_from([*RULES, "something new"]),
    checkpoint_step=st.none() | STEPS,
    startup_s=st.none() | SECONDS,
)
LIVES = st.lists(OUTCOMES, min_size=1, max_size=30)
"""How each attempt would end, as long as there are attempts."""


def run(lives, max_restarts, jitter=0.5):
    """The policy's decisions until it stops: [(history before, history after, decision)]."""
    history, answers = History(), []
    for attempt, outcome in enumerate(lives):
        before, history = (
            history,
            policy.record(history, msgspec.structs.replace(outcome, attempt=attempt)),
        )
        decision = policy.decide(history, max_restarts, jitter)
        answers.append((before, history, decision))
        if not decision.restart:
            break
        history = replace(history, used=history.used + 1)
    return answers


@given(LIVES, st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_without_new_progress_there_are_never_more_restarts_than_the_budget(lives, max_restarts):
    in_a_row = 0
    for _, history, decision in run(lives, max_restarts):
        if history.failed[-1].progress:
            in_a_row = 0
        in_a_row += decision.restart
        assert in_a_row <= max_restarts


@given(LIVES, st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_a_restart_never_follows_a_stop(lives, max_restarts):
    _, history, decision = run(lives, max_restarts)[-1]
    if decision.restart:
        return
    # asked again, and with a smaller budget, it decides the same
    assert not policy.decide(history, max_restarts, 0.5).restart
    assert not policy.decide(history, 0, 0.5).restart


@given(LIVES, st.integers(0, 5), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_waits_are_bounded_and_every_decision_has_a_reason(lives, max_restarts, jitter):
    for _, _, decision in run(lives, max_restarts, jitter):
        assert 0 <= decision.delay_s <= BACKOFF_CAP_S
        assert decision.reason.strip()
        assert "None" not in decision.reason
        assert decision.restart or decision.delay_s == 0


@given(LIVES, st.integers(0, 5), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_the_same_history_and_jitter_give_the_same_decision(lives, max_restarts, jitter):
    assert run(lives, max_restarts, jitter) == run(lives, max_restarts, jitter)


@given(LIVES, st.integers(0, 5), SECONDS)
@settings(max_examples=150, deadline=None)
def test_unknown_progress_is_never_counted_as_none(lives, max_restarts, lived_s):
    """An attempt of which nothing is known neither lengthens the next wait nor stops the job."""
    unknown = AttemptOutcome(99, 60.0 + lived_s, None, None, "SIGKILL", None)
    for _, history, decision in run(lives, max_restarts):
        if not decision.restart:
            continue
        history = policy.record(replace(history, used=history.used + 1), unknown)
        assert history.failed[-1].progress is None
        after = policy.decide(history, max_restarts, 1.0)
        assert after.delay_s == 0
        assert after.restart == (history.used < max_restarts)


@given(LIVES)
@settings(max_examples=100, deadline=None)
def test_the_budget_is_filled_by_progress_and_by_nothing_else(lives):
    for before, history, _ in run(lives, 9):
        if history.failed[-1].progress:
            assert history.used == 0
        else:
            assert history.used == before.used
