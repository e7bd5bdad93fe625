"""A simulated job: the real `apply`, `decide`, and `EventLog` over a host that can lose anything.

One step is one thing that can happen: a process dies, the agent takes its next step, an order is
carried out, a supervisor dies and forgets what it was doing. Orders and timers wait until a step
carries them out, so that everything can come between.
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.support.builders import make_spec

from ddptop_runner.base.errors import ControlError
from ddptop_runner.job.decide import Decision, decide
from ddptop_runner.job.event_log import EventLog, Memory
from ddptop_runner.job.event_text import text
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import apply
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Alert, Cause, Checkpoint, Event, NodeSnapshot
from ddptop_runner.model.spec import Device, JobSpec, Rendezvous
from ddptop_runner.model.words import HERE
from ddptop_runner.node.engine import evidence_kept

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
CAUSE = Cause(kind="signal", rank=0, signal="SIGKILL", summary="Rank 0 was killed.")
MOST_RESTARTS = 3
RANKS = 2
DEVICES = [Device(index=n, uuid=f"GPU-{n}") for n in range(RANKS)]
LAUNCHER = -1


class Rows:
    """The history: what is pending is lost with its supervisor."""

    def __init__(self) -> None:
        self.kept: list[Event] = []
        self.pending: list[Event] = []
        self.is_full = False
        self.last_seq = 0
        self.folded = JobState()
        """What all rows fold to, read back from their stored form."""

    def event(self, row: Event) -> Event:
        self.last_seq += 1
        row = msgspec.structs.replace(row, seq=self.last_seq)
        self.pending.append(row)
        stored = msgspec.json.decode(msgspec.json.encode(row.data))
        event = ev.from_data(stored)
        assert event is not None, f"cannot be read back: {stored}"
        self.folded = apply(self.folded, event, row.ts)
        if not self.is_full:
            self.kept += self.pending
            self.pending = []
        return row

    def continue_after(self, seq: int) -> None:
        self.last_seq = max(self.last_seq, seq)


LEADS_TO = {
    ev.Queued: ("queued",),
    ev.Launched: ("starting",),
    ev.AttemptStarted: ("starting", "stopping"),
    ev.TrainingStarted: ("running", "restarting", "hung", "stopping"),
    ev.TroubleFound: ("hung", "stopping"),
    ev.HangJudged: ("hung", "stopping"),
    ev.TroubleDropped: ("running",),
    ev.RestartDecided: ("restarting",),
    ev.RestartRequested: ("restarting",),
    ev.StopRequested: ("stopping",),
    ev.JobLost: ("lost",),
}
"""The phases that may follow an event."""


@dataclass
class Agent:
    """torch's agent, as seen by the state machine."""

    pid: int
    attempt: int
    meeting: Rendezvous | None = None
    since_s: float = 0.0
    """Since when it waits for the agents of other nodes."""
    listens: bool = False
    question: pt.AgentAsked | None = None
    answer: pt.AnswerAgent | None = None
    orders: list[str] = field(default_factory=list)
    stage: str = "starting"
    """`starting`, `joining`, `watching`, `failing`, `torn_down`, `group_stopped`."""
    restarts: bool = False
    """Whether another attempt follows."""
    workers: list[pt.Worker] = field(default_factory=list)
    """The ranks of its current attempt."""

    def receive(self, order: pt.AnswerAgent | pt.TellAgent) -> None:
        if isinstance(order, pt.TellAgent):
            self.orders.append(order.order)
        elif self.question is not None and self.question.question == order.question:
            self.answer = order


class Host:
    """Ranks and torch's agent on one host, and what is reported of them.

    A subclass has `tell` and `report_exits`, `may_connect`, and `begin` and `begin_next`: what an
    agent does before its ranks start, at first and in the next attempt.
    """

    is_command = False
    is_up = True
    """Whether its reports arrive."""

    def __init__(self, world: Any, host: str) -> None:
        self.world, self.host = world, host
        self.alive: dict[int, tuple[int, int]] = {}
        """(attempt, rank) by pid."""
        self.exits: dict[int, pt.ProcessExited] = {}
        """By pid."""
        self.untold: list[pt.ProcessExited] = []
        self.agent: Agent | None = None
        self.agent_exit: pt.AgentExited | None = None
        """Of an agent that exited, before anybody saw it."""
        self.last_exit: pt.AgentExited | None = None
        self.group: pt.GroupStarted | None = None
        """The last that its agent has reported."""

    def dies(self, pid: int, status: int) -> None:
        attempt, rank = self.alive.pop(pid)
        exited = pt.ProcessExited(
            node=self.host,
            attempt=attempt,
            rank=None if rank == LAUNCHER else rank,
            pid=pid,
            status=status,
            at_s=self.world.now_s,
        )
        self.exits[pid] = exited
        self.untold.append(exited)

    def ends(self, pids: list[int]) -> None:
        for pid in pids:
            self.dies(pid, -15)

    def agent_ends(self, status: int) -> None:
        assert self.agent is not None
        agent, self.agent = self.agent, None
        self.agent_exit = pt.AgentExited(
            node=self.host,
            pid=agent.pid,
            agent=pt.AgentState(status=status, attempt=agent.attempt, cause=CAUSE),
        )

    def ends_all(self) -> None:
        self.ends(list(self.alive))
        if self.agent is not None:
            self.agent_ends(-9)

    def see_agent_exit(self) -> None:
        if self.agent_exit is not None and self.is_up:
            self.report_exits()
            exited, self.agent_exit = self.agent_exit, None
            self.last_exit = exited
            self.tell(exited)

    def ask(self, kind: Any, ranks: list[int] | None = None) -> None:
        agent = self.agent
        assert agent is not None
        agent.question = pt.AgentAsked(
            node=self.host,
            question=self.world.pid(),
            kind=kind,
            attempt=agent.attempt,
            ranks=ranks or [],
        )
        agent.answer, agent.stage = None, kind
        if agent.listens:
            self.report_exits()
            self.tell(agent.question)

    def report_group(self, agent: Agent) -> None:
        if agent.workers:
            self.group = pt.GroupStarted(
                node=self.host, attempt=agent.attempt, workers=agent.workers
            )
            self.tell(self.group)

    def agent_connects(self) -> None:
        agent = self.agent
        if agent is None or agent.listens or not self.may_connect():
            return
        wanted = self.world.state.node(self.host).wanted_agent
        if self.is_up and wanted is not None and wanted.replaces == agent.pid:
            return
        agent.listens = True
        self.agent_exit = None  # as in the driver, it was another's
        self.report_group(agent)
        self.report_exits()
        self.tell(pt.AgentListens(node=self.host, pid=agent.pid))
        state = self.world.state
        wanted = state.node(self.host).wanted_agent
        assert not self.is_up or state.ending or wanted is None or wanted.connected
        if agent.question is not None and agent.answer is None:
            self.tell(agent.question)

    def agent_acts(self) -> None:
        """The next step of torch's agent."""
        agent = self.agent
        if agent is None:
            self.see_agent_exit()
        elif agent.stage in ("starting", "joining"):
            self.begin(agent)
        elif agent.stage == "watching":
            self._watch(agent)
        elif agent.answer is not None:
            self._go_on(agent, agent.answer)

    def _main(self, agent: Agent) -> list[int]:
        """The processes that the agent has started."""
        return [
            pid
            for pid, (attempt, rank) in self.alive.items()
            if attempt == agent.attempt and (rank == LAUNCHER) == self.is_command
        ]

    def _watch(self, agent: Agent) -> None:
        main = self._main(agent)
        own = {worker.pid for worker in agent.workers}
        failed = [one for pid, one in self.exits.items() if pid in own and one.status != 0]
        if "stopping" in agent.orders:
            if not main:
                self.agent_ends(0)
        elif "restart_group" in agent.orders:
            agent.orders.clear()
            agent.restarts = True
            self.ends(main)
            self.ask("group_stopped")
        elif failed:
            self.ask("failing", [one.rank for one in failed if one.rank is not None])
        elif not main:
            self.agent_ends(0)

    def _go_on(self, agent: Agent, answer: pt.AnswerAgent) -> None:
        stage, agent.question = agent.stage, None
        if stage == "failing":
            self.ends(self._main(agent))
            self.ask("torn_down")
        elif stage == "torn_down":
            agent.restarts = bool(answer.restart)
            self.ask("group_stopped")
        elif agent.restarts and "stopping" not in agent.orders:
            agent.attempt, agent.restarts = agent.attempt + 1, False
            agent.orders.clear()
            self.begin_next(agent, answer)
        else:
            self.agent_ends(1)


class Simulation:
    """What a simulated job on one node and one on several have in common."""

    spec: JobSpec

    def __init__(self, seed: int, now_s: float) -> None:
        self.random = random.Random(seed)
        self.now_s = now_s
        self.rows = Rows()
        self.log = self._new_log()
        self.todo: list[Any] = []
        """Orders, with their attempts."""
        self.stale = Memory(state=self.log.state)
        self.has_stopped = self.lost_log = False
        self.pids = 100

    def _new_log(self) -> EventLog:
        history: Any = self.rows
        return EventLog(history, lambda line: None)

    @property
    def state(self) -> JobState:
        return self.log.state

    def pid(self) -> int:
        self.pids += 1
        return self.pids

    def _record(self, event: ev.JobEvent) -> None:
        raise NotImplementedError

    def _order(self, order: Any) -> None:
        raise NotImplementedError

    def take(self, fact: pt.Fact) -> None:
        """Like `Decisions.take`."""
        fact = msgspec.json.decode(msgspec.json.encode(fact), type=pt.Fact)
        self._carry(decide(self.state, fact, self.now_s, self.spec))

    def _carry(self, decision: Decision) -> None:
        for event in decision:
            if isinstance(event, ev.EventBase):
                self._record(event)
        for order in decision:
            if isinstance(order, pt.Message):
                self._order(msgspec.json.decode(msgspec.json.encode(order), type=pt.Order))

    def _skip_wait(self) -> None:
        self.todo = [
            (msgspec.structs.replace(one, at_s=self.now_s), *rest)
            if isinstance(one, pt.WaitForRestart)
            else (one, *rest)
            for one, *rest in self.todo
        ]

    leads_to = LEADS_TO

    def _check_event(self, before: JobState, event: ev.JobEvent) -> None:
        """What an event must do to the state, stated independently of `apply`."""
        state = self.state
        if type(event) in self.leads_to:
            assert state.phase in self.leads_to[type(event)], f"{event} leads to {state.phase}"
        if isinstance(event, ev.RestartPrepared):
            assert state.restart is not None
            assert state.node(event.node).sent or not event.sent
            assert state.node(event.node).wanted_agent == event.wanted
            assert state.node(event.node).begun == state.restart.next_attempt
        elif isinstance(event, ev.AgentConnected):
            wanted = state.node(event.node).wanted_agent
            assert wanted is None or wanted.connected
        elif isinstance(event, ev.FailureJudged | ev.HangJudged):
            assert state.cause == event.cause

    def memory(self) -> Memory:
        return Memory(state=self.state, last_seq=self.rows.last_seq)

    def snapshot_is_published(self) -> None:
        self.stale = self.memory()

    def _restarts(self) -> None:
        """The next supervisor; a full disk has lost the end of the log."""
        before, memory = self.state, self.memory()
        if not self.rows.pending and self.random.random() < 0.5:
            memory = self.stale  # the last one died before it could publish
        self._restore(self._snapshot(memory))
        assert self.state == before, "the next supervisor knows another state"
        if self.lost_log:
            self.rows.folded = self.state
        self.stale = self.memory()
        self._record(ev.SupervisorRestarted(attempt=self.state.attempt))

    def _restore(self, snapshot: NodeSnapshot | None = None) -> None:
        self.lost_log |= bool(self.rows.pending)
        last_stored = self.rows.kept[-1].seq if self.rows.kept else 0
        self.rows.pending, self.rows.last_seq, self.todo = [], last_stored, []
        self.log = self._new_log()
        self.log.restore(self.rows.kept, snapshot)

    def _snapshot(self, memory: Memory) -> NodeSnapshot:
        return NodeSnapshot(
            job="train",
            job_id="train@1",
            host="h",
            seq=1,
            ts=EPOCH,
            state="running",
            started_at=EPOCH,
            memory=msgspec.json.decode(msgspec.json.encode(memory)),
        )

    def _verdict_of(self, order: pt.Order, attempt: int, chance: float) -> pt.Fact | None:
        """The result of an order that changes nothing on a host."""
        if isinstance(order, pt.KeepEvidence):
            return evidence_kept(order, attempt)
        if isinstance(order, pt.WaitForRestart):
            return pt.RestartDue(attempt=attempt)
        if not isinstance(order, pt.JudgeAttempt):
            return None
        outcome = self._outcome(attempt) if chance > 0.1 else None
        cause = None if outcome is None and order.trouble is None else CAUSE
        return pt.AttemptJudged(
            attempt=attempt, trouble=order.trouble, cause=cause, outcome=outcome, jitter=chance
        )

    def _outcome(self, attempt: int) -> AttemptOutcome:
        step = self.random.choice([None, 5, int(self.now_s)])
        return AttemptOutcome(attempt, 90.0, 5, None, "SIGKILL", None, global_step=step)


class Machine(Simulation, Host):
    """One job on one host, step by step."""

    def __init__(self, seed: int) -> None:
        Host.__init__(self, self, HERE)
        Simulation.__init__(self, seed, now_s=100.0)
        self.limit = self.random.randint(0, MOST_RESTARTS)
        self.is_command = self.random.random() < 0.2
        self.spec = make_spec(
            max_restarts=self.limit,
            nproc=RANKS,
            devices=DEVICES,
            kind="command" if self.is_command else "script",
            on_nan=self.random.choice(["restart", "stop"]),
            allow_shrink=True,
        )
        self.told: list[pt.ProcessExited] = []
        """Exits that may be reported again at any time."""
        if self.random.random() < 0.2:
            first = self.random.choice([ev.Queued(), ev.Queued(waits_for="GPU 0")])
            self._record(msgspec.structs.replace(first, attempt=0))
        else:
            self._launch(0)

    def _launch(self, attempt: int) -> None:
        launched = ev.Launched(attempt=attempt, target="train.py", nproc=RANKS, at_s=self.now_s)
        self._record(launched)
        self._start_agent(attempt)

    # -- the driver ------------------------------------------------------------------------------

    def _order(self, order: pt.Order) -> None:
        agent = self.agent
        if isinstance(order, pt.AnswerAgent | pt.TellAgent):
            if agent is not None and agent.listens:
                agent.receive(order)
        elif isinstance(order, pt.SkipWait):
            self._skip_wait()
        elif isinstance(order, pt.StartAgent):
            self._start_agent(order.attempt)
        elif isinstance(order, pt.WaitForRestart):
            self.todo = [one for one in self.todo if not isinstance(one[0], pt.WaitForRestart)]
            self.todo.append((order, self.state.attempt or 0))
        elif not isinstance(order, pt.InterruptRanks):
            work = (order, self.state.attempt or 0)
            if work not in self.todo:
                self.todo.append(work)

    def _record(self, event: ev.JobEvent) -> None:
        before = self.state
        self.log.emit(event)
        if before.is_over and not isinstance(event, ev.Launched):
            assert self.state == before, "an end is final"
        if not before.is_over or isinstance(event, ev.Launched):
            self._check_event(before, event)
        assert 0 <= self.state.budget.used <= self.limit, "the budget is overspent"

    def _check_event(self, before: JobState, event: ev.JobEvent) -> None:
        super()._check_event(before, event)
        state = self.state
        if isinstance(event, ev.AttemptStarted | ev.Launched | ev.AttemptOpened):
            assert state.attempt == event.attempt and not state.ranks
            life = state.node()
            assert state.restart is None and life.ending_ranks_at_s is None
            assert state.attempt_started_s == event.at_s and life.wanted_agent is None
            assert not life.sent
            assert state.trouble is None and state.first_step_after_s is None
            if not isinstance(event, ev.AttemptOpened):
                assert state.cause is None
            if state.attempt != before.attempt and not isinstance(event, ev.Launched):
                assert state.previous_cause == before.cause
                assert state.set_aside_before == before.set_aside
            if isinstance(event, ev.AttemptStarted):
                assert (state.launcher is not None) == self.is_command
        elif isinstance(event, ev.RankStarted):
            assert state.ranks[event.rank].pid == event.pid
        elif isinstance(event, ev.RankExited):
            rank = event.rank
            life = state.launcher if rank is None else state.ranks[rank]
            known = before.launcher if rank is None else before.ranks.get(rank)
            assert life is not None
            if known is not None and known.pid == event.pid and not known.exited:
                assert (life.exited, life.status, life.by_us) == (True, event.status, event.by_us)
        elif isinstance(event, ev.CheckpointSaved):
            assert state.checkpoint == event.checkpoint
        elif isinstance(event, ev.HangSuspected):
            assert state.suspected is not None and state.suspected.found == event.found
        elif isinstance(event, ev.AlertRaised):
            assert event.alert.id in state.alerts
        elif isinstance(event, ev.AlertsCleared):
            assert not state.alerts.keys() & event.messages.keys()
        elif isinstance(event, ev.Queued):
            assert state.in_queue
        elif isinstance(event, ev.Noticed):
            assert text(event) in [one.alert.message for one in state.alerts.values()]
        elif isinstance(event, ev.RunningAssumed):
            assert state.phase != "starting"
        elif isinstance(event, ev.RestartPrepared):
            assert state.set_aside == [*before.set_aside, *event.aside]
        elif isinstance(event, ev.TrainingStarted):
            assert state.first_step_after_s == event.after_s
        elif isinstance(event, ev.TroubleFound):
            assert state.trouble == event.reason
        elif isinstance(event, ev.RanksEnding):
            life = state.node()
            assert life.ending_ranks_at_s is not None
            assert life.ending_ranks_at_s <= event.at_s
            assert not event.failed or life.failed_before == event.failed
        elif isinstance(event, ev.FailureJudged | ev.HangJudged):
            if event.outcome is not None:
                assert state.history.failed[-1].outcome.attempt == event.attempt
        elif isinstance(event, ev.RestartDecided):
            last = state.history.failed[-1] if state.history.failed else None
            filled = last and last.progress and last.outcome.attempt == event.attempt
            assert state.budget.used == (0 if filled else before.budget.used) + 1
            assert state.is_decided and state.history.used == state.budget.used
            assert state.restart is not None and state.restart.at_s == event.at_s
        elif isinstance(event, ev.RestartRequested) and event.at_s is not None:
            counted = before.restart is not None and before.restart.counted
            assert state.budget.used == max(0, before.budget.used - counted)
            assert state.restart is not None and state.restart.at_s == event.at_s
            assert not state.history.failed
        elif isinstance(event, ev.RestartRequested):
            assert state.budget.used == before.budget.used and state.restart is not None
            assert not state.history.failed
            assert all(one.device not in event.devices_back for one in state.set_aside)
        elif isinstance(event, ev.EndDecided):
            assert state.ending is not None and state.restart is None
        elif isinstance(event, ev.StopRequested):
            assert state.ending is not None and state.ending.state == "stopped"
            assert state.kill_at_s == event.kill_at_s
        elif isinstance(event, ev.AgentLost):
            assert state.alerts
        elif isinstance(event, ev.GpuMemoryAwaited):
            assert bool(state.alerts) or not event.is_problem
        elif isinstance(event, ev.JobEnded):
            assert state.phase == event.state and state.ended_at is not None
            assert (state.exit_code == 0) == (event.state == "finished")
            assert not state.alerts and state.kill_at_s is None
            assert state.node().wanted_agent is None

    # -- the host --------------------------------------------------------------------------------

    def tell(self, fact: pt.Fact) -> None:
        self.take(fact)

    def may_connect(self) -> bool:
        return not self.state.is_over

    def begin(self, agent: Agent) -> None:
        if "stopping" in agent.orders:
            self.agent_ends(0)
        elif agent.listens:
            self._start_group(agent)

    def begin_next(self, agent: Agent, answer: pt.AnswerAgent) -> None:
        self._start_group(agent)

    def _start_agent(self, attempt: int) -> None:
        assert self.agent is None, "two agents"
        self.agent = Agent(pid=self.pid(), attempt=attempt)

    def _agent_state(self) -> pt.AgentState:
        agent = self.agent
        if agent is None:
            unseen = self.agent_exit
            if unseen is None:
                return pt.AgentState(cause=CAUSE)
            return msgspec.structs.replace(unseen.agent, pid=unseen.pid, status=None)
        asked = agent.question
        is_open = asked is not None and asked.kind == "torn_down" and agent.answer is None
        question = asked.question if asked is not None and is_open and agent.listens else None
        return pt.AgentState(
            pid=agent.pid, listens=agent.listens, attempt=agent.attempt, question=question
        )

    def _start_group(self, agent: Agent) -> None:
        assert not self.alive, "two attempts are alive"
        agent.workers = []
        for rank in [LAUNCHER] if self.is_command else range(RANKS):
            pid = self.pid()
            self.alive[pid] = (agent.attempt, rank)
            agent.workers.append(pt.Worker(rank=None if rank == LAUNCHER else rank, pid=pid))
        agent.stage = "watching"
        if agent.listens:
            self.report_group(agent)

    def report_exits(self) -> None:
        """Everything known on the host is reported to the job."""
        while self.untold:
            exited = self.untold.pop(0)
            self.told.append(exited)
            if self.random.random() < 0.1:  # how it exited becomes known only later
                self.take(msgspec.structs.replace(exited, status=None))
            self.take(exited)
            state = self.state
            life = state.launcher if exited.rank is None else state.ranks.get(exited.rank)
            if life is not None and life.pid == exited.pid and not state.is_over:
                assert life.status == exited.status, "how a rank exited is lost"
            if self.agent is None and self.agent_exit is None:
                self.take(pt.OrphanExited())

    # -- what can happen -------------------------------------------------------------------------

    def time_passes(self) -> None:
        self.now_s += self.random.choice((0.1, 1.0, 20.0))

    def queue_moves(self) -> None:
        """Devices become free for a job that waits for them, or do not."""
        if self.state.phase != "queued":
            return
        if self.random.random() < 0.5:
            self._record(ev.Queued(attempt=0, waits_for="GPU 0"))
        else:
            self._launch(0)

    def first_step(self) -> None:
        if self.alive and not self.state.is_over and self.state.world is not None:
            self._record(ev.TrainingStarted(attempt=self.state.attempt, after_s=1.0))

    def rank_dies(self) -> None:
        if self.alive:
            self.dies(self.random.choice(list(self.alive)), self.random.choice((-9, 1, 0)))

    def rank_appears(self) -> None:
        """A command starts a rank."""
        state, agent = self.state, self.agent
        if agent is None or agent.attempt != state.attempt or state.is_over:
            return
        if self.is_command and (agent.attempt, LAUNCHER) in self.alive.values():
            pid, rank = self.pid(), self.random.randrange(RANKS)
            if (agent.attempt, rank) not in self.alive.values() and state.launcher is not None:
                self.alive[pid] = (agent.attempt, rank)
                self.report_exits()
                self._record(ev.RankStarted(attempt=agent.attempt, rank=rank, pid=pid))

    def late_exit(self) -> None:
        """Happens in any attempt, any number of times."""
        if self.told:
            self.take(self.random.choice(self.told))

    def exits_are_reported(self) -> None:
        if self.agent is None or self.agent.listens:
            self.report_exits()

    def trouble_is_found(self) -> None:
        if self.alive and self.state.world is not None:
            reason: Any = self.random.choice(["hang", "nan"])
            is_found = self.state.phase == "running" and not self.state.is_decided
            self.take(pt.TroubleFound(reason=reason, ranks=[]))
            assert self.state.trouble is not None or not is_found, "trouble is not looked into"

    def something_is_noted(self) -> None:
        """Events that change nothing else."""
        attempt = self.state.attempt
        saved = Checkpoint(path=f"/ck/{self.now_s}", at=EPOCH, attempt=attempt)
        hot = Alert(id="hot", severity="warning", message="hot", since=EPOCH)
        if not self.state.is_over:
            self._record(
                self.random.choice(
                    (
                        ev.CheckpointSaved(attempt=attempt, checkpoint=saved),
                        ev.HangSuspected(attempt=attempt, found=f"stalled at {self.now_s}"),
                        ev.AlertRaised(attempt=attempt, alert=hot),
                        ev.AlertsCleared(attempt=attempt, messages={"hot": "hot"}),
                        ev.Noticed(attempt=attempt, text=f"a log was cut at {self.now_s}"),
                        ev.RunningAssumed(attempt=attempt),
                    )
                )
            )

    def someone_stops(self) -> None:
        if not self.state.is_over:
            self.has_stopped = True
            self.take(pt.StopAsked(grace_s=self.random.choice((0.0, 5.0))))

    def someone_restarts(self) -> None:
        back = [one.device for one in self.state.set_aside if self.random.random() < 0.5]
        asked = pt.RestartAsked(agent=self._agent_state(), devices_back=back)
        before = self.state
        try:
            self.take(asked)
        except ControlError:
            assert self.state == before, "a refused request changed something"
            return
        pending = self.state.restart
        assert self.state.phase == "restarting" and pending is not None and not pending.counted

    def agent_dies(self) -> None:
        if self.agent is not None:
            self.agent_ends(-9)

    def agent_exit_is_seen(self) -> None:
        self.see_agent_exit()

    def disk_is_full(self) -> None:
        self.rows.is_full = True

    def disk_has_room(self) -> None:
        self.rows.is_full = False

    def supervisor_dies(self) -> None:
        """Everything it was doing is lost."""
        self._restarts()
        if self.agent is not None:
            self.agent.listens = False
            if self.random.random() < 0.5:
                self.agent.orders.clear()  # they were not read yet
        is_seen = self.agent_exit is not None
        self.see_agent_exit()
        if self.agent is None:
            self.report_exits()
        self.take(pt.SupervisorStarted(agent=self._agent_state(), agent_end_seen=is_seen))

    def machine_reboots(self) -> None:
        """Everything dies at once; later, the job is started again."""
        if self.random.random() < 0.7:
            return
        self.alive, self.untold, self.agent, self.agent_exit = {}, [], None, None
        self._restore()
        self.rows.folded = self.state
        attempt = 1 + max([self.state.attempt or 0, *(one.attempt for one in self.told)])
        if not self.state.is_over:
            self._record(ev.JobLost(attempt=self.state.attempt, rebooted=True))
        self.has_stopped = False
        self._launch(attempt)
        self.stale = self.memory()

    def order_is_done(self) -> None:
        """One of the orders, in any order."""
        ready = [one for one in self.todo if self._is_ready(one[0])]
        if ready:
            one = self.random.choice(ready)
            self.todo.remove(one)
            fact = self._fact_of(*one)
            if fact is not None:
                self.take(fact)

    STEPS = (
        *(time_passes, first_step, rank_dies, exits_are_reported, late_exit) * 2,
        *(order_is_done, Host.agent_acts, Host.agent_connects) * 8,
        *(trouble_is_found, someone_restarts, agent_dies, agent_exit_is_seen) * 2,
        *(rank_appears, rank_appears, disk_is_full, disk_has_room, something_is_noted),
        *(supervisor_dies, Simulation.snapshot_is_published, disk_has_room) * 2,
        *(someone_stops, machine_reboots, queue_moves),
    )

    # -- what comes of an order ------------------------------------------------------------------

    def _is_ready(self, order: pt.Order) -> bool:
        if isinstance(order, pt.WaitForRestart):
            return order.at_s is None or order.at_s <= self.now_s
        return True

    def _fact_of(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        chance = self.random.random()
        if isinstance(order, pt.JudgeAttempt) and self.is_command:
            self._end_orphans()
        if (fact := self._verdict_of(order, attempt, chance)) is not None:
            return fact
        if isinstance(order, pt.EndLeftovers):
            (self._end_everything if order.with_agent else self._end_orphans)()
            return self._waited(order, chance)
        if isinstance(order, pt.ChooseDevices):
            return self._choose(chance)
        self._end_everything()
        if isinstance(order, pt.EndRanks):
            self.see_agent_exit()
        return pt.NothingLeft()

    def _end_orphans(self) -> None:
        """Processes that the agent does not watch."""
        self.ends(list(self.alive))
        self.report_exits()

    def _end_everything(self) -> None:
        self.ends_all()
        self.report_exits()

    def _waited(self, order: pt.EndLeftovers, chance: float) -> pt.LeftoversEnded:
        awaited = ev.GpuMemoryAwaited(
            seconds=9.0, found="GPU 0 has memory in use", is_problem=not order.with_agent
        )
        return pt.LeftoversEnded(
            question=order.question,
            with_agent=order.with_agent,
            memory=awaited if chance < 0.1 else None,
        )

    def _choose(self, chance: float) -> pt.DevicesChosen:
        aside, refused = [], None
        left = [d for d in DEVICES if d not in [one.device for one in self.state.set_aside]]
        if chance < 0.15 and len(left) > 1:
            aside = [ev.SetAside(device=left[0], reason="lost")]
        elif chance < 0.2:
            refused = "GPU 0: lost"
        return pt.DevicesChosen(
            agent=self._agent_state(),
            aside=aside,
            refused=refused,
            notes=["a note"] if aside else [],
        )

    # -- what always holds -----------------------------------------------------------------------

    def check(self) -> None:
        """The invariants after any step."""
        state = self.state
        assert len({attempt for attempt, _ in self.alive.values()}) <= 1, "two attempts are alive"
        assert not (state.is_over and self.alive), "ranks outlive the job"
        rows = [*self.rows.kept, *self.rows.pending]
        assert self.rows.folded == state, "the fold of the log is not the live state"
        exits = [
            (r.attempt, r.rank, r.pid, r.exit_code is None and r.signal is None)
            for r in rows
            if r.type == "rank_exited"
        ]
        assert len(exits) == len(set(exits)) or self.lost_log, "an exit is told twice"
        seqs = [row.seq for row in rows]
        assert seqs == sorted(set(seqs)), "two events have one number"
        for pid, (_, rank) in self.alive.items():
            life = state.launcher if rank == LAUNCHER else state.ranks.get(rank)
            assert life is None or life.pid != pid or not life.exited, "a living rank has exited"

    def settle(self) -> None:
        """Without further faults, the job ends, or its ranks train."""
        for _ in range(120):
            self.now_s += 60.0
            self.queue_moves()
            self.agent_connects()
            self.agent_acts()
            self.order_is_done()
            self.exits_are_reported()
            if self.agent is None:
                self.see_agent_exit()
        state = self.state
        if self.has_stopped:
            assert state.is_over, "a stop did not end the job"
            assert state.phase == "stopped", "a stop ended as something else"
        if not state.is_over:
            assert not self.todo, f"never done: {self.todo}"
            assert self.alive, f"the job is {state.phase}, and nothing trains"
            agent = self.agent
            assert agent is None or agent.stage == "watching", f"the agent waits: {agent}"
            assert state.phase in ("starting", "running"), f"the job stays {state.phase}"


def drive(seed: int, steps: int = 30) -> Machine:
    """One interleaving; the same seed gives the same one."""
    machine = Machine(seed)
    for _ in range(steps):
        step = machine.random.choice(Machine.STEPS)
        step(machine)
        machine.check()
    machine.settle()
    machine.check()
    return machine
