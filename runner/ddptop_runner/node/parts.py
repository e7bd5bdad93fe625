"""The parts of a job on its nodes: passes on their facts, and the head's events and orders."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
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
from ddptop_runner.job.samples import NodeView
from ddptop_runner.job.state import away_for_long, hosts_of_ranks
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.hangs.verdict import RankProgress
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.spec import JobSpec, Membership, NodeSpec, Placement
from ddptop_runner.model.words import HERE, LIVE_STATES
from ddptop_runner.node.control import R
from ddptop_runner.node.engine import POLL_S, TICK_S, JobProcess, until
from ddptop_runner.node.links import SILENT_S, LinkError, NodeLink
from ddptop_runner.node.remote import node_job_id

LINK_GRACE_S = 3.0
"""A broken link is reported if it is not restored within this time."""
UP_S = 30.0
"""An attempt cannot begin if one of its nodes is not reached within this time."""
EVIDENCE_S = 10.0
RETRY_S = 0.5
AWAY_S = 10.0
"""How long to wait for an unreachable node whose ranks have to end."""
ENDED_S = 60.0
"""Time for a node's part to end, in addition to its ranks' grace period."""
ORPHANED_S = 120.0
"""A part without contact ends within this time after the orphan timeout."""
FOR_NODES = (
    *(pt.AnswerAgent, pt.TellAgent, pt.InterruptRanks, pt.EndLeftovers, pt.JudgeStart),
    *(pt.ChooseDevices, pt.ReplaceAgent, pt.StartAgent),
)
"""Orders that a node carries out itself."""
FACTS = (
    *(pt.AgentConnected, pt.AgentListens, pt.GroupStarted, pt.ProcessExited),
    *(pt.OrphanExited, pt.AgentExited, pt.AgentAsked, pt.LeftoversEnded, pt.StartJudged),
    *(pt.DevicesChosen, pt.AgentMadeRoom, pt.LinkMade),
)
"""Facts that a node may report."""
COPIED = (
    *(ev.AttemptStarted, ev.AttemptOpened, ev.RankStarted, ev.RankExited, ev.RanksEnding),
    *(ev.TroubleFound, ev.TroubleDropped, ev.FailureJudged, ev.HangJudged, ev.EndDecided),
    *(ev.RestartDecided, ev.RestartRequested, ev.RestartHurried, ev.RestartPrepared),
    *(ev.RestartSent, ev.AgentRequested, ev.AgentConnected, ev.AgentLost, ev.StopRequested),
    ev.GpuMemoryAwaited,
)
"""Events that a node takes over, unless they are about another one."""
T = TypeVar("T", bound=msgspec.Struct)


@dataclasses.dataclass
class Part:
    """The head's view of a node's part of the job."""

    link: NodeLink
    ended: bool = True
    """Whether it has no processes."""
    snapshot: NodeSnapshot | None = None
    progress: list[RankProgress] = dataclasses.field(default_factory=list)
    seen_s: float = 0.0
    """CLOCK_BOOTTIME of the snapshot's arrival."""
    last_report_s: float = 0.0
    """The same for the last report of any kind, or for the link."""
    is_reported: bool = False
    """Whether the node's state has been reported over the current link."""
    is_new: bool = False
    """Whether the node cannot have anything of the job yet, so it is not asked for events."""
    is_absent: bool = False
    """Whether it was reported that nothing of the job is there."""
    is_asked: bool = False
    """Whether it was asked to repeat its facts."""
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
        return self.link.is_up and (self.is_reported or self.is_new)

    def is_live(self, now_s: float) -> bool:
        """Whether what is known about it is current."""
        return self.snapshot is not None and self.link.is_up and now_s - self.seen_s < 5 * TICK_S

    def snapshot_of(self, attempt: int | None) -> NodeSnapshot | None:
        """Its last snapshot, unless from another attempt."""
        seen = self.snapshot
        return seen if seen is not None and seen.attempt == attempt else None


class Parts:
    """The parts of one job.

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
        self.by_host: dict[str, Part] = {}
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
        """Create the parts from what an earlier head knew; none is connected yet."""
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
            part = Part(link, ended=kept.ended)
            part.is_new = known is None
            part.is_stale = not part.is_new
            self.by_host[node.host] = part

    def memory(self) -> dict[str, NodeMemory]:
        """What `restore` needs."""
        return {
            host: NodeMemory(seq=part.link.seq, ended=part.ended)
            for host, part in self.by_host.items()
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
        report: pt.NodeEvent | pt.NodeFact | pt.NodeState | pt.NodeAbsent,
    ) -> None:
        """Take in a node's fact, event, or state, or the absence of its part."""
        part = self.by_host[link.host]
        part.last_report_s = boottime_s()
        if isinstance(report, pt.NodeEvent):
            event = _shifted(ev.of_row(report.event), link.shift_s)
            if isinstance(event, ev.Launched):
                part.ended = False
            elif isinstance(event, ev.JobEnded):
                part.ended = True
            else:
                self._report(pt.NodeNoticed(node=link.host, event=event))
        elif isinstance(report, pt.NodeFact):
            self._take_fact(part, report.fact)
        elif isinstance(report, pt.NodeAbsent):
            self._report_absent(part)
        else:
            part.snapshot, part.seen_s = report.snapshot, part.last_report_s
            part.progress = [msgspec.convert(one, RankProgress) for one in report.progress]
            if report.snapshot.state not in LIVE_STATES:
                self._report_absent(part)
            elif not part.is_reported and not part.is_asked:
                part.is_asked, part.repeated = True, []  # facts may be lost, as it was silent
                with contextlib.suppress(LinkError):
                    link.follow()

    def _take_fact(self, part: Part, fact: pt.Fact) -> None:
        if not isinstance(fact, FACTS):
            return
        fact = _shifted(replace(fact, node=part.link.host), part.link.shift_s)
        if isinstance(fact, pt.LinkMade):
            part.ended = part.is_stale = part.is_asked = part.is_absent = False
            part.is_reported = True
            missed = self._copies(self._process.events_after(fact.after_seq), part)
            seq = self._process.history.last_seq
            part.outbox = [pt.Carry(events=missed, seq=seq)] if missed else []
            self._flush(part)
        part.repeated.append(fact)
        while part.is_reported and part.repeated:
            self._report(part.repeated.pop(0))

    def _report_absent(self, part: Part) -> None:
        part.ended, part.is_stale = True, False
        if not part.is_reported or not part.is_absent:
            part.is_reported = part.is_absent = True
            self._report(pt.LinkMade(node=part.link.host, is_there=False))

    def _link_made(self, link: NodeLink) -> None:
        part = self.by_host[link.host]
        part.is_reported = part.is_absent = part.is_asked = False
        part.repeated, part.last_report_s = [], boottime_s()
        if part.broken is not None:
            part.broken.cancel()
            part.broken = None

    def _link_broken(self, link: NodeLink, why: str) -> None:
        part = self.by_host[link.host]
        if part.broken is None:
            report = pt.LinkBroken(node=link.host, why=why)
            part.broken = asyncio.get_running_loop().call_later(
                LINK_GRACE_S, lambda: self._report(report)
            )

    def look_at_silence(self, now_s: float) -> None:
        """Report each node with a working link whose part of the job no longer reports."""
        for host, part in self.by_host.items():
            if part.link.is_up and not part.ended and now_s - part.last_report_s > SILENT_S:
                part.is_reported = part.is_new = False
                part.repeated = []
                self._report(pt.LinkBroken(node=host, why="its supervisor does not respond"))

    def _report(self, fact: pt.Fact) -> None:
        self._process.defects.call(lambda: self._take(fact), None)

    def views(self) -> list[NodeView]:
        """The current view of each node."""
        now_s, attempt = boottime_s(), self._log.state.attempt
        return [
            NodeView(
                host=host,
                snapshot=part.snapshot_of(attempt),
                is_live=part.is_live(now_s),
                clock_offset_s=part.link.clock_offset_s,
            )
            for host, part in self.by_host.items()
        ]

    def progress(self, now_s: float) -> list[RankProgress] | None:
        """The progress of all ranks; None if a node's is unknown, so that nothing can be judged.

        Nodes that have been away for long are excluded: the others train on, or hang without them.
        Until a node has started its ranks, other nodes' ranks may wait for them, and its reports
        are from the previous attempt.
        """
        found: list[RankProgress] = []
        attempt = self._log.state.attempt
        away = away_for_long(self._log.state, now_s, self._spec)
        for host, life in self._log.state.nodes.items():
            if not life.takes_part or host in away or life.ended:
                continue
            part = self.by_host[host]
            has_started = self._log.state.has_started(host)
            if not (has_started and part.is_live(now_s) and part.snapshot_of(attempt)):
                return None
            found += part.progress
        return found or None

    def alerts(self) -> list[Finding]:
        """The nodes' findings about their disks, logs, and devices, with the nodes' names."""
        now_s = boottime_s()
        return [
            Finding(f"{alert.id}@{host}", alert.severity, f"{host}: {alert.message}", host=host)
            for host, part in self.by_host.items()
            if part.snapshot is not None and part.is_live(now_s)
            for alert in part.snapshot.alerts
        ]

    # -- requests to nodes -----------------------------------------------------------------------

    def clock_offsets(self) -> dict[str, float]:
        """Each node's wall clock minus the head's, by host."""
        return {host: part.link.clock_offset_s or 0.0 for host, part in self.by_host.items()}

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
        for host, part in self.by_host.items():
            if part.ended or not part.is_reported or not part.link.is_up:
                continue
            copies = self._copies(events, part)
            own: list[Any] = [order for order in orders if order.node == host]
            if copies or own:
                seq = self._process.history.last_seq
                part.outbox.append(pt.Carry(events=copies, orders=own, seq=seq))
                self._flush(part)

    def _copies(self, events: Sequence[ev.JobEvent], part: Part) -> list[ev.JobEvent]:
        """A node's copies of events: in these, it is the only one, and times are its own."""
        host, copies = part.link.host, list[ev.JobEvent]()
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
                node = getattr(event, "node", None)
                if node not in (None, host):
                    continue
                event = event if node is None else replace(event, node=HERE)
            copies.append(_shifted(event, -part.link.shift_s))
        return copies

    def _flush(self, part: Part) -> None:
        if part.sending is None or part.sending.done():
            part.sending = asyncio.get_running_loop().create_task(self._send_all(part))

    async def _send_all(self, part: Part) -> None:
        """Send what has come up meanwhile at once, in order."""
        while part.outbox:
            batch, part.outbox = part.outbox, []
            whole = pt.Carry(
                events=[event for one in batch for event in one.events],
                orders=[order for one in batch for order in one.orders],
                seq=batch[-1].seq,
            )
            try:
                await part.link.ask(whole, pt.Done)
            except ControlError:  # its next supervisor or link starts with what is missing
                part.outbox = []

    async def begin(self, order: pt.BeginOn) -> pt.Fact | None:
        """Begin an attempt on a node, which may be out of reach for a while."""
        part = self.by_host[order.node]
        deadline_s = boottime_s() + UP_S
        error, answered = "it cannot be reached", False
        while self._is_due(order):
            try:
                if part.is_known:
                    async with part.is_beginning:
                        if self._is_due(order):
                            await self._begin_on(part, order)
                    return None
            except LinkError as lost:
                part.is_new, part.is_stale, error = False, True, lost.message
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
            is_gone = part.ended and part.is_reported
            return pt.LinkMade(node=order.node, is_there=False) if is_gone else None
        return pt.PartRefused(
            node=order.node, attempt=order.attempt, error=error, answered=answered
        )

    def _is_due(self, order: pt.BeginOn) -> bool:
        job = self._log.state
        pending = job.restart
        if pending is None or job.ending is not None or order.node not in pending.nodes:
            return False
        return pending.next_attempt == order.attempt

    async def _begin_on(self, part: Part, order: pt.BeginOn) -> None:
        """Have the node choose its devices, or start its part of the job.

        Raises:
            DdptopError: the node refuses.
        """
        if not part.ended:
            self.send([pt.ChooseDevices(node=order.node)])
            return
        index = [one.host for one in self._placement.nodes].index(order.node)
        spec = self._spec_of(part.link.node, index)
        await part.link.start(spec, self._environment(), order.attempt, order.rendezvous)
        part.ended = part.is_new = part.is_absent = part.is_reported = False

    def _spec_of(self, node: NodeSpec, index: int) -> JobSpec:
        """The spec of a node's part of the job; the head judges its ranks."""
        return replace(
            self._spec,
            job_id=node_job_id(self._spec.job_id, index),
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
                node=node.host,
                index=index,
                head=self._spec.host,
                orphan_timeout_s=self._placement.orphan_timeout_s,
                force=self._placement.force,
                head_seq=self._process.history.last_seq,
            ),
        )

    async def recover_environment(self) -> None:
        """Learn the job's variables that the shell of a new head lacks."""
        wanted = {*self._spec.env_names, *self._spec.env_overrides}
        for host, part in self.by_host.items():
            if wanted <= {*self._recovered, *os.environ}:
                return
            if part.is_known and not part.ended and host not in self._asked:
                self._asked.add(host)
                with contextlib.suppress(DdptopError):
                    self._recovered |= (
                        await part.link.ask(pt.GetEnvironment(), pt.Environment)
                    ).env

    def _environment(self) -> dict[str, str]:
        """The launching shell's variables that ranks get in addition to their node's."""
        return {
            name: value
            for name, value in handover.carried(self._recovered | os.environ).items()
            if name != "DDPTOP_JOB_ID"
        }

    async def end(self, part: Part, grace_s: float) -> None:
        """End a node's part of the job; returns once it has ended or the node is unreachable."""
        deadline_s = boottime_s() + grace_s + ENDED_S
        while (part.is_stale or not part.ended) and boottime_s() < deadline_s:
            if not part.is_known:
                life = self._log.state.nodes.get(part.link.host)
                away_s = AWAY_S if life is not None and life.takes_part else 0.0
                if not await until(lambda: part.is_known, away_s):
                    return
                continue
            asked = False
            with contextlib.suppress(ControlError):  # its supervisor may be starting
                await part.link.ask(pt.StopAsked(grace_s=grace_s), pt.Done, timeout_s=10.0)
                asked = True
            wait_s = grace_s + ENDED_S if asked else RETRY_S
            await until(lambda: part.ended or not part.is_known, wait_s)

    def may_run_unseen(self) -> bool:
        """Whether parts may be running on nodes that cannot be reached."""
        own_end_s = self._placement.orphan_timeout_s + ORPHANED_S
        lives, now_s = self._log.state.nodes, boottime_s()
        return any(
            host in lives and lives[host].away_s(now_s) < own_end_s
            for host, part in self.by_host.items()
            if (part.is_stale or not part.ended) and not part.is_known
        )

    async def end_all(self, grace_s: float) -> None:
        """End all nodes' parts of the job; those being asked to begin are ended right after."""

        async def end(part: Part) -> None:
            await until(lambda: not part.is_beginning.locked(), UP_S)
            await self.end(part, grace_s)

        await asyncio.gather(*map(end, self.by_host.values()))

    async def ask_each(self, hosts: set[str], request: pt.NodeRequest, kind: type[R]) -> list[R]:
        """Ask nodes; returns the replies, or raises a node's error if none answers.

        Raises:
            ControlError: no node answered.
        """
        found = await asyncio.gather(
            *(self.ask(host, request, kind) for host in sorted(hosts)),
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
            for host, part in self.by_host.items()
            if part.is_live(now_s)
            and (seen := part.snapshot_of(attempt)) is not None
            and seen.attempts_began.get(attempt) != step
        }
        with contextlib.suppress(ControlError):
            await self.ask_each(hosts, pt.AttemptBegan(attempt=attempt, step=step), pt.Done)

    async def keep_evidence(self, reason: pt.EvidenceReason) -> None:
        """Have each node with living ranks save its evidence, once per attempt."""
        async with self.keeping_evidence:
            alive = [
                part
                for host, part in self.by_host.items()
                if not part.ended and part.link.is_up and host not in self._has_evidence
            ]
            self._has_evidence.update(part.link.host for part in alive)
            request = pt.SaveEvidence(reason=reason)
            answers = await asyncio.gather(
                *(part.link.ask(request, pt.Done, EVIDENCE_S) for part in alive),
                return_exceptions=True,
            )
            self._silent |= {
                part.link.host
                for part, answer in zip(alive, answers, strict=True)
                if isinstance(answer, BaseException)
            }
            self._silent |= {  # a link that has just broken is not reported yet
                host for host, part in self.by_host.items() if not (part.ended or part.link.is_up)
            }

    async def judge_ranks(self, attempt: int) -> None:
        """Ask each node that can be reached how its ranks ended."""

        async def ask(host: str, part: Part) -> None:
            if part.sending is not None:  # the node has to know of its exits
                await asyncio.wait([part.sending])
            with contextlib.suppress(ControlError):
                judged = await part.link.ask(
                    pt.JudgeRanks(attempt=attempt), pt.RanksJudged, EVIDENCE_S
                )
                ends = [_shifted_end(end, part.link.shift_s) for end in judged.ends]
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
