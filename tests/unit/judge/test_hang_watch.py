"""The watch from update to update: quiet, suspected, hung, and what is none of these."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support.builders import make_spec
from tests.support.hang_ranks import Life, rank

from ddptop_runner.job.state import JobState
from ddptop_runner.job.trouble import TroubleWatch
from ddptop_runner.judge.hangs.verdict import SeenPause
from ddptop_runner.judge.hangs.watch import HangWatch
from ddptop_runner.judge.restarts.policy import History, record
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.events import HangSuspected

AUTO = {"timeout_s": None, "auto": True}


def one_sleeps(steps, **fields):
    """Rank 1 has not entered the collective in which the others wait."""
    entered = 3 * steps

    def ranks(stood_s):
        return [
            rank(n, steps, stood_s, at=(entered + 1, entered), phase="steps", cpu_s=50.0)
            if n != 1
            else rank(
                *(1, steps, stood_s),
                **{"at": (entered, entered), "phase": "steps", "cpu_s": 50.0, **fields},
            )
            for n in range(3)
        ]

    return ranks


def test_a_rank_that_sleeps_is_quiet_then_suspected_then_the_verdict():
    life = Life(HangWatch(20.0))
    ranks = one_sleeps(life.train(20), stands_at="train.py:4 in f")
    assert life.stand(ranks, 15) == (15.0, None, None)
    assert life.looked.quiet == {1: 15.0}  # not the ranks that wait for it
    assert life.looked.notes == {
        0: "waiting for rank 1 in a collective for 15 s",
        1: "15 s without a step (usually 0.1 s); last seen at train.py:4 in f",
        2: "waiting for rank 1 in a collective for 15 s",
    }
    why = "waiting for rank 1, last seen at train.py:4"
    assert life.looked.pause == SeenPause("no_step", 15.0, why, (1,), left_s=5.0)
    assert Life.stand(life, lambda s: ranks(15 + s), 60) == (1.0, 1.0, 6.0)
    assert life.looked.verdict is not None
    assert life.looked.verdict.ranks == (1,)


def test_off_still_reports_quiet_ranks():
    life = Life(HangWatch(None))
    assert life.stand(one_sleeps(life.train(20)), 2000) == (15.0, None, None)
    assert life.looked.pause is not None and life.looked.pause.state == "no_step"


PHASES = {
    # (fields of the busy rank, given seconds) -> its note after 100 s
    "evaluation": (
        lambda s: {"phase": "evaluation", "batches": 100 + int(s)},
        "evaluating for 100 s",
    ),
    "checkpoint": (
        lambda s: {"phase": "checkpoint", "written_bytes": int(s) * 10**6},
        "saving or loading a checkpoint for 100 s",
    ),
    "compile": (lambda s: {"phase": "compile", "cpu_s": 50 + s}, "compiling for 100 s"),
    "data": (lambda s: {"phase": "data"}, "waiting for data for 100 s"),
}
WORKS = ("evaluation", "checkpoint", "compile")
"""Phases above that show signs of activity."""


@pytest.mark.parametrize(
    ("name", "timeout_s"), [*((name, None) for name in PHASES), *((n, 10.0) for n in WORKS)]
)
def test_what_is_recognized_is_no_hang_and_shown_as_what_it_is(name, timeout_s):
    fields, note = PHASES[name]
    life = Life(HangWatch(timeout_s, auto=True))
    steps = life.train(20, (0, 1))
    at = 3 * steps

    def ranks(stood_s):
        busy = rank(0, steps, stood_s, at=(at, at), phase_s=stood_s, **fields(stood_s))
        return [busy, rank(1, steps, stood_s, at=(at + 1, at), phase="steps")]

    assert life.stand(ranks, 100) == (None, None, None)
    assert life.looked.notes == {0: note, 1: "waiting for rank 0 in a collective for 100 s"}
    quiet_s, _, verdict_s = life.stand(lambda s: ranks(100 + s), 1600)
    assert (quiet_s, verdict_s) == (None, None)


def test_paused_rank_and_those_waiting_for_it_are_not_hung():
    life = Life(HangWatch(10.0))
    paused = one_sleeps(life.train(20), paused=True)
    assert life.stand(paused, 300) == (None, None, None)
    assert life.looked.notes == {
        0: "waiting in a collective while rank 1 is paused",
        1: "paused by a signal",
        2: "waiting in a collective while rank 1 is paused",
    }
    assert life.stand(lambda s: one_sleeps(200)(300 + s), 60) == (None, 8.0, 11.0)


def test_a_gap_between_looks_adds_three_seconds_at_most():
    life = Life(HangWatch(30.0))
    ranks = one_sleeps(life.train(20))
    for second in range(1, 8):  # a supervisor that is repeatedly stopped for an hour
        assert life.look(ranks(3600.0 * second), after_s=3600.0).verdict is None
    for second in range(1, 3):
        looked = life.look(ranks(7 * 3600.0 + second))
    assert looked.suspicion is not None and looked.pause.stepless_s == 23.0


def test_unknown_progress_is_not_no_progress_and_is_told():
    life = Life(HangWatch(10.0))
    silent = lambda s: [rank(n, None, s) for n in range(2)]  # noqa: E731
    assert life.stand(silent, 400) == (None, None, None)
    note = "no reports from the probe: progress unknown"
    assert life.looked.notes == {0: note, 1: note}
    steps = life.train(20)
    half = lambda s: [*one_sleeps(steps)(s), rank(3, None, 400 + s)]  # noqa: E731
    assert life.stand(half, 400) == (15.0, None, None)


def test_collectives_are_progress_where_no_step_is_taken():
    life = Life(HangWatch(10.0))
    for second in range(1, 200):
        at = (second, second)
        looked = life.look(rank(n, 0, second, phase="start", at=at) for n in range(2))
        assert looked.verdict is None and looked.suspicion is None
    standing = lambda s: [  # noqa: E731
        rank(n, 0, 199 + s, phase="start", at=(200 - n, 199)) for n in range(2)
    ]
    quiet_s, _, verdict_s = life.stand(standing, 60)
    assert (quiet_s, verdict_s) == (None, 10.0)  # 10.5 s after the probe's message
    assert life.looked.verdict is not None and life.looked.verdict.ranks == (1,)


@pytest.mark.parametrize(("unheard_s", "verdict_s"), [(0.0, 11.0), (0.9, 10.0), (6.0, 10.0)])
def test_a_sign_of_life_is_as_old_as_the_message_that_reports_it(unheard_s, verdict_s):
    life = Life(HangWatch(10.0))
    steps = life.train(20, (0, 1))
    at = (3 * steps + 1, 3 * steps)
    life.look(rank(n, steps, 1.0, at=at, batches=20) for n in range(2))
    took = [rank(n, steps, 2.0, at=at, batches=21, unheard_s=unheard_s) for n in range(2)]
    assert life.look(took).verdict is None
    standing = lambda s: [rank(n, steps, 2 + s, at=at, batches=21) for n in range(2)]  # noqa: E731
    assert life.stand(standing, 60)[2] == verdict_s


def test_pauses_that_ended_well_are_allowed_five_times_over():
    life = Life(HangWatch(**AUTO))
    steps = life.train(20)
    at = 3 * steps
    busy = lambda s: [  # noqa: E731
        rank(n, steps, s, at=(at + (n != 1), at), cpu_s=50 + s) for n in range(3)
    ]
    assert life.stand(busy, 300)[2] is None
    life.look(rank(n, steps + 1, 0.1, at=(at + 1, at + 1)) for n in range(3))
    assert life.stand(one_sleeps(steps + 1, at=(at + 1, at + 1)), 2000)[2] == 1501.0


def test_an_attempt_that_was_ended_may_have_been_ended_too_early():
    life = Life(HangWatch(**AUTO))
    verdicts = []
    for _ in range(6):
        life.watch.begin_attempt()
        verdicts.append(life.stand(one_sleeps(life.train(20)), 3000)[2])
    assert verdicts == [181.0, 361.0, 721.0, 1441.0, 1441.0, 1441.0]


def test_restarted_supervisor_knows_the_limits_and_starts_the_clocks():
    life = Life(HangWatch(**AUTO))
    steps = life.train(20)
    life.stand(one_sleeps(steps), 200)
    again = Life(HangWatch(**AUTO))
    again.watch.recall(life.watch.remember())
    # twice the usual limit, because the first verdict may have been too early
    assert again.stand(lambda s: one_sleeps(steps)(200 + s), 600)[2] == 362.0


def test_what_a_rank_does_is_not_known_before_a_new_supervisor_has_heard_it():
    life = Life(HangWatch(30.0))
    steps = life.train(20, (0, 1))
    saving = lambda s: [  # noqa: E731
        rank(0, steps, s, phase="checkpoint", written_bytes=int(s) * 10**6),
        rank(1, steps, s),
    ]
    assert life.stand(saving, 100)[2] is None
    again = Life(HangWatch(30.0))
    again.watch.recall(life.watch.remember())
    overdue = lambda s: [rank(n, steps, 100 + s, unheard_s=None) for n in range(2)]  # noqa: E731
    assert again.stand(overdue, 6) == (None, None, None)
    assert again.stand(lambda s: saving(106 + s), 100)[2] is None
    never = Life(HangWatch(30.0))  # their interpreters do not respond
    assert never.stand(overdue, 60)[2] == 43.0


@pytest.mark.parametrize(
    ("hangs_before", "max_restarts", "verdict"),
    [(0, 3, "restart"), (0, 0, "failure"), (1, 3, "restart"), (2, 3, "failure")],
)
def test_what_follows_a_verdict_is_what_the_restart_policy_decides(
    hangs_before, max_restarts, verdict
):
    """A third hang at the same step is not restarted."""
    history = History()
    for attempt in range(hangs_before):
        history = record(history, AttemptOutcome(attempt, 200.0, 200, None, None, None, hung=True))
        history = replace(history, used=history.used + 1)
    state = JobState(phase="running", attempt=hangs_before, history=history)
    spec = make_spec(hang_timeout_s=None, hang_auto=True, max_restarts=max_restarts)
    watch = TroubleWatch(spec, SimpleNamespace(state=state), lambda fact: None)
    life = Life(watch.hangs)
    ranks = one_sleeps(life.train(20))
    life.stand(ranks, 14)
    watch.look(ranks(15.0), life.now_s + 1)
    assert watch.pause is not None and watch.pause.verdict == verdict
    assert watch.pause.verdict_at is not None
    watch.look(one_sleeps(201)(0.0), life.now_s + 2)
    assert watch.pause is None


def test_a_suspicion_records_the_reason_that_the_pause_shows():
    emitted: list[HangSuspected] = []
    log = SimpleNamespace(state=JobState(phase="running", attempt=0), emit=emitted.append)
    watch = TroubleWatch(make_spec(hang_timeout_s=40.0), log, lambda fact: None)
    life = Life(watch.hangs)
    ranks = one_sleeps(life.train(20))
    life.stand(ranks, 30)
    watch.look(ranks(31.0), life.now_s + 1)
    assert watch.pause is not None and watch.pause.reason
    assert [event.reason for event in emitted] == [watch.pause.reason]


def test_when_no_probe_is_heard_any_more_it_may_be_the_socket():
    life = Life(HangWatch(10.0))
    steps = life.train(20)
    busy = lambda s: [  # noqa: E731
        rank(n, steps, s, phase="steps", unheard_s=s, cpu_s=9 + s) for n in range(2)
    ]
    # suspected at half of the limit, and then unknown
    assert life.stand(lambda s: busy(30 + s), 600) == (None, None, None)
    assert life.looked.notes[0].startswith("the probe stopped reporting")
    life.look(rank(n, steps, 631.0, phase="steps", unheard_s=1.0, cpu_s=1e4) for n in range(2))
    idle = lambda s: [  # noqa: E731
        rank(n, steps, s, phase="steps", unheard_s=20 + s, cpu_s=1e4) for n in range(2)
    ]
    assert life.stand(lambda s: idle(630 + s), 90)[2] is not None
    life.look(rank(n, steps + 1, 0.0, phase="steps") for n in range(2))
    losing_workers = lambda s: [  # noqa: E731
        rank(n, steps + 1, s, phase="steps", unheard_s=20 + s, cpu_s=2e4 - s // 30)
        for n in range(2)
    ]
    assert life.stand(losing_workers, 300)[2] is None


def test_an_interval_is_learned_before_a_rank_is_called_quiet():
    life = Life(HangWatch(**AUTO))
    for step in range(1, 8):  # a step every 10 s
        for second in range(10):
            looked = life.look([rank(0, step, float(second))])
            assert not looked.quiet
    quiet_s, *_ = life.stand(lambda s: [rank(0, 7, 9 + s)], 60)
    assert quiet_s == 21.0  # 30 s after its last step: three times the usual
