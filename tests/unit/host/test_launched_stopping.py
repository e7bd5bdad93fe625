"""Ending processes: with which signals, in which order, and never an unrelated one."""

from __future__ import annotations

from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM

from ddptop_runner.host.stopping import Step, plan

KILL = Step((SIGKILL,), None, 10.0)


def test_ranks_have_their_grace_while_their_launcher_is_paused():
    steps = plan({11: [], 12: []}, [10], 30.0)
    assert steps == [
        Step((SIGSTOP,), (10,)),
        Step((SIGTERM, SIGCONT), (11, 12)),
        Step((), (), 15.0, until=(11, 12)),
        Step((SIGCONT,), (10,), 15.0, until=(11, 12)),
        Step((SIGKILL,), (11, 12), 5.0, until=(11, 12)),
        Step((SIGTERM, SIGCONT), None, 5.0),
        KILL,
    ]


def test_one_process_that_is_rank_and_launcher_is_asked_once():
    steps = plan({10: []}, [], 30.0)
    assert steps[0] == Step((SIGTERM, SIGCONT), (10,))
    assert [step.wait_s for step in steps] == [0.0, 30.0, 5.0, 5.0, 10.0]


def test_lightning_traps_sigterm_and_ends_on_sigint():
    steps = plan({10: ["lightning"], 11: ["torch", "lightning"], 12: []}, [], 30.0)
    assert steps[:4] == [
        Step((SIGINT, SIGCONT), (10, 11)),
        Step((SIGTERM, SIGCONT), (12,)),
        Step((), (), 5.0, until=(10, 11, 12)),
        Step((SIGTERM,), (10, 11), 25.0, until=(10, 11, 12)),
    ]


def test_while_no_rank_is_known_everyone_has_the_grace():
    assert plan({}, [], 30.0) == [Step((SIGTERM, SIGCONT), None, 30.0), KILL]


def test_kill_asks_no_question():
    assert plan({11: []}, [10], 0.0) == [KILL]


def test_a_short_grace_is_not_made_longer():
    steps = plan({11: ["lightning"]}, [10], 1.0)
    killed = next(index for index, step in enumerate(steps) if SIGKILL in step.signals)
    assert sum(step.wait_s for step in steps[:killed]) == 1.0
