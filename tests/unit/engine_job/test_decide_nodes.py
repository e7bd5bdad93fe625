"""What the head of a job on several nodes decides for single facts."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shlex
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.builders import make_snapshot, make_spec
from tests.support.virtual_time import VirtualLoop

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import ControlError
from ddptop_runner.job.decide import SHRINK_AFTER_S, begin_job, decide
from ddptop_runner.job.event_log import as_row
from ddptop_runner.job.failure import hang_without
from ddptop_runner.job.state import JobState, away_for_long, hosts_of_ranks
from ddptop_runner.job.transition import apply
from ddptop_runner.judge.hangs.verdict import RankProgress
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import Cause, Checkpoint, RankSample
from ddptop_runner.model.spec import NodeSpec, Placement
from ddptop_runner.model.words import HERE
from ddptop_runner.node import head as head_module
from ddptop_runner.node.alerts import LastResort
from ddptop_runner.node.engine import until
from ddptop_runner.node.head import Head
from ddptop_runner.node.links import LinkError, NodeLink
from ddptop_runner.node.remote_nodes import MOST_REPEATED, RemoteNodes, Reported

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


class Job:
    """The state of a job on a few nodes, and the latest orders."""

    def __init__(self, count: int = 2, least: int = 1) -> None:
        nodes = [
            NodeSpec(
                host=f"n{number}",
                address="127.0.0.1",
                nproc=1,
                python="python",
                command=["ddptop-node"],
                ports=[1, 2],
            )
            for number in range(count)
        ]
        self.nodes = nodes
        placement = Placement(by="pipe", nodes=nodes, min_nodes=least)
        self.spec = make_spec(nproc=count, placement=placement)
        self.state = JobState()
        self.facts: list[pt.Fact] = []
        self._do([ev.Launched(attempt=0, target="t.py", nproc=2, at_s=0.0)])
        self.begun = self._do(begin_job(0, 0.0, self.spec))

    def _do(self, decision: Any) -> list[pt.Order]:
        for one in decision:
            if isinstance(one, ev.EventBase):
                self.state = apply(self.state, one, NOW)
        return [one for one in decision if not isinstance(one, ev.EventBase)]

    def take(self, fact: pt.Fact, now_s: float = 1.0) -> list[pt.Order]:
        """The orders that follow from a fact."""
        self.facts.append(fact)
        return self._do(decide(self.state, fact, now_s, self.spec))

    def start(self, number: int) -> list[pt.Order]:
        """The node's rank starts in the next attempt, or the current one."""
        pending = self.state.restart
        attempt = self.state.attempt if pending is None else pending.next_attempt
        host = f"n{number}"
        names = [one.host for one in self.nodes]
        if pending is not None and pending.nodes:
            names = [one for one in names if one in pending.nodes]
        elif pending is None:
            names = [one for one in names if self.state.nodes[one].takes_part]
        rank = names.index(host)
        workers = [pt.Worker(rank=rank, pid=100 + rank)]
        return self.take(pt.GroupStarted(node=host, attempt=attempt or 0, workers=workers))

    def exit(self, number: int, status: int = 0) -> list[pt.Order]:
        """That node's rank exits; returns the orders that follow."""
        return self.take(exited(number, status))

    def finish(self, number: int) -> list[pt.Order]:
        """That node's rank exits with 0, and its agent too; returns the orders that follow."""
        self.exit(number)
        return self.take(agent_exited(number))

    def run(self) -> None:
        """Each node starts its rank."""
        pending = self.state.restart
        assert pending is not None
        for name in pending.nodes:
            self.start(int(name[1:]))


def exited(number: int, status: int = 0, attempt: int = 0) -> pt.ProcessExited:
    """The exit of a node's only rank."""
    return pt.ProcessExited(
        node=f"n{number}", attempt=attempt, rank=number, pid=100 + number, status=status, at_s=2.0
    )


def agent_exited(number: int, status: int = 0, cause: Cause | None = None) -> pt.AgentExited:
    """The exit of a node's agent."""
    now = pt.AgentState(status=status, attempt=0, cause=cause)
    return pt.AgentExited(node=f"n{number}", pid=7, agent=now)


def torn_down(number: int, attempt: int = 0) -> pt.AgentAsked:
    """No rank of a node is alive any more."""
    return pt.AgentAsked(node=f"n{number}", question=1, kind="torn_down", attempt=attempt)


def test_a_head_that_died_before_the_end_was_recorded_records_it():
    job = Job()
    job.run()
    for rank in range(2):
        job.finish(rank)
    left = replace(job.state, ending=None)  # by a head that died in between
    assert decide(left, pt.SupervisorStarted(agent=pt.AgentState()), 1.0, job.spec)[-1:] == [
        pt.Conclude()
    ]


def test_a_node_that_fails_without_a_rank_has_all_nodes_judged():
    job = Job()
    cause = Cause(kind="signal", summary="The agent was killed.")
    killed = agent_exited(0, -9, cause=cause)
    assert job.take(killed) == [pt.JudgeAttempt()]
    assert job.state.node("n0").cause == cause


@pytest.mark.parametrize("order", [["ends", "breaks"], ["breaks", "ends"], ["breaks", "head"]])
def test_a_node_away_for_good_does_not_keep_a_job_that_has_finished(order):
    job = Job()
    job.run()
    happens = {
        "breaks": lambda: job.take(pt.LinkBroken(node="n1", why="no route"), now_s=10.0),
        "ends": lambda: job.finish(0),
        "head": lambda: job.finish(0) and job.take(pt.SupervisorStarted(agent=pt.AgentState())),
    }
    orders = [happens[one]() for one in order]
    assert orders[-1] == [pt.AwaitNodes(seconds=300.0)]
    early = job.take(pt.NodesDue(attempt=0), now_s=300.0)
    assert early == [pt.AwaitNodes(seconds=10.0)]
    assert job.take(pt.NodesDue(attempt=0), now_s=310.0) == [pt.EndRanks(grace_s=10.0)]
    job.take(pt.NothingLeft())
    assert job.state.phase == "failed" and job.state.ending.requeue
    assert job.state.cause is not None and job.state.cause.kind == "node"
    assert "n1 cannot be reached" in job.state.cause.summary


@pytest.mark.parametrize("new_head", [False, True])
def test_an_agent_that_waits_for_one_that_was_killed_does_not_keep_the_job(new_head):
    job = Job()
    job.run()
    job.finish(1)
    orders = job.exit(0)
    if new_head:
        orders = job.take(pt.SupervisorStarted(agent=pt.AgentState()))
    assert orders == [pt.AwaitNodes(seconds=30.0)]
    assert job.take(pt.NodesDue(attempt=0), now_s=40.0) == [pt.Conclude()]
    job.take(pt.NothingLeft())
    assert job.state.phase == "finished"


def test_nodes_that_all_train_on_unseen_are_waited_for():
    job = Job()
    job.run()
    for node in ("n0", "n1"):
        job.take(pt.LinkBroken(node=node, why="no route"))
    assert job.take(pt.NodesDue(attempt=0), now_s=9000.0) == []
    job.take(pt.LinkMade(node="n1"))
    assert job.finish(1) == [pt.AwaitNodes(seconds=300.0)]


STARTED = pt.GroupStarted(node="n0", attempt=0, workers=[pt.Worker(rank=0, pid=100)])
KILLED = exited(0, -9)
FAILED = torn_down(0)
CAUSE = Cause(kind="signal", summary="Rank 0 was killed.")
UNREACHABLE = pt.LinkBroken(node="n1", why="no route")
VERDICT = pt.AttemptJudged(attempt=0, cause=CAUSE, outcome=None, jitter=0.0)


@pytest.mark.parametrize(
    "before",
    [
        [STARTED],
        [KILLED],
        [KILLED, FAILED],
        [exited(0), agent_exited(0, 0)],
        [UNREACHABLE],
    ],
    ids=["started", "exited", "judged", "ended", "broken"],
)
def test_what_is_known_already_changes_nothing(before):
    job = Job()
    job.run()
    for fact in before:
        job.take(fact)
    assert decide(job.state, before[-1], 9.0, job.spec) == []


def test_what_a_node_does_that_takes_no_part_changes_nothing():
    job = Job(count=3)
    without_the_third(job)
    for late in (torn_down(2), exited(2, 1), pt.OrphanExited(node="n2")):
        assert decide(job.state, late, 41.0, job.spec) == []


def test_a_node_s_notice_is_recorded_with_its_name():
    job = Job()
    job.run()
    for event in (ev.Noticed(attempt=7, text="disk full"), ev.GuardianRestarted(attempt=None)):
        [noticed] = decide(job.state, pt.NodeNoticed(node="n1", event=event), 9.0, job.spec)
        assert isinstance(noticed, ev.Noticed) and noticed.text.startswith("n1: ")


def test_a_node_reports_its_own_ranks_only():
    job = Job()
    job.start(0)
    others = [pt.Worker(rank=rank, pid=666) for rank in (0, 1, 10**6)]
    job.take(pt.GroupStarted(node="n1", attempt=0, workers=others))
    assert {rank: life.node for rank, life in job.state.ranks.items()} == {0: "n0", 1: "n1"}
    assert job.state.ranks[0].pid == 100
    for rank in (0, 10**6):
        lie = pt.ProcessExited(node="n1", attempt=0, rank=rank, pid=None, status=1, at_s=2.0)
        assert job.take(lie) == []
    assert not job.state.has_failed


@pytest.mark.parametrize(
    "fact",
    [
        KILLED,
        torn_down(1),
        UNREACHABLE,
        VERDICT,
        pt.NodeRefused(node="n1", attempt=0, error="disk full", answered=True),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_once_a_restart_is_asked_for_nothing_else_is_decided(fact):
    job = Job()
    job.run()
    if fact != KILLED:
        job.take(KILLED)
        job.take(FAILED)
    job.take(pt.RestartAsked(agent=pt.AgentState()))
    asked = job.state.restart
    assert job.take(fact) == []
    assert job.state.restart == asked and job.state.ending is None
    assert not job.state.nodes["n1"].failed


def test_a_node_is_not_taken_back_into_an_attempt_that_fails_or_ends():
    for fact in (exited(0, 1, attempt=1), exited(0, attempt=1)):
        job = Job(count=3)
        without_the_third(job)
        job.take(fact)
        job.take(torn_down(0, attempt=1))
        assert job.take(pt.LinkMade(node="n2"), 60.0) == [END_N2]
        assert job.state.restart is None


def test_decided_restart_waits_and_gets_its_own_port():
    job = Job()
    job.run()
    decided = ev.RestartDecided(attempt=0, used=1, limit=3, delay_s=98.0, at_s=100.0)
    job.state = apply(job.state, decided, NOW)
    assert job.take(pt.NodesDue(attempt=0), now_s=50.0) == []
    new_head = job.take(pt.SupervisorStarted(agent=pt.AgentState()), now_s=60.0)
    assert new_head == [pt.WaitForRestart(at_s=100.0)]
    begun = job.take(pt.NodesDue(attempt=0), now_s=100.0)
    ports = [one.rendezvous.port for one in begun if isinstance(one, pt.BeginOn)]
    assert ports == [2, 2]  # the second of the node's, for the second attempt


@pytest.mark.parametrize("happened", ["failed", "half started", "hung", "stopping"])
def test_a_new_head_continues_what_the_last_one_had_begun(happened):
    job = Job()
    if happened == "half started":
        job.take(STARTED)
    else:
        job.run()
    if happened == "failed":
        job.take(KILLED)
    elif happened == "hung":
        found = ev.TroubleFound(attempt=0, ranks=[0], stops=False, reason="hang")
        job.state = apply(job.state, found, NOW)
    elif happened == "stopping":
        job.take(pt.StopAsked(grace_s=30.0), now_s=5.0)
    orders = job.take(pt.SupervisorStarted(agent=pt.AgentState()), now_s=15.0)
    assert (
        orders
        == {
            "failed": [pt.JudgeAttempt()],
            "half started": [],
            "hung": [],
            "stopping": [pt.EndRanks(grace_s=20.0)],
        }[happened]
    )
    assert job.state.phase != "hung" and job.state.trouble is None


def remote_nodes_of(job: Job) -> RemoteNodes:
    """The nodes of the job, none of which is reachable yet."""
    log: Any = job
    process: Any = SimpleNamespace(
        log=job,
        defects=LastResort(log),
        history=SimpleNamespace(last_seq=0),
        rows_after=lambda seq: [],
    )
    assert job.spec.placement is not None
    remotes = RemoteNodes(job.spec, job.spec.placement, process, job.take)
    remotes.restore(None)
    return remotes


HERE_NOW = pt.NodeFact(fact=pt.LinkMade(agent=pt.AgentState(pid=7, listens=True, attempt=0)))
"""The last of what a node reports over a new connection."""


async def test_node_with_a_silent_supervisor_is_unknown_until_it_responds(monkeypatch):
    job = Job()
    job.run()
    remotes, part = remote_nodes_of(job), "n1"
    near = remotes.by_host[part]
    near.ended, near.link.is_up = False, True
    state = pt.NodeState(snapshot=make_snapshot(job.spec))
    remotes.take_report(near.link, HERE_NOW)
    remotes.look_at_silence(near.last_report_s + 14.0)
    assert near.is_known and job.state.nodes[part].unknown_since is None
    remotes.look_at_silence(near.last_report_s + 16.0)
    assert not near.is_known and job.state.nodes[part].unknown_since is not None
    assert job.state.nodes[part].why == "its supervisor does not respond"
    asked: list[NodeLink] = []
    monkeypatch.setattr(NodeLink, "follow", lambda link: asked.append(link))
    for _ in range(2):
        remotes.take_report(near.link, state)
    assert asked == [near.link], "what it has missed to report is not asked for"
    remotes.take_report(near.link, HERE_NOW)
    assert near.is_known and job.state.nodes[part].unknown_since is None
    near.ended = True  # and reports nothing more
    remotes.look_at_silence(near.last_report_s + 16.0)
    assert near.is_known


class Deaf(NodeLink):
    """A link that breaks once the node has received the order to start."""

    def __init__(self, remotes: RemoteNodes, host: str) -> None:
        made = remotes.by_host[host].link
        self.node, self.job_id = made.node, made.job_id
        self.seq, self.shift_s, self.is_up = 0, 0.0, True
        self.asked: list[Any] = []

    async def ask(self, request: Any, *_: Any, **more: Any) -> Any:
        if isinstance(request, pt.Start):
            self.is_up = False
            raise LinkError("n1 cannot be reached")
        self.asked.append(request)
        return pt.Done()


@pytest.mark.parametrize(("mode", "recovered"), [("fast", "fast"), (1, None)])
async def test_only_text_is_recovered_as_a_variable(mode, recovered, monkeypatch):
    monkeypatch.delenv("MODE", raising=False)

    async def ask(*_: Any) -> pt.Found:
        return pt.Found(data={"MODE": mode})

    job = Job()
    job.spec = replace(job.spec, env_names=["MODE"])
    remotes = remote_nodes_of(job)
    node = remotes.by_host["n0"]
    node.ended, node.link.is_up = False, True
    monkeypatch.setattr(node.link, "ask", ask)
    await remotes.recover_environment()
    assert remotes._environment().get("MODE") == recovered


async def test_a_node_that_repeats_facts_without_end_fills_no_memory():
    job = Job()
    job.run()
    remotes: Any = remote_nodes_of(job)
    node, reads = remotes.by_host["n1"], list[int]()
    node.link = Deaf(remotes, "n1")
    remotes._process.rows_after = lambda seq: reads.append(seq) or []
    connected = pt.NodeFact(fact=pt.AgentListens(pid=7))
    for _ in range(MOST_REPEATED + 9):
        remotes.take_report(node.link, connected)
    assert len(node.repeated) == MOST_REPEATED
    for _ in range(9):
        remotes.take_report(node.link, HERE_NOW)
    assert reads == [0] and not node.repeated


async def test_a_part_that_runs_is_not_started_again_but_chooses_its_devices():
    job = Job()
    [order, _] = [one for one in job.begun if isinstance(one, pt.BeginOn)]
    remotes = remote_nodes_of(job)
    near = remotes.by_host["n0"]
    near.link = link = Deaf(remotes, "n0")
    near.ended, near.reported = False, Reported.COMPLETE
    assert await remotes.begin(order) is None
    await until(lambda: bool(link.asked), 5.0)
    assert link.asked == [pt.Carry(orders=[pt.ChooseDevices(node="n0")], seq=0)]


async def test_a_node_takes_over_events_about_itself_and_those_that_it_has_missed():
    job = Job()
    job.run()
    remotes: Any = remote_nodes_of(job)
    part = remotes.by_host["n1"]
    part.link = link = Deaf(remotes, "n1")
    part.ended, link.shift_s = False, 100.0
    started = ev.AttemptStarted(attempt=0, world=2, at_s=101.0)
    exits = [
        ev.RankExited(attempt=0, rank=rank, pid=100, status=1, at_s=109.0, node=f"n{rank}")
        for rank in (0, 1)
    ]
    ending = ev.RanksEnding(attempt=0, at_s=110.0)
    rows = [as_row(one) for one in (started, ev.Noticed(text="n0: hot"))]
    remotes._process.rows_after = lambda seq: rows[seq:]
    remotes.send([*exits])  # it has not reported yet
    asked = pt.AgentAsked(question=3, kind="group_stopped", attempt=0)
    remotes.take_report(link, pt.NodeFact(fact=asked))
    assert job.facts[-1:] != [replace(asked, node="n1")], "what follows would be lost"
    remotes.take_report(link, HERE_NOW)
    assert [type(one) for one in job.facts[-2:]] == [pt.AgentAsked, pt.LinkMade]
    remotes.send([*exits, ending, pt.InterruptRanks(node="n0"), pt.InterruptRanks(node="n1")])
    await until(lambda: len(link.asked) == 1, 5.0)
    (sent,) = link.asked
    assert sent.events == [
        replace(started, at_s=1.0, first_rank=1),
        replace(exits[1], at_s=9.0, node=HERE),
        replace(ending, at_s=10.0),
    ]
    assert sent.orders == [pt.InterruptRanks(node="n1")]


async def test_a_part_that_may_have_started_as_the_link_broke_is_ended():
    job = Job()
    remotes = remote_nodes_of(job)
    part, link = remotes.by_host["n1"], Deaf(remotes, "n1")
    part.link = link
    order = next(one for one in job.begun if isinstance(one, pt.BeginOn) and one.node == "n1")
    beginning = asyncio.create_task(remotes.begin(order))
    await asyncio.sleep(0.1)
    job.take(pt.StopAsked(grace_s=0.0))
    ending = asyncio.create_task(remotes.end_all(0.0))
    await asyncio.sleep(0.1)
    assert not ending.done()
    link.is_up = True
    launched = ev.Launched(attempt=0, target="t.py", nproc=1)
    remotes.take_report(link, pt.NodeEvent(event=replace(as_row(launched), seq=1)))
    remotes.take_report(link, HERE_NOW)
    await until(lambda: link.asked == [pt.StopAsked(grace_s=0.0)], 5.0)
    assert link.asked == [pt.StopAsked(grace_s=0.0)]
    ended = ev.JobEnded(attempt=0, state="stopped")
    remotes.take_report(link, pt.NodeEvent(event=replace(as_row(ended), seq=2)))
    await asyncio.wait_for(asyncio.gather(beginning, ending), 5.0)


@pytest.mark.parametrize(("now_s", "seen"), [(300.0, None), (302.0, [0])])
async def test_a_hang_is_looked_for_without_a_node_that_is_away_for_long(now_s, seen):
    job = Job()
    job.run()
    job.take(pt.LinkBroken(node="n1", why="no route"), now_s=1.0)
    remotes = remote_nodes_of(job)
    near = remotes.by_host["n0"]
    near.seen_s, near.link.is_up = now_s, True
    near.snapshot = make_snapshot(job.spec)
    near.progress = [RankProgress(0, alive=True, paused=False, steps=5, since_progress_s=400.0)]
    found = remotes.progress(now_s)
    assert (found and [one.rank for one in found]) == seen
    hang = Cause(kind="hang", summary="The job hung: rank 0 waits.")
    cause = hang_without(away_for_long(job.state, now_s, job.spec), hang)
    assert (cause.kind, cause.host) == (("node", "n1") if seen else ("hang", None))


async def test_no_hang_is_looked_for_before_each_node_has_started_its_ranks():
    """A killed rank of the previous attempt does not delay the others."""
    job = Job()
    remotes = remote_nodes_of(job)
    for rank, part in enumerate(remotes.by_host.values()):
        part.seen_s, part.link.is_up = 10.0, True
        part.snapshot = make_snapshot(job.spec, attempt=0)
        waits = RankProgress(rank, alive=True, paused=False, steps=0, since_progress_s=9.0)
        part.progress = [waits]
    job.start(0)
    assert remotes.progress(10.0) is None
    job.start(1)
    far = remotes.by_host["n1"]
    far.snapshot = make_snapshot(job.spec, attempt=None)
    assert remotes.progress(10.0) is None
    far.snapshot = make_snapshot(job.spec, attempt=0)
    assert [one.rank for one in remotes.progress(10.0) or ()] == [0, 1]
    job.finish(1)
    assert [one.rank for one in remotes.progress(90.0) or ()] == []  # rank 0 is not observed now
    assert [one.rank for one in remotes.progress(11.0) or ()] == [0]


END_N2 = pt.EndOn(node="n2", grace_s=0.0)
"""What is still running on an excluded node belongs to an earlier attempt."""


def without_the_third(job: Job, *, starts: bool = True) -> None:
    """Two of three nodes are in the second attempt, and train."""
    job.run()
    job.take(pt.LinkBroken(node="n2", why="no route"))
    job.take(pt.RestartAsked(agent=pt.AgentState()))
    job.take(pt.RestartDue(attempt=0), SHRINK_AFTER_S)
    begun = job.take(pt.NodesDue(attempt=0), 2 * SHRINK_AFTER_S)
    assert [one.node for one in begun if isinstance(one, pt.BeginOn)] == ["n0", "n1"]
    if starts:
        job.run()


def test_a_node_that_returns_while_the_others_meet_is_taken_back_once_they_have():
    job = Job(count=3)
    without_the_third(job, starts=False)
    assert job.take(pt.LinkMade(node="n2"), 60.0) == [END_N2]
    assert job.start(0) == [pt.WaitForRestart(at_s=None)]


def test_a_node_is_taken_back_once_all_others_are_away_for_long():
    job = Job(count=3)
    without_the_third(job)
    for node in ("n0", "n1"):
        job.take(pt.LinkBroken(node=node, why="no route"), 100.0)
    assert job.take(pt.LinkMade(node="n2"), 101.0) == [END_N2, pt.AwaitNodes(seconds=299.0)]
    assert job.state.restart is None
    assert job.take(pt.NodesDue(attempt=1), 400.0) == [pt.WaitForRestart(at_s=None)]


@pytest.mark.parametrize("meanwhile", ["nothing", "it goes away", "someone restarts"])
def test_ranks_are_asked_to_save_before_a_node_is_taken_back(meanwhile):
    job = Job(count=3)
    without_the_third(job)
    job.take(pt.NodeNoticed(node="n0", event=ev.TrainingStarted(attempt=1, after_s=1.0)))
    assert job.take(pt.LinkMade(node="n2"), 900.0) == [END_N2, pt.AskCheckpoint()]
    assert job.state.restart is None
    if meanwhile == "it goes away":
        job.take(pt.LinkBroken(node="n2", why="no route"), 901.0)
    elif meanwhile == "someone restarts":
        job.take(pt.RestartAsked(agent=pt.AgentState()), 901.0)
    restarts = [pt.WaitForRestart(at_s=None)] if meanwhile == "nothing" else []
    assert job.take(pt.CheckpointWaited(attempt=0), 902.0) == []
    assert job.take(pt.CheckpointWaited(attempt=1), 902.0) == restarts


END_N1 = pt.EndOn(node="n1", grace_s=0.0)


def refuse(job: Job, attempt: int, node: str = "n1") -> list[pt.Order]:
    """The orders for a node that could not start."""
    error = "No space left on device"
    return job.take(pt.NodeRefused(node=node, attempt=attempt, error=error, answered=True))


def test_refusing_node_is_left_out_until_a_user_restarts():
    job = Job(count=3, least=2)
    assert refuse(job, 0) == [END_N1, pt.WaitForRestart(at_s=None)]
    begun = job.take(pt.RestartDue(attempt=0))
    assert [one.node for one in begun if isinstance(one, pt.BeginOn)] == ["n0", "n2"]
    job.run()
    assert job.state.budget.used == 0 and job.state.nodes["n1"].lost
    assert job.take(pt.LinkBroken(node="n1", why="no route")) == []
    # it is not added back; what it is running, because its supervisor did not respond, is ended
    assert job.take(pt.LinkMade(node="n1")) == [END_N1]
    assert job.state.nodes["n1"].why == "No space left on device"
    job.take(pt.RestartAsked(agent=pt.AgentState()))
    begun = job.take(pt.RestartDue(attempt=1))
    assert [one.node for one in begun if isinstance(one, pt.BeginOn)] == ["n0", "n1", "n2"]
    assert not job.state.nodes["n1"].lost


@pytest.mark.parametrize(("attempt", "kind"), [(0, "launch"), (1, "node")])
def test_a_node_that_cannot_be_done_without_fails_the_job(attempt, kind):
    job = Job(count=2, least=2)
    if attempt:
        job.run()
        job.take(pt.RestartAsked(agent=pt.AgentState()))
        job.take(pt.RestartDue(attempt=0))
    assert refuse(job, attempt) == [pt.EndRanks(grace_s=10.0)]
    ending = job.state.ending
    assert ending is not None and ending.cause is not None and ending.cause.kind == kind
    assert "No space left on device" in ending.cause.summary
    assert ending.requeue == (kind == "node")


def test_a_node_that_went_away_unnoticed_costs_one_restart():
    job = Job(count=3, least=2)
    job.run()
    job.exit(0, 1)
    cause = Cause(kind="exit_code", rank=0, summary="It lost a connection.")
    judged = pt.AttemptJudged(attempt=0, cause=cause, outcome=None, jitter=0.0)
    job.take(judged)
    begun = job.take(pt.RestartDue(attempt=0), now_s=5.0)
    assert [one.node for one in begun if isinstance(one, pt.BeginOn)] == ["n0", "n1", "n2"]
    job.take(pt.LinkBroken(node="n1", why="no response within 15 s"), now_s=18.0)
    unreached = pt.NodeRefused(node="n1", attempt=1, error="it cannot be reached")
    assert job.take(unreached, now_s=35.0) == [pt.WaitForRestart(at_s=None)]
    due = pt.RestartDue(attempt=0)
    assert job.take(due, now_s=35.0) == [pt.AwaitNodes(seconds=SHRINK_AFTER_S)]
    begun = job.take(pt.NodesDue(attempt=0), now_s=50.0)
    assert [one.node for one in begun if isinstance(one, pt.BeginOn)] == ["n0", "n2"]
    assert job.state.budget.used == 1


def test_a_node_that_returns_while_the_job_stops_has_the_rest_of_the_grace():
    job = Job()
    job.run()
    job.take(pt.StopAsked(grace_s=300.0), now_s=10.0)
    job.take(pt.LinkBroken(node="n1", why="no route to host"))
    orders = job.take(pt.LinkMade(node="n1"), now_s=60.0)
    assert orders == [pt.EndOn(node="n1", grace_s=250.0)]


def test_a_stop_for_a_bad_loss_has_a_cause_even_if_the_failure_could_not_be_judged():
    job = Job(count=1)
    job.spec = replace(job.spec, on_nan="stop")
    job.run()
    job.state = replace(job.state, phase="running")
    job.take(pt.TroubleFound(reason="nan"))
    job.take(exited(0, status=-9))
    job.take(pt.AttemptJudged(attempt=0, cause=None, outcome=None, jitter=0.0))
    assert job.state.ending is not None and job.state.ending.cause is not None


def test_an_agent_that_other_nodes_were_to_replace_is_replaced_for_the_nodes_chosen_since():
    job = Job(count=2)
    job.run()
    job.take(pt.RestartAsked(agent=pt.AgentState()))
    due = pt.RestartDue(attempt=0)
    job.take(due)
    agent = pt.AgentState(pid=7, listens=True, attempt=0)
    replaced = pt.EndLeftovers(node="n1", with_agent=True, await_memory=True)
    job.take(exited(1, status=1))
    assert replaced in job.take(pt.DevicesChosen(node="n1", agent=agent))
    job.take(pt.NodeRefused(node="n0", attempt=1, error="disk full", answered=True))
    job.take(due)
    asks = replace(agent, question=1)
    answers = job.take(pt.DevicesChosen(node="n1", agent=asks))
    assert [one.restart for one in answers if isinstance(one, pt.AnswerAgent)] == [False]
    assert job.take(agent_exited(1, 1)) == [replaced]


def test_an_order_to_restart_is_repeated_if_the_link_broke_since():
    job = Job(count=2)
    job.run()
    job.take(pt.RestartAsked(agent=pt.AgentState()))
    job.take(pt.RestartDue(attempt=0))
    agent = pt.AgentState(pid=7, listens=True, attempt=0)
    again = pt.TellAgent(node="n1", order="restart_group")
    assert again in job.take(pt.DevicesChosen(node="n1", agent=agent))
    job.take(pt.LinkBroken(node="n1", why="no route"))
    assert again in job.take(pt.LinkMade(node="n1", agent=agent))


def link_of(script: str = "", after_seq: int = 0, **calls: Callable[..., object]) -> NodeLink:
    """A link to a node whose command is a shell script; `note`, `made`, and `broken` are called."""
    job = Job()
    assert job.spec.placement is not None
    node = replace(job.nodes[0], command=["sh", "-c", script])
    told = [calls.get(name, lambda *_: None) for name in ("note", "made", "broken")]
    return NodeLink(job.spec.placement, node, "j.0", after_seq, *told)


@contextlib.asynccontextmanager
async def running(link: NodeLink) -> AsyncIterator[None]:
    task = asyncio.create_task(link.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_event_counts_once_and_a_refusal_is_raised():
    came: list[int] = []
    link = link_of(after_seq=1, note=lambda _, report: came.append(report.event.seq))
    for seq in (1, 2, 2, 3):
        event = ev.Noticed(attempt=0, text="something")
        link._receive(pt.NodeEvent(event=replace(as_row(event), seq=seq)))
    assert came == [2, 3]
    link.is_up = True
    link._send = lambda _: link._receive(
        pt.Answer(id=1, reply=pt.Refused(error="disk full", hint="free some"))
    )  # type: ignore[method-assign]
    with pytest.raises(ControlError, match="disk full"):
        await link.ask(pt.StopAsked(), pt.Done)


HELLO = (
    '{"type":"hello","ddptop":"1","host":"h","boot_id":null,"boottime_s":1.0,'
    '"now":"2026-01-01T00:00:00Z"}'
)


async def test_a_node_that_fails_once_it_has_greeted_is_asked_ever_more_rarely(monkeypatch):
    monkeypatch.setattr("ddptop_runner.node.links.RECONNECT_S", (0.0, 0.0, 60.0))
    times: list[str] = []
    link = link_of(f"echo '{HELLO}'", broken=lambda _, why: times.append(why))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(link.run(), 3)
    assert len(times) == 2


async def test_a_greeting_of_any_kind_does_not_break_a_link():
    made, told = asyncio.Event(), list[str]()
    lines = ("Welcome", "{{ banner }}", "{}", '{"type":"hello"}', HELLO)
    script = f"printf '%s\\n' {shlex.join(lines)}; sleep 60"
    link = link_of(script, made=lambda _: made.set(), broken=lambda _, why: told.append(why))
    async with running(link):
        await asyncio.wait_for(made.wait(), 20)
        assert told == []


@pytest.mark.parametrize(
    "script",
    [f"echo '{HELLO.replace('Z', '')}'; sleep 60", "sleep 60 >/dev/null & echo gone >&2"],
    ids=["a time without a zone", "a child that keeps the pipe"],
)
async def test_a_link_that_breaks_in_any_way_is_made_again(script):
    broken, times = asyncio.Event(), list[str]()

    def note(_: NodeLink, why: str) -> None:
        times.append(why)
        if len(times) == 2:
            broken.set()

    async with running(link_of(script, broken=note)):
        await asyncio.wait_for(broken.wait(), 20)


def test_the_hosts_of_an_earlier_attempts_ranks_stay_known():
    job = Job(count=3)
    for attempt, nodes in ((0, ["n0", "n1", "n2"]), (1, ["n0", "n2"]), (2, ["n1"])):
        for event in (
            ev.NodesChosen(attempt=attempt, nodes=nodes, at_s=0.0),
            ev.AttemptStarted(attempt=attempt, world=len(nodes)),
        ):
            job.state = apply(job.state, event, NOW)
    found = [hosts_of_ranks(job.state, job.spec, attempt) for attempt in (0, 1, 2, 3)]
    assert found == [{0: "n0", 1: "n1", 2: "n2"}, {0: "n0", 1: "n2"}, {0: "n1"}, {}]


@pytest.mark.parametrize(
    ("age_s", "writes", "saved_s", "takes_s"),
    [
        (60.0, (0, 0), None, (10, 13)),  # it does not check for requests
        (3.0, (0, 0), None, (0, 0)),  # it has just saved
        (60.0, (1, 3), 4.0, (4, 6)),
        (60.0, (8, 40), 41.0, (41, 43)),  # a large one
        (60.0, (5, 900), None, (90, 92)),  # it never ends
    ],
)
def test_a_checkpoint_is_waited_for_as_long_as_one_is_written(
    monkeypatch, age_s, writes, saved_s, takes_s
):
    loop = VirtualLoop()
    monkeypatch.setattr(head_module, "boottime_s", loop.time)
    now = utc_now()
    monkeypatch.setattr(head_module, "utc_now", lambda: now)
    began_s = loop.time()
    before = Checkpoint(path="/old", at=now - dt.timedelta(seconds=age_s))

    class Stub:
        """Replaces the head."""

        attempt = 1

        @property
        def job(self) -> JobState:
            is_new = saved_s is not None and loop.time() - began_s >= saved_s
            last = replace(before, path="/new") if is_new else before
            return JobState(phase="running", attempt=1, checkpoint=last)

        async def _ask_to_save(self) -> None:
            pass

        def _snapshot(self) -> Any:
            passed_s = loop.time() - began_s
            phase = "checkpoint" if writes[0] <= passed_s < writes[1] else None
            ranks = [RankSample(rank=0, local_rank=0, host="n0", state="running", phase=phase)]
            return make_snapshot(Job().spec, ranks=ranks)

    stub: Any = Stub()
    with contextlib.closing(loop):
        loop.run_until_complete(Head._save_first(stub, 1))
    assert takes_s[0] <= loop.time() - began_s <= takes_s[1]


@pytest.mark.parametrize(("back", "said"), [("at the end", 0), ("at a fetch", 0), ("never", 1)])
def test_a_node_that_comes_back_at_the_end_is_ended_first(back, said):
    loop = VirtualLoop()
    job = Job()
    remotes: Any = remote_nodes_of(job)
    part, under_way, told = remotes.by_host["n1"], list[Any](), list[ev.JobEvent]()
    part.ended = False

    def end() -> None:
        under_way.clear()
        part.ended = True

    def begin(when: str) -> Any:
        async def order(*_: Any) -> None:
            if back == when:
                under_way[:] = [(pt.EndOn(node="n1", grace_s=10.0), 0)]
                loop.call_later(5.0, end)

        return order

    remotes.end_all = begin("at the end")
    head: Any = SimpleNamespace(
        attempt=0,
        nodes=remotes,
        _is_stopped=False,
        _alerts=SimpleNamespace(record_end=lambda: None),
        _fetcher=SimpleNamespace(take_ends=begin("at a fetch")),
        _log=SimpleNamespace(emit=told.append),
        _under_way=under_way,
    )
    with contextlib.closing(loop):
        loop.run_until_complete(Head._conclude(head))
    assert len(told) == said


async def test_a_node_that_has_begun_is_not_known_before_it_reports(monkeypatch):
    job = Job()
    [order, _] = [one for one in job.begun if isinstance(one, pt.BeginOn)]
    remotes = remote_nodes_of(job)
    near = remotes.by_host["n0"]
    near.link.is_up = True

    async def ask(*_: Any) -> pt.Done:
        return pt.Done()

    monkeypatch.setattr(NodeLink, "ask", ask)
    monkeypatch.setattr(NodeLink, "follow", lambda _: None)
    assert near.is_known
    assert await remotes.begin(order) is None
    assert not near.is_known
    remotes.take_report(near.link, HERE_NOW)
    assert near.is_known
    remotes._link_made(near.link)
    assert not near.is_known


def test_a_part_of_an_earlier_attempt_that_is_gone_fails_nothing():
    job = Job(count=3)
    without_the_third(job, starts=False)
    remotes = remote_nodes_of(job)
    near = remotes.by_host["n0"]
    near.ended, near.link.is_up = False, True
    remotes.take_report(near.link, pt.NodeFact(fact=pt.LinkMade(is_there=False)))
    assert near.ended
    assert not job.state.nodes["n0"].failed
