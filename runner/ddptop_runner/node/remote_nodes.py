"""The head's view of a job's nodes: passes on their facts, and its own events and orders."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.host import handover
from ddptop_runner.job.decide import Decision
from ddptop_runner.job.event_log import NodeMemory
from ddptop_runner.job.state import away_for_long, hosts_of_ranks
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.hangs.verdict import RankProgress
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.spec import JobSpec, Membership, Placement
from ddptop_runner.model.words import HERE, LIVE_STATES
from ddptop_runner.node.control import R
from ddptop_runner.node.engine import POLL_S, until
from ddptop_runner.node.links import SILENT_S, LinkError, NodeLink
from ddptop_runner.node.process import TICK_S, JobProcess
from ddptop_runner.node.remote import node_job_id

LINK_GRACE_S = 3.0
"""A broken link is reported if it is not restored within this time."""
UP_S = 30.0
"""An attempt cannot begin if one of its nodes is not reached within this time."""
EVIDENCE_S = 10.0
EACH_S = 8.0
"""A user's command waits for 10 s."""
RETRY_S = 0.5
AWAY_S = 10.0
"""How long to wait for an unreachable node whose ranks have to end."""
ENDED_S = 60.0
"""Time for a node's part to end, in addition to its ranks' grace period."""
MOST_REPEATED = 4096
"""Facts that are kept until a node has repeated all; more are not a node's."""
ORPHANED_S = 120.0
"""A part without contact ends within this time after the orphan timeout."""
FOR_NODES = (
    *(pt.AnswerAgent, pt.TellAgent, pt.InterruptRanks, pt.EndLeftovers),
    *(pt.ChooseDevices, pt.StartAgent),
)
"""Orders that a node carries out itself."""
FACTS = (
    *(pt.AgentListens, pt.GroupStarted, pt.ProcessExited, pt.OrphanExited, pt.AgentExited),
    *(pt.AgentAsked, pt.LeftoversEnded, pt.DevicesChosen, pt.LinkMade),
)
"""Facts that a node may report."""
COPIED = (
    *(ev.AttemptStarted, ev.AttemptOpened, ev.RankStarted, ev.RankExited, ev.RanksEnding),
    *(ev.TroubleFound, ev.TroubleDropped, ev.FailureJudged, ev.HangJudged, ev.EndDecided),
    *(ev.RestartDecided, ev.RestartRequested, ev.RestartPrepared),
    *(ev.AgentConnected, ev.AgentLost, ev.StopRequested),
    ev.GpuMemoryAwaited,
)
"""Events that a node takes over, unless they are about another one."""
T = TypeVar("T", bound=msgspec.Struct)


class Reported(enum.Enum):
    """What a node has reported about its part of the job over the current link."""

    NOT_DUE = enum.auto()
    """Nothing, and it cannot have anything of the job yet."""
    NOTHING = enum.auto()
    INCOMPLETE = enum.auto()
    """Only that it runs, so it was asked to repeat its facts."""
    COMPLETE = enum.auto()
    """All that has happened."""
    ABSENT = enum.auto()
    """That nothing of the job is there."""


@dataclasses.dataclass
class RemoteNode:
    """One node."""

    link: NodeLink
    reported: Reported = Reported.NOTHING
    ended: bool = True
    """Whether it has no processes."""
    snapshot: NodeSnapshot | None = None
    progress: list[RankProgress] = dataclasses.field(default_factory=list)
    seen_s: float = 0.0
    """CLOCK_BOOTTIME of the snapshot's arrival."""
    last_report_s: float = 0.0
    """The same for the last report of any kind, or for the link."""
    repeated: list[pt.Fact] = dataclasses.field(default_factory=list)
    """Facts that it repeats over a new link, until the last one names what it has missed."""
    outbox: list[pt.Carry] = dataclasses.field(default_factory=list)
    """What is yet to be sent."""
    sending: asyncio.Task[None] | None = None
    is_stale: bool = False
    """Whether its part may have started unseen, by an earlier head or while the link broke."""
    is_beginning: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    """Held during a request to begin an attempt, since a later one may be decided by then."""
    broken: asyncio.TimerHandle | None = None
    """Reports the broken link, unless it is restored first."""

    @property
    def is_known(self) -> bool:
        """Whether it is reachable and its state is known."""
        return self.link.is_up and (self.has_reported or self.reported is Reported.NOT_DUE)

    @property
    def has_reported(self) -> bool:
        """Whether its state has been reported over the current link."""
        return self.reported in (Reported.COMPLETE, Reported.ABSENT)

    def is_live(self, now_s: float) -> bool:
        """Whether what is known about it is current."""
        return self.snapshot is not None and self.link.is_up and now_s - self.seen_s < 5 * TICK_S

    def snapshot_of(self, attempt: int | None) -> NodeSnapshot | None:
        """Its last snapshot, unless from another attempt."""
        seen = self.snapshot
        return seen if seen is not None and seen.attempt == attempt else None


class RemoteNodes:
    """The nodes of one job.

    Args:
        spec: the job.
        placement: its nodes.
        process: the head's; its log holds the state of the job.
        take: receives the facts of nodes and links.
    """

    def __init__(
        self,
        spec: JobSpec,
        placement: Placement,
        process: JobProcess,
        take: Callable[[pt.Fact], None],
    ) -> None:
        self._spec, self._placement = spec, placement
        self._process, self._log, self._take = process, process.log, take
        self.judged: dict[str, pt.RanksJudged] = {}
        """By host, how its ranks of this attempt ended."""
        self.by_host: dict[str, RemoteNode] = {}
        self.keeping_evidence = asyncio.Lock()
        """The next attempt must not end processes whose evidence is being saved."""
        self._has_evidence: set[str] = set()
        self._recovered: dict[str, str] = {}
        """Variables of the launching shell that this process lacks, from a node's processes."""
        self._asked: set[str] = set()
        """Nodes that were asked for them."""
        self._silent: set[str] = set()
        """Nodes that could not save evidence, because they have failed or are gone."""

    @property
    def _attempt(self) -> int:
        return self._log.state.attempt or 0

    def restore(self, known: Mapping[str, NodeMemory] | None) -> None:
        """Create the nodes from what an earlier head knew; none is connected yet."""
        for index, node in enumerate(self._placement.nodes):
            kept = (known or {}).get(node.host) or NodeMemory()
            link = NodeLink(
                self._placement,
                node,
                node_job_id(self._spec.job_id, index),
                kept.seq,
                self.take_report,
                self._link_made,
                self._link_broken,
            )
            reported = Reported.NOT_DUE if known is None else Reported.NOTHING
            self.by_host[node.host] = RemoteNode(
                link, reported, ended=kept.ended, is_stale=known is not None
            )

    def memory(self) -> dict[str, NodeMemory]:
        """What `restore` needs."""
        return {
            host: NodeMemory(seq=node.link.seq, ended=node.ended)
            for host, node in self.by_host.items()
        }

    def begin_attempt(self) -> None:
        """Reset what belongs to the previous attempt."""
        self._has_evidence.clear()
        self._silent.clear()
        self.judged.clear()

    # -- nodes' reports --------------------------------------------------------------------------

    def take_report(
        self,
        link: NodeLink,
        report: pt.NodeEvent | pt.NodeFact | pt.NodeState,
    ) -> None:
        """Take in a node's fact, event, or state, or the absence of its part."""
        node = self.by_host[link.host]
        node.last_report_s = boottime_s()
        if isinstance(report, pt.NodeEvent):
            event = _shifted(ev.of_row(report.event), link.shift_s)
            if isinstance(event, ev.Launched):
                node.ended = False
            elif isinstance(event, ev.JobEnded):
                node.ended = True
            else:
                self._report(pt.NodeNoticed(node=link.host, event=event))
        elif isinstance(report, pt.NodeFact):
            self._take_fact(node, report.fact)
        else:
            node.snapshot, node.seen_s = report.snapshot, node.last_report_s
            node.progress = [msgspec.convert(one, RankProgress) for one in report.progress]
            if report.snapshot.state not in LIVE_STATES:
                self._report_absent(node)
            elif node.reported in (Reported.NOT_DUE, Reported.NOTHING):
                # facts may be lost, as it was silent
                node.reported, node.repeated = Reported.INCOMPLETE, []
                with contextlib.suppress(LinkError):
                    link.follow()

    def _take_fact(self, node: RemoteNode, fact: pt.Fact) -> None:
        if not isinstance(fact, FACTS):
            return
        if isinstance(fact, pt.LinkMade):
            if not fact.is_there:
                self._report_absent(node)
                return
            if node.reported is Reported.COMPLETE:
                return  # each one costs a read of the history
        elif len(node.repeated) >= MOST_REPEATED:
            return
        fact = _shifted(replace(fact, node=node.link.host), node.link.shift_s)
        if isinstance(fact, pt.LinkMade):
            node.ended, node.is_stale, node.reported = False, False, Reported.COMPLETE
            rows = self._process.rows_after(fact.after_seq)
            missed = self._copies([ev.of_row(row) for row in rows], node)
            seq = self._process.history.last_seq
            node.outbox = [pt.Carry(events=missed, seq=seq)] if missed else []
            self._flush(node)
        node.repeated.append(fact)
        while node.has_reported and node.repeated:
            self._report(node.repeated.pop(0))

    def _report_absent(self, node: RemoteNode) -> None:
        node.ended, node.is_stale = True, False
        if node.reported is not Reported.ABSENT:
            node.reported = Reported.ABSENT
            self._report(pt.LinkMade(node=node.link.host, is_there=False))

    def _link_made(self, link: NodeLink) -> None:
        node = self.by_host[link.host]
        if node.reported is not Reported.NOT_DUE:
            node.reported = Reported.NOTHING
        node.repeated, node.last_report_s = [], boottime_s()
        if node.broken is not None:
            node.broken.cancel()
            node.broken = None

    def _link_broken(self, link: NodeLink, why: str) -> None:
        node = self.by_host[link.host]
        if node.broken is None:
            report = pt.LinkBroken(node=link.host, why=why)
            node.broken = asyncio.get_running_loop().call_later(
                LINK_GRACE_S, lambda: self._report(report)
            )

    def look_at_silence(self, now_s: float) -> None:
        """Report each node with a working link whose part of the job no longer reports."""
        for host, node in self.by_host.items():
            if node.link.is_up and not node.ended and now_s - node.last_report_s > SILENT_S:
                node.reported, node.repeated = Reported.NOTHING, []
                self._report(pt.LinkBroken(node=host, why="its supervisor does not respond"))

    def _report(self, fact: pt.Fact) -> None:
        self._process.defects.call(lambda: self._take(fact), None)

    def snapshots(self) -> dict[str, NodeSnapshot]:
        """Each node's last snapshot in the current attempt."""
        attempt = self._log.state.attempt
        found = {host: node.snapshot_of(attempt) for host, node in self.by_host.items()}
        return {host: seen for host, seen in found.items() if seen is not None}

    def stale(self) -> list[str]:
        """The nodes about which nothing current is known."""
        now_s = boottime_s()
        return [host for host, node in self.by_host.items() if not node.is_live(now_s)]

    def progress(self, now_s: float) -> list[RankProgress] | None:
        """The progress of all ranks; None if a node's is unknown, so that nothing can be judged.

        Nodes that have been away for long are excluded: the others train on, or hang without them.
        Until a node has started its ranks, other nodes' ranks may wait for them, and its reports
        are from the previous attempt.
        """
        found: list[RankProgress] = []
        attempt = self._log.state.attempt
        away = away_for_long(self._log.state, now_s, self._spec)
        started = self._log.state.hosts_with_processes
        for host, life in self._log.state.nodes.items():
            if not life.takes_part or host in away or life.ended:
                continue
            node = self.by_host[host]
            if not (host in started and node.is_live(now_s) and node.snapshot_of(attempt)):
                return None
            found += node.progress
        return found or None

    def alerts(self) -> list[Finding]:
        """The nodes' findings about their disks, logs, and devices, with the nodes' names."""
        now_s = boottime_s()
        return [
            Finding(f"{alert.id}@{host}", alert.severity, f"{host}: {alert.message}", host=host)
            for host, node in self.by_host.items()
            if node.snapshot is not None and node.is_live(now_s)
            for alert in node.snapshot.alerts
        ]

    # -- requests to nodes -----------------------------------------------------------------------

    def clock_offsets(self) -> dict[str, float | None]:
        """Each node's wall clock minus the head's, by host."""
        return {host: node.link.clock_offset_s for host, node in self.by_host.items()}

    async def ask(self, host: str, request: pt.NodeRequest, kind: type[R]) -> R:
        """Send a request to a node; returns its reply.

        Raises:
            ControlError: the request is refused; `LinkError` if the node is unreachable.
        """
        return await self.by_host[host].link.ask(request, kind)

    # -- orders and events for nodes -------------------------------------------------------------

    def send(self, decision: Decision) -> None:
        """Send nodes what they take over of a decision, and what they carry out.

        What a node misses while it cannot be reached is settled once it reports again.
        """
        events = [one for one in decision if isinstance(one, COPIED)]
        orders = [one for one in decision if isinstance(one, FOR_NODES)]
        if not events and not orders:
            return
        for host, node in self.by_host.items():
            if node.ended or not node.has_reported or not node.link.is_up:
                continue
            copies = self._copies(events, node)
            own: list[Any] = [order for order in orders if order.node == host]
            if copies or own:
                seq = self._process.history.last_seq
                node.outbox.append(pt.Carry(events=copies, orders=own, seq=seq))
                self._flush(node)

    def _copies(self, events: Sequence[ev.JobEvent], node: RemoteNode) -> list[ev.JobEvent]:
        """A node's copies of events: in these, it is the only one, and times are its own."""
        host, copies = node.link.host, list[ev.JobEvent]()
        for event in events:
            if not isinstance(event, COPIED):
                continue
            if isinstance(event, ev.AttemptStarted):
                hosts = hosts_of_ranks(self._log.state, self._spec, event.attempt)
                ranks = [rank for rank, its in hosts.items() if its == host]
                if not ranks:
                    continue
                event = replace(event, first_rank=min(ranks))
            elif not isinstance(event, ev.RestartRequested):
                about = getattr(event, "node", None)
                if about not in (None, host):
                    continue
                event = event if about is None else replace(event, node=HERE)
            copies.append(_shifted(event, -node.link.shift_s))
        return copies

    def _flush(self, node: RemoteNode) -> None:
        if node.sending is None or node.sending.done():
            node.sending = asyncio.get_running_loop().create_task(self._send_all(node))

    async def _send_all(self, node: RemoteNode) -> None:
        """Send what has come up meanwhile at once, in order."""
        while node.outbox:
            batch, node.outbox = node.outbox, []
            whole = pt.Carry(
                events=[event for one in batch for event in one.events],
                orders=[order for one in batch for order in one.orders],
                seq=batch[-1].seq,
            )
            try:
                await node.link.ask(whole, pt.Done)
            except ControlError:  # its next supervisor or link starts with what is missing
                node.outbox = []

    async def begin(self, order: pt.BeginOn) -> pt.Fact | None:
        """Begin an attempt on a node, which may be out of reach for a while."""
        node = self.by_host[order.node]
        deadline_s = boottime_s() + UP_S
        error, answered = "it cannot be reached", False
        while self._is_due(order):
            try:
                if node.is_known:
                    async with node.is_beginning:
                        if self._is_due(order):
                            await self._begin_on(node, order)
                    return None
            except LinkError as lost:
                node.reported, node.is_stale, error = Reported.NOTHING, True, lost.message
            except DdptopError as refused:
                error, answered = refused.message, True
                break
            if boottime_s() >= deadline_s:
                life = self._log.state.nodes.get(order.node)
                error = (life.why if life is not None else None) or error
                break
            await asyncio.sleep(POLL_S)
        else:
            # the attempt may have started with it before all of it was lost
            is_gone = node.ended and node.has_reported
            return pt.LinkMade(node=order.node, is_there=False) if is_gone else None
        return pt.NodeRefused(
            node=order.node, attempt=order.attempt, error=error, answered=answered
        )

    def _is_due(self, order: pt.BeginOn) -> bool:
        job = self._log.state
        pending = job.restart
        if pending is None or job.ending is not None or order.node not in pending.nodes:
            return False
        return pending.next_attempt == order.attempt

    async def _begin_on(self, node: RemoteNode, order: pt.BeginOn) -> None:
        """Have the node choose its devices, or start its part of the job.

        Raises:
            DdptopError: the node refuses.
        """
        if not node.ended:
            self.send([pt.ChooseDevices(node=order.node)])
            return
        spec, env = self._spec_of(node.link), self._environment()
        start = pt.Start(spec=spec, env=env, attempt=order.attempt, rendezvous=order.rendezvous)
        await node.link.ask(start, pt.Done)
        node.link.follow()
        node.ended, node.reported = False, Reported.NOTHING

    def _spec_of(self, link: NodeLink) -> JobSpec:
        """The spec of a node's part of the job; the head judges its ranks."""
        node = link.node
        return replace(
            self._spec,
            job_id=link.job_id,
            host=node.host,
            nproc=node.nproc,
            devices=node.devices,
            python=node.python,
            hang_timeout_s=None,
            hang_auto=False,
            on_nan="alert",
            allow_shrink=False,
            backing="held" if self._placement.by == "slurm" else "daemon",
            tmux_socket=None,
            placement=None,
            membership=Membership(
                job=self._spec.job,
                head=self._spec.host,
                orphan_timeout_s=self._placement.orphan_timeout_s,
                force=self._placement.force,
                head_seq=self._process.history.last_seq,
            ),
        )

    async def recover_environment(self) -> None:
        """Learn the job's variables that the shell of a new head lacks."""
        wanted = {*self._spec.env_names, *self._spec.env_overrides}
        for host, node in self.by_host.items():
            if wanted <= {*self._recovered, *os.environ}:
                return
            if node.is_known and not node.ended and host not in self._asked:
                self._asked.add(host)
                with contextlib.suppress(DdptopError, msgspec.ValidationError):
                    found = await node.link.ask(pt.GetEnvironment(), pt.Found)
                    self._recovered |= msgspec.convert(found.data, dict[str, str])

    def _environment(self) -> dict[str, str]:
        """The launching shell's variables that ranks get in addition to their node's."""
        return {
            name: value
            for name, value in handover.carried(self._recovered | os.environ).items()
            if name != "DDPTOP_JOB_ID"
        }

    async def end(self, node: RemoteNode, grace_s: float) -> None:
        """End a node's part of the job; returns once it has ended or the node is unreachable."""
        deadline_s = boottime_s() + grace_s + ENDED_S
        while (node.is_stale or not node.ended) and boottime_s() < deadline_s:
            if not node.link.is_up:
                life = self._log.state.nodes.get(node.link.host)
                away_s = AWAY_S if life is not None and life.takes_part else 0.0
                if not await until(lambda: node.link.is_up, away_s):
                    return
                continue
            asked = False
            with contextlib.suppress(ControlError):  # its supervisor may be starting
                await node.link.ask(pt.StopAsked(grace_s=grace_s), pt.Done, timeout_s=10.0)
                asked = True
            wait_s = grace_s + ENDED_S if asked else RETRY_S
            await until(lambda: node.ended or not node.link.is_up, wait_s)

    def may_run_unseen(self) -> bool:
        """Whether parts may be running on nodes that cannot be reached."""
        own_end_s = self._placement.orphan_timeout_s + ORPHANED_S
        lives, now_s = self._log.state.nodes, boottime_s()
        return any(
            host in lives and lives[host].away_s(now_s) < own_end_s
            for host, node in self.by_host.items()
            if (node.is_stale or not node.ended) and not node.is_known
        )

    async def end_all(self, grace_s: float) -> None:
        """End all nodes' parts of the job; those being asked to begin are ended right after."""

        async def end(node: RemoteNode) -> None:
            await until(lambda: not node.is_beginning.locked(), UP_S)
            await self.end(node, grace_s)

        await asyncio.gather(*map(end, self.by_host.values()))

    async def ask_each(self, hosts: set[str], request: pt.NodeRequest, kind: type[R]) -> list[R]:
        """Ask nodes; returns the replies, or raises a node's error if none answers.

        Raises:
            ControlError: no node answered.
        """
        found = await asyncio.gather(
            *(self.by_host[host].link.ask(request, kind, EACH_S) for host in sorted(hosts)),
            return_exceptions=True,
        )
        answers = [one for one in found if not isinstance(one, BaseException)]
        errors = [one for one in found if isinstance(one, ControlError)]
        if not answers and errors:
            raise errors[0]
        return answers

    async def share_began(self, attempt: int, step: int) -> None:
        """Report at which step of the run an attempt began to the nodes that do not know it.

        Only a node that saved the checkpoint recognizes it.
        """
        now_s = boottime_s()
        hosts = {
            host
            for host, node in self.by_host.items()
            if node.is_live(now_s)
            and (seen := node.snapshot_of(attempt)) is not None
            and seen.attempts_began.get(attempt) != step
        }
        with contextlib.suppress(ControlError):
            await self.ask_each(hosts, pt.AttemptBegan(attempt=attempt, step=step), pt.Done)

    async def keep_evidence(self, reason: pt.EvidenceReason) -> None:
        """Have each node with living ranks save its evidence, once per attempt."""
        async with self.keeping_evidence:
            alive = [
                node
                for host, node in self.by_host.items()
                if not node.ended and node.link.is_up and host not in self._has_evidence
            ]
            self._has_evidence.update(node.link.host for node in alive)
            request = pt.SaveEvidence(reason=reason)
            answers = await asyncio.gather(
                *(node.link.ask(request, pt.Done, EVIDENCE_S) for node in alive),
                return_exceptions=True,
            )
            self._silent |= {
                node.link.host
                for node, answer in zip(alive, answers, strict=True)
                if isinstance(answer, BaseException)
            }
            self._silent |= {  # a link that has just broken is not reported yet
                host for host, node in self.by_host.items() if not (node.ended or node.link.is_up)
            }

    async def judge_ranks(self, attempt: int) -> None:
        """Ask each node that can be reached how its ranks ended."""

        async def ask(host: str, node: RemoteNode) -> None:
            if node.sending is not None:  # the node has to know of its exits
                await asyncio.wait([node.sending])
            with contextlib.suppress(ControlError):
                judged = await node.link.ask(
                    pt.JudgeRanks(attempt=attempt), pt.RanksJudged, EVIDENCE_S
                )
                ends = [_shifted_end(end, node.link.shift_s) for end in judged.ends]
                self.judged[host] = replace(judged, ends=ends)

        members = self._log.state.nodes.items()
        hosts = [host for host, life in members if life.takes_part]
        await asyncio.gather(*(ask(host, self.by_host[host]) for host in hosts))

    def has_all_verdicts(self) -> bool:
        """Whether each node with a failed rank is settled or known to be gone."""
        job, hosts = self._log.state, hosts_of_ranks(self._log.state, self._spec)
        failing = {
            hosts.get(rank) for rank, life in job.ranks.items() if life.exited and life.status != 0
        } | self._silent
        return all(host not in failing or life.is_settled for host, life in job.nodes.items())


def _shifted(one: T, shift_s: float) -> T:
    """An event or a fact with its times on another machine's clock."""
    times = {
        name: value + shift_s
        for name in ("at_s", "kill_at_s")
        if (value := getattr(one, name, None)) is not None
    }
    return replace(one, **times) if times else one


def _shifted_end(end: dict[str, Any], shift_s: float) -> dict[str, Any]:
    exit_ = dict(end["exit"], at_boottime_s=end["exit"]["at_boottime_s"] + shift_s)
    return dict(end, exit=exit_)
