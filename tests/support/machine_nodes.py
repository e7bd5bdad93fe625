"""A simulated job on several nodes: the real `apply`, `decide`, and `EventLog` of its head.

As in `machine`, one step is one thing that can happen. What was on its way over a link is lost when
that breaks: orders, and the facts that follow from them. A node holds then; when its link returns,
it reports all that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tests.support.builders import make_spec
from tests.support.machine import EPOCH, LEADS_TO, MOST_RESTARTS, Agent, Host, Simulation

from ddptop_runner.base.errors import ControlError
from ddptop_runner.job.decide import begin_job
from ddptop_runner.job.state import JobState, hosts_of_ranks
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import Checkpoint
from ddptop_runner.model.spec import NodeSpec, Placement, Rendezvous

NODE_TIMEOUT_S = 40.0
ORPHAN_TIMEOUT_S = 600.0
JOIN_S = 60.0
"""How long the agents of an attempt wait for each other."""
LOST = 0.03
"""How often a link breaks while an order to the agent is on its way."""
UP_S = 30.0
"""How long to try to begin an attempt on a node that cannot be reached."""
ON_NODE = (
    *(pt.EndLeftovers, pt.StartAgent, pt.ChooseDevices),
    *(pt.AnswerAgent, pt.TellAgent, pt.InterruptRanks),
)
"""Orders that travel over a link."""


class Node(Host):
    """What runs on a node, and the part of ddptop that carries out the head's orders there."""

    def __init__(self, world: World, spec: NodeSpec) -> None:
        super().__init__(world, spec.host)
        self.spec = spec
        self.is_up = False
        """Whether its link is."""
        self.is_cut = False
        """Whether its link cannot be made."""
        self.is_full = False
        self.is_there = False
        """Whether its part of the job runs."""
        self.is_reported = True
        """Whether the head knows that its link is broken."""
        self.lost_s = world.now_s
        self.finished: set[int] = set()
        """Attempts whose ranks have all exited with 0 here."""

    def tell(self, fact: pt.Fact) -> None:
        """The head takes the fact, unless the link is down."""
        if self.is_up:
            self.world.take(fact)

    def report_exits(self) -> None:
        while self.untold:
            exited = self.untold.pop(0)
            self.tell(exited)
            if self.agent is None and self.agent_exit is None:
                self.tell(pt.OrphanExited(node=self.host))

    def state_of_agent(self) -> pt.AgentState:
        agent = self.agent
        if agent is None:
            seen = self.agent_exit or self.last_exit
            return pt.AgentState() if seen is None else seen.agent
        question = agent.question if agent.answer is None else None
        is_torn = question is not None and question.kind == "torn_down"
        return pt.AgentState(
            pid=agent.pid,
            listens=agent.listens,
            attempt=agent.attempt,
            question=question.question if question is not None and is_torn else None,
        )

    def link_is_made(self) -> None:
        """All that the node knows is reported, like an agent's hello."""
        self.is_up, self.is_reported = True, True
        agent, self.untold = self.agent, []
        if self.group is not None:
            self.tell(self.group)
        for exited in self.exits.values():
            self.tell(exited)
        exited, self.agent_exit = self.agent_exit, None
        self.last_exit = exited or self.last_exit
        if agent is not None and agent.listens and agent.question and agent.answer is None:
            self.tell(agent.question)
        self.tell(pt.LinkMade(node=self.host, is_there=self.is_there, agent=self.state_of_agent()))

    def start(self, attempt: int, meeting: Rendezvous) -> None:
        assert self.agent is None, "two agents"
        self.is_there, self.exits, self.agent_exit, self.last_exit = True, {}, None, None
        self.group = None
        self.agent = Agent(self.world.pid(), attempt, meeting, since_s=self.world.now_s)

    def dies(self, pid: int, status: int) -> None:
        attempt, _ = self.alive[pid]
        super().dies(pid, status)
        mine = [one for one in self.exits.values() if one.attempt == attempt]
        if len(mine) == self.spec.nproc and all(one.status == 0 for one in mine):
            self.finished.add(attempt)

    def part_ends(self) -> None:
        """Nothing of the job is left here."""
        self.ends_all()
        self.report_exits()
        self.see_agent_exit()
        self.agent_exit, self.is_there = None, False

    def carry_out(self, order: Any) -> None:
        """Orders without a result."""
        agent = self.agent
        if isinstance(order, pt.StartAgent):
            assert order.rendezvous is not None
            assert self.agent is None, "two agents"
            self.start(order.attempt, order.rendezvous)
        elif agent is not None and agent.listens:
            agent.receive(order)

    # -- what torch does -------------------------------------------------------------------------

    def may_connect(self) -> bool:
        return self.is_there

    def begin(self, agent: Agent) -> None:
        if agent.stage == "joining":
            self._joins(agent)
        elif agent.listens:
            agent.stage, agent.since_s = "joining", self.world.now_s

    def begin_next(self, agent: Agent, answer: pt.AnswerAgent) -> None:
        assert answer.rendezvous is not None, "it restarts, and nobody says where"
        agent.meeting, agent.workers, self.exits = answer.rendezvous, [], {}
        agent.stage, agent.since_s = "joining", self.world.now_s

    def _joins(self, agent: Agent) -> None:
        if "stopping" in agent.orders:
            self.agent_ends(0)
            return
        assert agent.meeting is not None
        there = [one for one in self.world.nodes.values() if one.has_joined(agent.meeting.run_id)]
        if len(there) == agent.meeting.nodes:
            for node in there:
                node.group_starts()
        elif self.world.now_s - agent.since_s > JOIN_S:
            self.agent_ends(1)

    def has_joined(self, run_id: str) -> bool:
        agent = self.agent
        if agent is None or agent.meeting is None or agent.stage != "joining":
            return False
        return agent.meeting.run_id == run_id

    def group_starts(self) -> None:
        agent = self.agent
        assert agent is not None and agent.meeting is not None
        assert not self.alive, "two attempts are alive on a node"
        assert str(agent.attempt) == agent.meeting.run_id.partition("@")[0], "another attempt"
        agent.workers, self.exits, agent.stage = [], {}, "watching"
        agent.orders = [one for one in agent.orders if one != "restart_group"]
        for local in range(self.spec.nproc):
            rank, pid = agent.meeting.first_rank + local, self.world.pid()
            self.alive[pid] = (agent.attempt, rank)
            agent.workers.append(pt.Worker(rank=rank, pid=pid, local_rank=local))
        self.world.started.setdefault(agent.attempt, set()).add(self.host)
        if agent.listens:
            self.report_group(agent)


class World(Simulation):
    """One job on several nodes, with a head that can be killed."""

    todo: list[tuple[Any, int, float]]
    """Orders, with their attempts and when they were given."""
    leads_to: ClassVar = LEADS_TO | {
        ev.TrainingStarted: (*LEADS_TO[ev.TrainingStarted], "starting")
    }

    def __init__(self, seed: int) -> None:
        super().__init__(seed, now_s=1000.0)
        count = self.random.randint(1, 3)
        self.limit = self.random.randint(0, MOST_RESTARTS)
        specs = [
            NodeSpec(
                host=f"n{index}",
                address=f"10.0.0.{index}",
                nproc=self.random.randint(1, 2),
                python="/usr/bin/python3",
                command=["ddptop-node"],
                ports=[29500, 29501, 29502],
            )
            for index in range(count)
        ]
        self.placement = Placement(
            by="pipe",
            nodes=specs,
            min_nodes=self.random.randint(1, count),
            node_timeout_s=NODE_TIMEOUT_S,
            orphan_timeout_s=ORPHAN_TIMEOUT_S,
        )
        self.spec = make_spec(
            max_restarts=self.limit,
            nproc=sum(one.nproc for one in specs),
            placement=self.placement,
            on_nan=self.random.choice(["restart", "stop"]),
        )
        self.started: dict[int, set[str]] = {}
        """By attempt, the nodes on which its ranks were started."""
        self.nodes = {one.host: Node(self, one) for one in specs}
        self.has_asked = False
        self.can_lose = True
        """Whether a node may be lost at last."""
        self.fates: dict[str, str] = {}
        """What becomes of nodes at last; of the others, that they come back."""
        if self.random.random() < 0.5:
            for host in self.random.sample(list(self.nodes), self.random.randint(1, count)):
                self.fates[host] = self.random.choice(["off", "cut", "full"])
        for node in self.nodes.values():
            node.is_up = True
        self._record(ev.Launched(attempt=0, target="train.py", nproc=2, at_s=self.now_s))
        self._carry(begin_job(0, self.now_s, self.spec))

    # -- the head --------------------------------------------------------------------------------

    def _order(self, order: Any) -> None:
        attempt = self.state.attempt or 0
        if isinstance(order, ON_NODE) and not self.nodes[order.node].is_up:
            return
        if isinstance(order, pt.AnswerAgent | pt.TellAgent | pt.StartAgent):
            if self.random.random() < LOST:
                self._break(self.nodes[order.node])
            else:
                self.nodes[order.node].carry_out(order)
        elif isinstance(order, pt.SkipWait):
            self._skip_wait()
        elif isinstance(order, pt.WaitForRestart):
            self.todo = [one for one in self.todo if not isinstance(one[0], pt.WaitForRestart)]
            self.todo.append((order, attempt, self.now_s))
        elif isinstance(order, pt.InterruptRanks):
            pass
        elif (order, attempt) not in [one[:2] for one in self.todo]:
            self.todo.append((order, attempt, self.now_s))

    def _record(self, event: ev.JobEvent) -> None:
        before = self.state
        self.log.emit(event)
        if before.is_over:
            assert self.state == before, "an end is final"
        else:
            self._check_event(before, event)
        assert 0 <= self.state.budget.used <= self.limit, "the budget is overspent"

    def _check_event(self, before: JobState, event: ev.JobEvent) -> None:
        super()._check_event(before, event)
        state = self.state
        if isinstance(event, ev.RankExited):
            known = before.ranks.get(event.rank or 0)
            again = known is not None and known.exited and known.status is not None
            assert not again, "an exit is told twice"
        elif isinstance(event, ev.NodesChosen):
            assert len(event.nodes) >= self.placement.min_nodes, "too few nodes"
            assert state.restart is not None and state.restart.nodes == event.nodes
            for host in event.nodes if before.nodes else ():
                life = before.nodes[host]
                assert not life.refused and life.unknown_since is None, f"{host} is chosen"
        elif isinstance(event, ev.AttemptStarted):
            assert state.restart is None and before.restart is not None
            members = [host for host, life in state.nodes.items() if life.takes_part]
            assert members == before.restart.nodes or set(members) == set(before.restart.nodes)
            assert state.world == sum(self.nodes[host].spec.nproc for host in members)
        elif isinstance(event, ev.AttemptOpened):
            assert state.attempt == event.attempt and state.restart is None and not state.ranks
        elif isinstance(event, ev.RankStarted):
            assert event.node in self.started[state.attempt or 0]
            assert (
                state.ranks[event.rank].node == event.node
                and event.node in state.hosts_with_processes
            )
        elif isinstance(event, ev.NodeFailed):
            assert state.nodes[event.node].failed and state.nodes[event.node].takes_part
        elif isinstance(event, ev.NodeEnded):
            assert state.nodes[event.node].ended == event.well
            finished = state.attempt in self.nodes[event.node].finished
            assert finished or not event.well, f"{event.node} has not finished"
        elif isinstance(event, ev.NodeUnreachable):
            assert state.nodes[event.node].unknown_since is not None
        elif isinstance(event, ev.NodeReachable):
            assert state.nodes[event.node].unknown_since is None
        elif isinstance(event, ev.NodeLost):
            assert state.nodes[event.node].lost
        elif isinstance(event, ev.RanksEnding):
            names = [event.node] if event.node is not None else list(self.nodes)
            assert all(state.nodes[name].ending_ranks_at_s is not None for name in names)
        elif isinstance(event, ev.RestartRequested):
            self._check_request(before, event)
        elif isinstance(event, ev.EndDecided) and event.ending.state == "finished":
            members = [host for host, life in before.nodes.items() if life.takes_part]
            done = [state.attempt in self.nodes[host].finished for host in members]
            over = [not self.nodes[host].alive for host in members]
            assert all(done) or all(over), "it has not finished"
        elif isinstance(event, ev.EndDecided) and str(event.ending.reason).startswith("fewer"):
            lives = [before.nodes[host] for host in self.nodes]
            away = [one for one in lives if one.unknown_since and not one.refused]
            early = [one for one in away if one.away_s(self.now_s) < NODE_TIMEOUT_S - 0.1]
            refuses = any(node.is_full for node in self.nodes.values())
            assert refuses or any(one.refused for one in lives) or away, "no node is missing"
            assert not early or refuses, "a node was not waited for"
        elif isinstance(event, ev.JobEnded):
            back = [node.host for node in self.nodes.values() if node.is_up and node.alive]
            assert not back, f"ranks outlive the job on {back}"
            if event.state == "stopped":
                assert self.has_stopped, "nobody has asked for a stop"
            if event.state == "failed":
                assert event.cause is not None, "it fails for no reason"

    def _check_request(self, before: JobState, event: ev.RestartRequested) -> None:
        """Nothing is restarted because of a head or a link."""
        members = [host for host, life in before.nodes.items() if life.takes_part]
        if event.node is not None:
            lives = [before.nodes[host] for host in members]
            away = [one.away_s(self.now_s) for one in lives if one.unknown_since]
            assert not away or (len(away) == len(lives) and min(away) > NODE_TIMEOUT_S - 0.1), (
                f"others may train on, and {event.node} is taken back"
            )
        elif event.without is None:
            assert self.has_asked, "nobody has asked for a restart"

    # -- what can happen -------------------------------------------------------------------------

    def some(self) -> Node:
        return self.random.choice(list(self.nodes.values()))

    def time_passes(self) -> None:
        self.now_s += self.random.choice((0.1, 1.0, 20.0))

    def rank_dies(self) -> None:
        node = self.some()
        if node.alive:
            node.dies(self.random.choice(list(node.alive)), self.random.choice((-9, 1)))

    def ranks_finish(self) -> None:
        if self.random.random() < 0.3:
            for node in self.nodes.values():
                for pid in list(node.alive):
                    node.dies(pid, 0)

    def peers_fail(self) -> None:
        """Ranks whose peers are gone fail too."""
        for node in self.nodes.values():
            for pid, (attempt, _) in list(node.alive.items()):
                if self._lost_peers(attempt) and self.random.random() < 0.5:
                    node.dies(pid, 1)

    def _lost_peers(self, attempt: int) -> bool:
        for host in self.started.get(attempt, ()):
            node = self.nodes[host]
            here = {one for one, _ in node.alive.values()}
            if attempt not in here and attempt not in node.finished:
                exits = [one for one in node.exits.values() if one.attempt == attempt]
                if not exits or any(one.status != 0 for one in exits):
                    return True
            if any(one.status != 0 and one.attempt == attempt for one in node.exits.values()):
                return True
        return False

    def exits_are_reported(self) -> None:
        node = self.some()
        if node.agent is None or node.agent.listens:
            node.report_exits()

    def agent_connects(self) -> None:
        self.some().agent_connects()

    def agent_acts(self) -> None:
        self.some().agent_acts()

    def agent_dies(self) -> None:
        node = self.some()
        if node.agent is not None:
            node.agent_ends(-9)

    def first_step(self) -> None:
        for node in self.nodes.values():
            trains = any(attempt == self.state.attempt for attempt, _ in node.alive.values())
            if (
                trains and node.host in self.state.hosts_with_processes
            ):  # else, it does not count steps yet
                event = ev.TrainingStarted(attempt=self.state.attempt, after_s=1.0)
                self._notices(node, event)

    def node_tells(self) -> None:
        node, attempt = self.some(), self.state.attempt
        saved = Checkpoint(path=f"/ck/{self.now_s}", at=EPOCH, attempt=attempt)
        event: Any = self.random.choice(
            [
                ev.Noticed(attempt=attempt, text=f"something at {self.now_s}"),
                ev.CheckpointSaved(attempt=attempt, checkpoint=saved),
            ]
        )
        if node.is_there:
            self._notices(node, event)

    def _notices(self, node: Node, event: Any) -> None:
        node.tell(pt.NodeNoticed(node=node.host, event=event))
        state = self.state
        if not node.is_up or state.is_over:
            return
        if isinstance(event, ev.Noticed):
            shown = [one.alert.message for one in state.alerts.values()]
            assert f"{node.host}: {event.text}" in shown, "a notice is lost"
        elif state.node(node.host).takes_part and isinstance(event, ev.CheckpointSaved):
            assert state.checkpoint == event.checkpoint, "a checkpoint is lost"
        elif state.node(node.host).takes_part:
            assert state.first_step_after_s is not None, "the first step is lost"

    def trouble_is_found(self) -> None:
        if self.state.world is not None and self.random.random() < 0.5:
            reason: Any = self.random.choice(["hang", "nan"])
            self.take(pt.TroubleFound(reason=reason, ranks=[]))

    def link_breaks(self) -> None:
        node = self.some()
        node.is_cut = node.is_cut or self.random.random() < 0.7
        self._break(node)

    def _break(self, node: Node) -> None:
        """Some of what was ordered there has still arrived, but what follows is not known."""
        if not node.is_up:
            return
        node.is_up, node.is_reported, node.lost_s = False, False, self.now_s
        kept = []
        for one in self.todo:
            if isinstance(one[0], ON_NODE) and one[0].node == node.host:
                if self.random.random() < 0.5:
                    self._done_on(node, *one)
            else:
                kept.append(one)
        self.todo = kept

    def break_is_reported(self) -> None:
        for node in self.nodes.values():
            if not node.is_up and not node.is_reported:
                node.is_reported = True
                self.take(pt.LinkBroken(node=node.host, why="No route to host"))

    def links_return(self) -> None:
        for node in self.nodes.values():
            node.is_cut = False

    def link_is_made(self) -> None:
        node = self.some()
        if not node.is_up and not node.is_cut and not self.state.is_over:
            node.link_is_made()

    def nodes_supervisor_dies(self) -> None:
        """The next one finds the same agent, and what it had begun is forgotten."""
        node = self.some()
        if node.is_there:
            self._break(node)
            if node.agent is not None:
                node.agent.listens = False
                if self.random.random() < 0.5:
                    node.agent.orders.clear()

    def node_dies(self) -> None:
        node = self.some()
        if self.random.random() < 0.5:
            self._dies(node)

    def _dies(self, node: Node) -> None:
        self._break(node)
        node.alive, node.agent, node.agent_exit, node.last_exit = {}, None, None, None
        node.untold, node.exits, node.is_there, node.is_cut = [], {}, False, True
        node.group = None

    def disk_fills(self) -> None:
        self.some().is_full = self.random.random() < 0.3

    def heads_disk_fills(self) -> None:
        self.rows.is_full = self.random.random() < 0.3

    def orphans_end(self) -> None:
        """A node without its head ends its part after a while."""
        for node in self.nodes.values():
            if not node.is_up and self.now_s - node.lost_s > ORPHAN_TIMEOUT_S and node.is_there:
                node.part_ends()

    def someone_restarts(self) -> None:
        before, asked = self.state, self.has_asked
        self.has_asked = True
        try:
            self.take(pt.RestartAsked(agent=pt.AgentState()))
        except ControlError:
            self.has_asked = asked
            assert self.state == before, "a refused request changed something"
            return
        assert self.state.restart is not None and not self.state.restart.counted

    def someone_stops(self) -> None:
        if not self.state.is_over and self.random.random() < 0.3:
            self.has_stopped = True
            self.take(pt.StopAsked(grace_s=self.random.choice((0.0, 5.0))))

    def head_dies(self) -> None:
        for node in self.nodes.values():
            self._break(node)
            node.is_reported = True  # the next head tries to reach it
        self._restarts()
        self.take(pt.SupervisorStarted(agent=pt.AgentState()))
        for node in self.nodes.values():
            node.is_reported = False

    def order_is_done(self) -> None:
        ready = [one for one in self.todo if self._is_ready(one[0], one[2])]
        if ready:
            self._do(self.random.choice(ready))

    def _do(self, one: tuple[Any, int, float]) -> None:
        self.todo.remove(one)
        order = one[0]
        if isinstance(order, ON_NODE):
            fact = self._done_on(self.nodes[order.node], *one)
        else:
            fact = self._fact_of(*one)
        if fact is not None:
            self.take(fact)

    STEPS: tuple[Callable[[World], None], ...] = (
        *(time_passes, rank_dies, exits_are_reported, peers_fail, first_step) * 2,
        *(order_is_done, agent_acts, agent_connects) * 12,
        *(link_breaks, break_is_reported, links_return, link_is_made, link_is_made),
        *(nodes_supervisor_dies, node_dies, disk_fills, heads_disk_fills, head_dies),
        *(agent_dies, trouble_is_found, node_tells, ranks_finish),
        Simulation.snapshot_is_published,
        *(someone_restarts, someone_stops, orphans_end),
    )

    # -- what comes of an order ------------------------------------------------------------------

    def _is_ready(self, order: pt.Order, given_s: float) -> bool:
        if isinstance(order, pt.WaitForRestart):
            return order.at_s is None or order.at_s <= self.now_s
        if isinstance(order, pt.AwaitNodes):
            return self.now_s >= given_s + order.seconds
        if isinstance(order, pt.BeginOn):
            return self.nodes[order.node].is_up or self.now_s >= given_s + UP_S
        return True

    def _done_on(self, node: Node, order: Any, attempt: int, given_s: float) -> pt.Fact | None:
        if isinstance(order, pt.EndLeftovers) and order.with_agent:
            node.ends_all()
            node.report_exits()
            node.agent_exit = None
            return pt.LeftoversEnded(node=node.host, with_agent=True)
        if isinstance(order, pt.EndLeftovers):
            if order.grace_s is not None or order.question is None:
                for pid in list(node.alive):
                    node.dies(pid, -15)
            node.report_exits()
            return pt.LeftoversEnded(node=node.host, question=order.question)
        assert isinstance(order, pt.ChooseDevices), order
        refused = "GPU 0: lost" if node.is_full else None
        return pt.DevicesChosen(
            node=node.host,
            agent=node.state_of_agent(),
            refused=refused,
        )

    def _fact_of(self, order: Any, attempt: int, given_s: float) -> pt.Fact | None:
        chance = self.random.random()
        if isinstance(order, pt.BeginOn):
            return self._begin(order, attempt)
        if (fact := self._verdict_of(order, attempt, chance)) is not None:
            return fact
        if isinstance(order, pt.AwaitNodes):
            return pt.NodesDue(attempt=attempt)
        if isinstance(order, pt.AskCheckpoint):
            return pt.CheckpointWaited(attempt=attempt)
        hosts = [order.node] if isinstance(order, pt.EndOn) else list(self.nodes)
        for host in hosts:
            if self.nodes[host].is_up:
                self.nodes[host].part_ends()
        if isinstance(order, pt.EndOn):
            return None
        return pt.NothingLeft()

    def _begin(self, order: pt.BeginOn, attempt: int) -> pt.Fact | None:
        node, pending = self.nodes[order.node], self.state.restart
        if pending is None or pending.next_attempt != order.attempt or self.state.ending:
            is_gone = node.is_up and not node.is_there
            return pt.LinkMade(node=node.host, is_there=False) if is_gone else None
        if not node.is_up:
            return pt.NodeRefused(
                node=node.host, attempt=order.attempt, error="it cannot be reached"
            )
        if node.is_there:
            self._order(pt.ChooseDevices(node=node.host))
            return None
        if node.is_full:
            return pt.NodeRefused(
                node=node.host, attempt=order.attempt, error="disk full", answered=True
            )
        node.start(order.attempt, order.rendezvous)
        return None

    # -- what always holds -----------------------------------------------------------------------

    def check(self) -> None:
        """The invariants after any step."""
        state = self.state
        assert self.rows.folded == state, "the fold of the log is not the live state"
        heard = [node for node in self.nodes.values() if node.is_up]
        assert not (state.is_over and any(node.alive for node in heard)), "ranks outlive the job"
        rows = [*self.rows.kept, *self.rows.pending]
        seqs = [row.seq for row in rows]
        assert seqs == sorted(set(seqs)), "two events have one number"
        for node in self.nodes.values():
            assert len({attempt for attempt, _ in node.alive.values()}) <= 1, "two attempts"
            for pid, (attempt, rank) in node.alive.items():
                life = state.ranks.get(rank)
                is_same = attempt == state.attempt and life is not None and life.pid == pid
                assert not is_same or not life.exited, "a living rank has exited"

    def settle(self) -> None:
        """Some nodes return, some are gone: the job ends, or its ranks train."""
        for node in self.nodes.values():
            fate = self.fates.get(node.host)
            node.is_full = fate == "full" or (fate is None and node.is_full)
            node.is_cut = fate in ("cut", "off")
            if fate == "off":
                self._dies(node)
            elif fate == "cut":
                self._break(node)
        self.rows.is_full = False
        may_lose_one = self.can_lose and len(self.nodes) > self.placement.min_nodes
        if may_lose_one and self.random.random() < 0.2:
            self._go_on_without_one()
        for _ in range(200):
            self.now_s += 7.0
            self._round()
        state = self.state
        if self.has_stopped:
            assert state.is_over, "a stop did not end the job"
            assert state.phase == "stopped", "a stop ended as something else"
        if state.is_over:
            return
        self._check_rest()
        self.has_stopped = True
        self.take(pt.StopAsked(grace_s=0.0))
        for _ in range(20):
            self.now_s += 7.0
            self._round()
        assert self.state.is_over, "a stop does not end the job"

    def _go_on_without_one(self) -> None:
        """The others train for a while before it returns."""
        node = self.some()
        self._dies(node)
        for _ in range(40):
            self.now_s += 7.0
            self._round()
        self.first_step()
        node.is_cut = self.fates.get(node.host) in ("cut", "off")

    def _round(self) -> None:
        for node in self.nodes.values():
            if not node.is_up and not node.is_cut and not self.state.is_over:
                node.link_is_made()
        self.break_is_reported()
        self.peers_fail()
        for node in self.nodes.values():
            node.agent_connects()
            if node.agent is None or node.agent.listens:
                node.report_exits()
            node.agent_acts()
        for one in [one for one in self.todo if self._is_ready(one[0], one[2])]:
            if one in self.todo:
                self._do(one)
        self.orphans_end()

    def _check_rest(self) -> None:
        state = self.state
        members = [host for host, life in state.nodes.items() if life.takes_part]
        heard = [host for host in members if self.nodes[host].is_up]
        busy = [one for one, *_ in self.todo if not isinstance(one, pt.AwaitNodes)]
        assert not busy, f"never done: {busy}"
        for host, node in self.nodes.items():
            life = state.nodes[host]
            assert (life.unknown_since is None) == node.is_up, f"{host}: {life}"
            agent = node.agent
            if host in members and node.is_up:
                trains = bool(node.alive) and (agent is None or agent.stage == "watching")
                assert trains or state.attempt in node.finished, (
                    f"{host} does not train: {agent}; the job is {state.phase}"
                )
                assert {a for a, _ in node.alive.values()} <= {state.attempt}, "another attempt"
            elif node.is_up:
                assert life.refused or len(heard) < len(members), f"{host} is left out"
                assert not node.is_there, f"{host} is left out, and runs"
        assert not heard or state.phase in ("starting", "running"), f"it stays {state.phase}"
        hosts = hosts_of_ranks(state, self.spec)
        if heard == members:
            alive = [rank for host in heard for _, rank in self.nodes[host].alive.values()]
            assert set(alive) <= set(hosts) and alive, "nothing trains"


def drive(
    seed: int,
    steps: tuple[Callable[[World], None], ...] = World.STEPS,
    count: int = 60,
    *,
    settles_first: bool = False,
) -> World:
    """One interleaving of everything that can happen; the same seed gives the same one.

    Args:
        seed: decides on all.
        steps: what can happen.
        count: how often something does.
        settles_first: it trains before the first of them, and every node comes back.
    """
    world = World(seed)
    if settles_first:
        world.fates, world.can_lose = {}, False
        for _ in range(20):
            world._round()
    for _ in range(count):
        world.random.choice(steps)(world)
        world.check()
        if world.state.is_over:
            break
    world.settle()
    world.check()
    return world
