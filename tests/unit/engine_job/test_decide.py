"""Decisions, one fact at a time; `test_machine` drives them through everything in between."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.support.builders import make_spec

from ddptop_runner.job.decide import decide
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import apply
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import HERE

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
CAUSE = Cause(kind="hang", summary="The job hung.")
OUTCOME = AttemptOutcome(0, 90.0, 9, None, None, None, hung=True)
AGENT = pt.AgentState(pid=7, listens=True)


def after(*events: ev.JobEvent, state: JobState | None = None) -> JobState:
    state = state or after(
        ev.Launched(attempt=0, target="train.py", nproc=2, at_s=1.0),
        ev.AttemptStarted(attempt=0, world=2, at_s=1.0),
        *(ev.RankStarted(attempt=0, rank=rank, pid=10 + rank) for rank in (0, 1)),
        ev.TrainingStarted(attempt=0, after_s=1.0),
        state=JobState(),
    )
    for event in events:
        state = apply(state, event, NOW)
    return state


def exited(rank: int, status: int | None) -> ev.RankExited:
    return ev.RankExited(attempt=0, rank=rank, pid=10 + rank, status=status, at_s=5.0)


def orders(state: JobState, fact: pt.Fact, **spec: object) -> list[pt.Message]:
    decision = decide(state, fact, 9.0, make_spec(**spec))
    return [one for one in decision if isinstance(one, pt.Message)]


def events(state: JobState, fact: pt.Fact, **spec: object) -> list[ev.JobEvent]:
    decision = decide(state, fact, 9.0, make_spec(**spec))
    return [one for one in decision if isinstance(one, ev.EventBase)]


HANGS = (
    ev.HangJudged(attempt=0, cause=CAUSE, outcome=OUTCOME),
    ev.RestartDecided(attempt=0, used=1, limit=3, delay_s=9.0, at_s=18.0),
)


def test_a_job_that_finishes_while_the_restart_of_a_hang_waits_has_finished():
    state = after(*HANGS, exited(0, 0), exited(1, 0))
    assert orders(state, pt.AgentExited(pid=7, agent=pt.AgentState(status=0))) == [pt.Conclude()]


def test_a_new_agent_that_died_before_its_attempt_is_judged_by_the_next_supervisor_too():
    state = after(
        exited(0, -15),
        exited(1, -15),
        ev.RestartRequested(attempt=0, used=0, limit=3),
        ev.NodesChosen(attempt=1, nodes=[HERE], at_s=2.0),
        ev.RestartPrepared(attempt=0, wanted=ev.WantedAgent(attempt=1)),
        ev.AgentConnected(attempt=0, pid=8),
    )
    assert state.restart is not None and state.node().wanted_agent is not None
    killed = Cause(kind="launch", summary="The agent was killed.")
    fact = pt.SupervisorStarted(agent=pt.AgentState(cause=killed))
    after_all = after(*events(state, fact), state=state)
    assert orders(state, fact) == [pt.JudgeAttempt()]
    assert after_all.attempt == 1 and after_all.node().cause == killed


@pytest.mark.parametrize("kind", ["cuda_oom", "exception"])
def test_one_attempt_after_gpu_memory_ran_out_records_what_holds_it(kind):
    cause, ended = Cause(kind=kind, summary="It failed."), pt.LeftoversEnded(question=4)
    state = after(
        ev.FailureJudged(attempt=0, cause=cause, outcome=OUTCOME),
        ev.RestartDecided(attempt=0, used=1, limit=3, delay_s=9.0, at_s=18.0),
    )
    assert orders(state, ended) == [pt.AnswerAgent(question=4, memory_snapshot=kind == "cuda_oom")]
    state = after(ev.AttemptStarted(attempt=1, world=2, at_s=20.0), state=state)
    assert orders(state, ended) == [pt.AnswerAgent(question=4)]
    assert orders(state, ended, memory_snapshot=True)[0].memory_snapshot, "in each, if asked"


def test_ranks_that_fail_meanwhile_wait_for_the_restart_as_decided():
    state = after(*HANGS, exited(0, 1), exited(1, -15))
    assert orders(state, pt.AgentExited(pid=7, agent=pt.AgentState(status=1))) == []
    fact = pt.SupervisorStarted(agent=pt.AgentState())
    assert orders(state, fact) == [pt.WaitForRestart(at_s=18.0)]


def test_evidence_of_orphans_is_kept_before_any_signal_and_never_after():
    state = after(exited(0, 1))
    assert orders(state, pt.OrphanExited()) == [pt.KeepEvidence()]
    state = after(ev.RanksEnding(attempt=0, at_s=6.0), state=state)
    assert orders(state, pt.OrphanExited()) == [pt.EndLeftovers()]


def test_ranks_that_an_earlier_supervisor_did_not_record_are_recorded():
    state = after(
        ev.AttemptStarted(attempt=0, world=2, at_s=1.0),
        ev.RankStarted(attempt=0, rank=0, pid=10),
        state=JobState(attempt=0),
    )
    workers = [pt.Worker(rank=rank, pid=10 + rank) for rank in (0, 1)]
    started = ev.RankStarted(attempt=0, rank=1, pid=11)
    assert events(state, pt.GroupStarted(attempt=0, workers=workers)) == [started]


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_device_that_comes_back_takes_a_new_agent(comes_back):
    lost = ev.SetAside(device=Device(index=1, uuid="GPU-1"), reason="lost")
    state = after(
        ev.RestartDecided(attempt=0, used=1, limit=3, delay_s=9.0, at_s=18.0),
        ev.RestartPrepared(attempt=0, aside=[lost]),
        ev.AttemptStarted(attempt=1, world=1, at_s=20.0),
        ev.RankStarted(attempt=1, rank=0, pid=20),
    )
    back = [lost.device] if comes_back else []
    follows = orders(state, pt.RestartAsked(agent=AGENT, devices_back=back))
    again = pt.TellAgent(order="restart_group")
    replaced = pt.EndLeftovers(with_agent=True, await_memory=True)
    assert follows == [pt.InterruptRanks(), replaced if comes_back else again]


def test_ranks_that_fail_while_a_bad_loss_is_judged_end_the_job_as_asked():
    state = after(ev.TroubleFound(attempt=0, reason="nan", stops=True), exited(0, 1), exited(1, 1))
    judged = pt.AttemptJudged(attempt=0, cause=CAUSE, outcome=OUTCOME, jitter=0.0)
    ended = events(state, judged, on_nan="stop")[-1]
    assert isinstance(ended, ev.EndDecided) and ended.ending.requeue is False
    assert orders(state, judged, on_nan="stop") == [pt.Conclude()]


def test_an_agent_that_is_killed_once_it_has_begun_the_next_attempt_is_judged_for_that():
    state = after(
        ev.RestartRequested(attempt=0, used=0, limit=3),
        ev.NodesChosen(attempt=1, nodes=[HERE], at_s=2.0),
        ev.RestartPrepared(attempt=0, sent=True),
        exited(0, -15),
        exited(1, -15),
    )
    cause = Cause(kind="launch", signal="SIGKILL", summary="The agent was killed.")
    killed = pt.AgentExited(pid=7, agent=pt.AgentState(status=-9, attempt=1, cause=cause))
    assert [type(one) for one in events(state, killed)] == [ev.AttemptOpened, ev.NodeFailed]
    state = after(*events(state, killed), state=state)
    assert state.attempt == 1 and state.node().cause == cause


@pytest.mark.parametrize(
    "fact",
    [
        pt.AgentAsked(question=3, kind="ended"),
        pt.AgentAsked(question=3, kind="torn_down"),
        pt.EvidenceKept(attempt=0, question=3),
    ],
)
def test_an_agent_that_asks_after_the_end_is_answered_so_that_it_exits(fact):
    state = after(ev.JobEnded(attempt=0, state="stopped"))
    [answer] = orders(state, fact)
    assert isinstance(answer, pt.AnswerAgent) and answer.question == 3 and not answer.restart


def test_a_rank_that_had_failed_before_the_others_were_ended_was_not_ended_by_ddptop():
    state = after(ev.RanksEnding(attempt=0, at_s=2.0, failed=[0]))
    exits = [
        pt.ProcessExited(attempt=0, rank=rank, pid=10 + rank, status=-9, at_s=5.0)
        for rank in (0, 1)
    ]
    assert [events(state, one)[0].by_us for one in exits] == [False, True]


def test_a_user_who_does_not_wait_for_a_restart_gets_its_cost_back():
    [hurried] = events(after(*HANGS), pt.RestartAsked(agent=AGENT))
    assert isinstance(hurried, ev.RestartRequested) and hurried.used == 0
