"""The head of a job on several nodes: one state, one log, one snapshot, made from all of them.

It has no agent and no ranks. It may die at any time: the nodes train on, and the next one restores
the state from the log and asks each node for what happened since.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import handover
from ddptop_runner.job import failure_on_nodes
from ddptop_runner.job.decide import Decision
from ddptop_runner.job.decide_nodes import begin, decide_nodes, hosts_of_ranks
from ddptop_runner.job.old_events import typed
from ddptop_runner.job.state import JobState
from ddptop_runner.job.trouble import TroubleWatch, plain_cause, plain_outcome
from ddptop_runner.judge.alerts import Finding, stalled
from ddptop_runner.judge.causes.culprit import RankEnd
from ddptop_runner.judge.checkpoints import CheckpointBook
from ddptop_runner.judge.hangs.records import hang_cause
from ddptop_runner.judge.hangs.verdict import HangVerdict, RankProgress
from ddptop_runner.model import events as ev
from ddptop_runner.model import node_link as nl
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause, NodeSnapshot
from ddptop_runner.model.spec import JobSpec, Membership, NodeSpec, Rendezvous
from ddptop_runner.node import fetch, head_snapshot
from ddptop_runner.node.agent_link import Message
from ddptop_runner.node.fetch import Fetcher
from ddptop_runner.node.job_process import TICK_S, JobProcess
from ddptop_runner.node.links import LinkError, NodeLink
from ddptop_runner.node.orders import POLL_S, Orders, judged, trouble_judged, until
from ddptop_runner.node.remote import node_job_id
from ddptop_runner.node.server import ControlServer

PUBLISH_S = 0.05
LINK_GRACE_S = 3.0
"""A link that is made again within this was never broken, as far as a person is concerned."""
UP_S = 30.0
"""A node that begins an attempt is reached within this, or the attempt cannot begin."""
MOST_ATTEMPTS = 5
"""The ends of the logs of the last ones are fetched when the job ends."""
EVIDENCE_S = 10.0
VERDICTS_S = 10.0
"""Nodes whose ranks failed have judged why by then."""
RETRY_S = 0.5
AWAY_S = 10.0
"""For how long a node that cannot be reached is waited for where its ranks have to end."""
ENDED_S = 60.0
"""For a node's part to end, beyond the grace that its ranks get."""


@dataclasses.dataclass
class Part:
    """What is seen of a node's part of the job."""

    link: NodeLink
    attempt: int | None = None
    ended: bool = True
    """Whether no process of it is there."""
    snapshot: NodeSnapshot | None = None
    progress: list[RankProgress] = dataclasses.field(default_factory=list)
    seen_s: float = 0.0
    """CLOCK_BOOTTIME of the snapshot's arrival."""
    is_told: bool = False
    """Whether the state of a link that was made has been reported."""
    is_new: bool = False
    """Whether nothing of the job can be there: it is not asked for what happened."""
    ends: list[RankEnd] = dataclasses.field(default_factory=list)
    is_stale: bool = False
    """Whether this head has not heard of it yet: the last one may have started something there."""
    is_beginning: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    """Held while it is told to begin an attempt: a later one may be decided on meanwhile."""
    broken: asyncio.TimerHandle | None = None
    """Reports the broken link, unless it is made again before."""

    @property
    def is_known(self) -> bool:
        """Whether it can be reached, and all that happened there is known."""
        return self.link.is_up and (self.is_told or self.is_new)

    def is_live(self, now_s: float) -> bool:
        """Whether what is known of it is of this moment."""
        return self.snapshot is not None and self.link.is_up and now_s - self.seen_s < 5 * TICK_S


class NoAgent:
    """No agent connects to a head."""

    def agent_connected(self, hello: Message, send: Callable[[Message], None]) -> None:
        """Nobody listens."""

    def from_agent(self, link: object, message: Message) -> None:
        """Never called."""

    def agent_disconnected(self, link: object) -> None:
        """Never called."""


class Head:
    """One job's head. Construct inside a running event loop, then `run`."""

    def __init__(self, folder: RunFolder, spec: JobSpec, channel: socket.socket) -> None:
        assert spec.placement is not None  # `supervise` has looked
        self._folder, self._spec = folder, spec
        self._placement = spec.placement
        self._loop = asyncio.get_running_loop()
        self.process = process = JobProcess(folder, spec, channel)
        self._log, self._alerts, self.defects = process.log, process.alerts, process.defects
        self._server = ControlServer(
            folder.control_socket, self._command, NoAgent(), lambda *_: lambda: None
        )
        self._parts: dict[str, Part] = {}
        self._fetcher = Fetcher(folder, self._ask_node, self._clock_offsets)
        self._trouble = TroubleWatch(spec, process.log, self.take)
        self._checkpoints = CheckpointBook()
        self._orders = Orders(
            process.log,
            process.defects,
            process.spawn,
            follow=self._follow_event,
            take=self.take,
            fact_of=self._fact_of,
            otherwise=_fact_in_any_case,
        )
        self._evidence = asyncio.Lock()
        self._has_evidence: set[str] = set()
        self._silent: set[str] = set()
        """Nodes that could not keep evidence: they have failed themselves, or are gone."""
        self._publishing: asyncio.TimerHandle | None = None
        """Writes the snapshot soon, after events that change nothing but figures."""
        self.ended = asyncio.Event()

    @property
    def job(self) -> JobState:
        """The state of the job."""
        return self._log.state

    @property
    def attempt(self) -> int:
        """The number of the current attempt."""
        return self.job.attempt or 0

    # -- life ------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Lead the job until it has ended."""
        self._greet(await self.process.receive_hello())
        with contextlib.suppress(OSError):
            await self._server.start()
        self.process.listen(lambda _: None, lambda: None)
        self.publish()
        for part in self._parts.values():
            self.process.spawn(part.link.run())
        self.process.spawn(self._fetcher.run())
        await self.process.tick_until(self.ended, self._each_second)
        await self._shut_down()
        self.process.tell_end()
        return 0

    def _greet(self, hello: Message) -> None:
        past = self.process.restore(hello)
        known: dict[str, Any] = {}
        if past.snapshot is not None:
            known = past.snapshot.memory.get("parts") or {}
            self._checkpoints.recall(past.snapshot.checkpoint, {})
        for index, node in enumerate(self._placement.nodes):
            kept = known.get(node.host) or {}
            link = NodeLink(
                self._placement,
                node,
                node_job_id(self._spec.job_id, index),
                int(kept.get("seq") or 0),
                self._take_report,
                self._link_made,
                self._link_broken,
            )
            part = Part(link, attempt=kept.get("attempt"), ended=bool(kept.get("ended", True)))
            part.is_new = past.snapshot is None
            part.is_stale = not part.is_new
            self._parts[node.host] = part
        if past.event is not None:
            self._log.emit(past.event)
        if past.lives_on and past.snapshot is not None:
            self.process.restore_alerts(past.snapshot)
            self._trouble.recall({})
            if self.job.is_over:
                self.ended.set()
            else:
                self.take(pt.SupervisorStarted(agent=pt.AgentState()))
            return
        self._log.emit(
            ev.Launched(
                attempt=hello["attempt"],
                target=PurePath(self._spec.target).name,
                nproc=self._spec.nproc,
                at_s=boottime_s(),
            )
        )
        self._carry(begin(hello["attempt"], list(self._placement.nodes), boottime_s()))

    async def _each_second(self) -> None:
        if not self._server.is_bound and self._folder.path.is_dir():
            with contextlib.suppress(OSError):
                await self._server.start()
        self.defects.call(self._tick, None)

    def _tick(self) -> None:
        now_s = boottime_s()
        self.defects.call(lambda: self._look_at_progress(now_s), None)
        snapshot = self._snapshot()
        self.defects.call(lambda: self._trouble.look_at_losses(snapshot.ranks), None)
        found = [
            *self._alerts_of_nodes(),
            *stalled(snapshot.pause, is_told=self._trouble.hangs.is_on),
        ]
        self._alerts.look(snapshot, found, now_s)
        self.process.write(snapshot)
        self.process.record(snapshot)

    async def _shut_down(self) -> None:
        self.process.stop_listening()
        while tasks := [task for task in self.process.tasks if not task.done()]:
            for task in tasks:  # before Python 3.12 wait_for may swallow one
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)
        self._server.close()
        await self.process.end(self._snapshot)

    # -- facts, events, orders -------------------------------------------------------------------

    def take(self, fact: pt.Fact) -> None:
        """Decide on a fact: record its events, then carry out its orders.

        Raises:
            ControlError: when someone asks for what cannot be done.
        """
        self._carry(decide_nodes(self.job, fact, boottime_s(), self._spec))

    def _carry(self, decision: Decision) -> None:
        before = self.job.phase
        orders = self._orders.record(decision)
        if orders or self.job.phase != before:
            self.publish()
        elif decision and self._publishing is None:  # a thousand ranks start at once
            self._publishing = self._loop.call_later(PUBLISH_S, self.publish)
        for order in orders:
            self._orders.begin(order)

    def _follow_event(self, event: ev.JobEvent) -> None:
        if isinstance(event, ev.NodesChosen):
            self._trouble.begin_attempt()
            self._has_evidence.clear()
            self._orders.skip.clear()
            for part in self._parts.values():
                part.ends = []
        elif isinstance(event, ev.CheckpointSaved):
            self._checkpoints.recall(event.checkpoint, {})
        elif isinstance(event, ev.JobEnded):
            self.ended.set()

    async def _fact_of(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        if isinstance(order, pt.BeginOn):
            return await self._begin_on(order)
        if isinstance(order, pt.KeepEvidenceOnNodes):
            await self._keep_evidence("failure")
            await until(self._has_all_verdicts, VERDICTS_S)
            return pt.VerdictsDue(attempt=attempt)
        if isinstance(order, pt.JudgeAttempt):
            async with self._evidence:  # the next attempt must not end what is being looked at
                pass
            return await self._judge_attempt(order, attempt)
        if isinstance(order, pt.JudgeTrouble):
            return await self._judge_trouble(order, attempt)
        if isinstance(order, pt.AwaitNodes):
            await asyncio.sleep(order.seconds)
            return pt.NodesDue(attempt=attempt, waited_s=order.seconds)
        if isinstance(order, pt.EndOn):
            await self._end_part(self._parts[order.node], order.grace_s)
            return None
        if isinstance(order, pt.EndRanks):
            await until(lambda: not self._is_beginning, UP_S)
            await asyncio.gather(
                *(self._end_part(part, order.grace_s) for part in self._parts.values())
            )
            return pt.RanksEnded()
        if isinstance(order, pt.Conclude):
            return await self._conclude()
        raise AssertionError(order)  # nothing else is ordered of a head

    # -- nodes -----------------------------------------------------------------------------------

    def _take_report(
        self, link: NodeLink, report: nl.NodeEvent | nl.NodeState | nl.NodeAbsent
    ) -> None:
        part = self._parts[link.host]
        if isinstance(report, nl.NodeEvent):
            event = _shifted(typed([report.event])[0], link.shift_s)
            self._note(part, event)
            self.defects.call(lambda: self.take(pt.NodeReported(node=link.host, event=event)), None)
            return
        if isinstance(report, nl.NodeState):
            part.snapshot, part.seen_s = report.snapshot, boottime_s()
            part.progress = [msgspec.convert(one, RankProgress) for one in report.progress]
        self._report_link(part, is_there=isinstance(report, nl.NodeState))

    def _note(self, part: Part, event: ev.JobEvent) -> None:
        if isinstance(event, ev.Launched | ev.AttemptStarted | ev.AttemptOpened):
            part.attempt, part.ended = event.attempt, False
        elif isinstance(event, ev.RestartRequested | ev.RestartHurried):
            part.attempt = (event.attempt or 0) + 1
        elif isinstance(event, ev.JobEnded):
            part.ended = True
        elif isinstance(event, ev.FailureJudged) and event.attempt == self.attempt:
            part.ends = [_end_of(one, part.link.shift_s) for one in event.ends]

    def _report_link(self, part: Part, *, is_there: bool) -> None:
        if part.is_told and is_there:
            return
        part.is_told, part.is_stale = True, False
        is_gone = not (is_there or part.ended)
        # that what is left of an earlier attempt is gone is no news: it had to end
        fact = pt.LinkMade(
            node=part.link.host, is_there=not is_gone or part.attempt != self.attempt
        )
        part.ended = part.ended or is_gone
        self.defects.call(lambda: self.take(fact), None)

    def _link_made(self, link: NodeLink) -> None:
        part = self._parts[link.host]
        part.is_told = False
        if part.broken is not None:
            part.broken.cancel()
            part.broken = None

    def _link_broken(self, link: NodeLink, why: str) -> None:
        part = self._parts[link.host]
        if part.broken is None:
            report = pt.LinkBroken(node=link.host, why=why)
            part.broken = self._loop.call_later(
                LINK_GRACE_S, lambda: self.defects.call(lambda: self.take(report), None)
            )

    def _clock_offsets(self) -> dict[str, float]:
        return {host: part.link.clock_offset_s or 0.0 for host, part in self._parts.items()}

    async def _ask_node(self, host: str, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._parts[host].link.ask(op, arguments)

    @property
    def _is_beginning(self) -> bool:
        """Whether a node is being asked to begin an attempt."""
        return any(isinstance(order, pt.BeginOn) for order in self._orders.under_way)

    async def _begin_on(self, order: pt.BeginOn) -> pt.Fact | None:
        """Until the node has begun: of an order that was lost with its link nobody knows."""
        part = self._parts[order.node]
        deadline_s = boottime_s() + UP_S
        error = "it cannot be reached"
        while self.job.ending is None and self.attempt == order.attempt:
            try:
                if part.is_known:
                    async with part.is_beginning:
                        if self.job.ending is None and self.attempt == order.attempt:
                            await self._begin(part, order.attempt, order.rendezvous)
                    return None
            except LinkError as lost:
                part.is_new, error = False, lost.message
            except DdptopError as refused:
                error = refused.message
                break
            if boottime_s() >= deadline_s:
                life = self.job.nodes.get(order.node)
                error = (life.why if life is not None else None) or error
                break
            await asyncio.sleep(POLL_S)
        else:
            return None
        return pt.PartRefused(node=order.node, attempt=order.attempt, error=error)

    async def _begin(self, part: Part, attempt: int, rendezvous: Rendezvous) -> None:
        """Have a node take part in an attempt: with the agent that it has, or anew.

        Raises:
            DdptopError: where it refuses.
        """
        if not part.ended and part.attempt == attempt:
            return
        if not part.ended and part.attempt == attempt - 1:
            arguments = {"attempt": attempt, "rendezvous": msgspec.to_builtins(rendezvous)}
            try:
                await part.link.ask("restart", arguments)
                return
            except LinkError:
                raise
            except ControlError:
                pass  # it cannot with the agent that it has
        if not part.ended:
            await self._end_part(part, 0.0)
        index = [one.host for one in self._placement.nodes].index(part.link.host)
        spec = self._spec_of(part.link.node, index)
        await part.link.start(spec, self._environment(), attempt, rendezvous)
        part.attempt, part.ended = attempt, False

    def _spec_of(self, node: NodeSpec, index: int) -> JobSpec:
        """A node's own part of the job; verdicts over its ranks are the head's."""
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
                orphan_timeout_s=self._placement.orphan_timeout_s,
            ),
        )

    def _environment(self) -> dict[str, str]:
        """What ranks get besides the variables of their node: those of the launching shell."""
        return {
            name: value
            for name, value in handover.carried(os.environ).items()
            if name != "DDPTOP_JOB_ID"
        }

    async def _end_part(self, part: Part, grace_s: float) -> None:
        """End what a node runs of the job; returns once that is so, or it cannot be reached."""
        deadline_s = boottime_s() + grace_s + ENDED_S
        while (part.is_stale or not part.ended) and boottime_s() < deadline_s:
            if not part.is_known:
                life = self.job.nodes.get(part.link.host)
                away_s = AWAY_S if life is not None and life.takes_part else 0.0
                if not await until(lambda: part.is_known, away_s):
                    return
                continue
            asked = False
            with contextlib.suppress(ControlError):  # its supervisor may be starting
                await part.link.ask("stop", {"grace_s": grace_s}, timeout_s=10.0)
                asked = True
            wait_s = grace_s + ENDED_S if asked else RETRY_S
            await until(lambda: part.ended or not part.is_known, wait_s)

    # -- evidence and causes ---------------------------------------------------------------------

    async def _keep_evidence(self, reason: str) -> None:
        """On each node that has living ranks, before any signal; then bring it here."""
        name = f"attempt-{self.attempt}-{reason}"
        async with self._evidence:
            alive = [
                part
                for host, part in self._parts.items()
                if not part.ended and part.link.is_up and host not in self._has_evidence
            ]
            self._has_evidence.update(part.link.host for part in alive)
            arguments = {"reason": reason}
            answers = await asyncio.gather(
                *(part.link.ask("evidence", arguments, EVIDENCE_S) for part in alive),
                return_exceptions=True,
            )
            self._silent = {
                part.link.host
                for part, answer in zip(alive, answers, strict=True)
                if isinstance(answer, BaseException)
            }
            self._silent |= {  # a link that has just broken is not reported yet
                host for host, part in self._parts.items() if not (part.ended or part.link.is_up)
            }
        with contextlib.suppress(DdptopError):
            await self._fetcher.take_evidence(name, EVIDENCE_S)

    def _has_all_verdicts(self) -> bool:
        """Whether each node with a rank that ended badly has judged why, or is known to be gone."""
        job, hosts = self.job, hosts_of_ranks(self.job, self._spec)
        failing = {
            hosts.get(rank) for rank, life in job.ranks.items() if life.exited and life.status != 0
        } | self._silent
        return all(host not in failing or life.is_settled for host, life in job.nodes.items())

    async def _judge_attempt(self, order: pt.JudgeAttempt, attempt: int) -> pt.AttemptJudged:
        name = f"attempt-{attempt}-failure"
        with contextlib.suppress(DdptopError):
            await self._fetcher.take_evidence(name, EVIDENCE_S)
        nothing: tuple[Cause | None, AttemptOutcome | None] = (None, None)
        cause, outcome = self.defects.call(lambda: self._verdict(attempt), nothing)
        if cause is not None:
            if cause.rank is not None:
                self._fetcher.follow(attempt, cause.rank)
            kept = self._folder.evidence_dir / name
            cause = replace(cause, evidence=str(kept) if kept.is_dir() else None)
        return judged(order, attempt, cause, outcome)

    def _verdict(self, attempt: int) -> tuple[Cause | None, AttemptOutcome | None]:
        ends = [end for part in self._parts.values() for end in part.ends]
        cause, outcome = failure_on_nodes.blame(self.job, self._spec, ends)
        if cause is None:
            return None, outcome
        if outcome is None:
            outcome = AttemptOutcome(
                attempt, self._lived_s(), None, cause.exit_code, cause.signal, None, kind=cause.kind
            )
        outcome, cause = self._with_achievements(outcome, cause)
        return cause, outcome

    def _with_achievements(
        self, outcome: AttemptOutcome, cause: Cause
    ) -> tuple[AttemptOutcome, Cause]:
        seen = [_if_of(outcome.attempt, part.snapshot) for part in self._parts.values()]
        ranks = [rank for one in seen if one is not None for rank in one.ranks]
        return failure_on_nodes.with_achievements(
            outcome, cause, self.job, ranks, self._checkpoints
        )

    def _lived_s(self) -> float:
        since_s = self.job.attempt_started_s
        return 0.0 if since_s is None else max(0.0, boottime_s() - since_s)

    # -- hangs and losses over all nodes -----------------------------------------------------------

    def _progress(self, now_s: float) -> list[RankProgress] | None:
        """Of all ranks; None where that of a node is not known, and nothing can be judged."""
        found: list[RankProgress] = []
        for host, life in self.job.nodes.items():
            if not life.takes_part:
                continue
            part = self._parts[host]
            if not part.is_live(now_s) or part.attempt != self.job.attempt:
                return None
            found += part.progress
        return found

    def _look_at_progress(self, now_s: float) -> None:
        progress = self._progress(now_s)
        if progress is None:
            self._trouble.pause = None
        else:
            self._trouble.look(progress, now_s)

    async def _judge_trouble(self, order: pt.JudgeTrouble, attempt: int) -> pt.TroubleJudged | None:
        found = self._trouble.found
        await self._keep_evidence(order.reason)
        if found is None or self.attempt != attempt:
            return None
        folder = str(self._folder.evidence_dir / f"attempt-{attempt}-{order.reason}")
        if isinstance(found, HangVerdict):
            stands_at = {one.rank: one.stands_at for one in self._progress(boottime_s()) or ()}
            cause = hang_cause(found, folder, stands_at)
        else:
            cause = replace(plain_cause(found), evidence=folder)
        steps = [one.steps for part in self._parts.values() for one in part.progress if one.steps]
        host = None if cause.rank is None else hosts_of_ranks(self.job, self._spec).get(cause.rank)
        outcome, cause = self._with_achievements(
            plain_outcome(found, attempt, self._lived_s(), max(steps, default=None)),
            replace(cause, host=host),
        )
        return trouble_judged(order, attempt, cause, outcome)

    def _alerts_of_nodes(self) -> list[Finding]:
        """What nodes report of their disks, logs, and devices, with their names."""
        now_s = boottime_s()
        return [
            Finding(f"{alert.id}@{host}", alert.severity, f"{host}: {alert.message}", host=host)
            for host, part in self._parts.items()
            if part.snapshot is not None and part.is_live(now_s)
            for alert in part.snapshot.alerts
        ]

    # -- the next attempt, and the end -------------------------------------------------------------

    async def _conclude(self) -> pt.NothingLeft:
        await asyncio.gather(*(self._end_part(part, 0.0) for part in self._parts.values()))
        left = [host for host, part in self._parts.items() if not part.ended]
        if left:
            text = f"ranks on {' and '.join(left)} could not be ended: the link is broken"
            self._log.emit(ev.Noticed(attempt=self.attempt, text=text))
        last = self.attempt or 0
        await self._fetcher.take_ends(range(max(0, last - MOST_ATTEMPTS + 1), last + 1))
        self._alerts.tell_end()
        return pt.NothingLeft()

    # -- people ----------------------------------------------------------------------------------

    async def _command(self, message: Message) -> Message:
        op = message.get("op")
        if op in fetch.OPS:
            return await self._fetcher.command(message)
        if op == "stop":
            self.take(pt.StopAsked(grace_s=float(message.get("grace_s", 30.0))))
        elif op == "kill":
            self.take(pt.StopAsked(grace_s=0.0))
        elif op == "restart":
            self.take(pt.RestartAsked(agent=pt.AgentState()))
        elif op == "stacks":
            return await self._stacks(message.get("rank"))
        elif op == "checkpoint":
            return await self._checkpoint()
        elif op == "leave":
            self.process.leave(self.publish)
        elif op != "ping":
            raise ControlError(f"unknown request {op!r}")
        return {"state": self.job.phase}

    async def _stacks(self, rank: int | None) -> Message:
        hosts = hosts_of_ranks(self.job, self._spec)
        if rank is not None and rank not in hosts:
            raise ControlError(f"rank {rank} does not exist", f"valid ranks: 0 to {len(hosts) - 1}")
        wanted = set(hosts.values()) if rank is None else {hosts[rank]}
        answers = await self._of_each(wanted, "stacks", {"rank": rank})
        return {"stacks": [one for answer in answers for one in answer.get("stacks", [])]}

    async def _checkpoint(self) -> Message:
        hosts = set(hosts_of_ranks(self.job, self._spec).values())
        answers = await self._of_each(hosts, "checkpoint", {})
        first = answers[0]["asked"] if answers else None
        return {"asked": head_snapshot.merged_request(first, answers)}

    async def _of_each(
        self, hosts: set[str], op: str, arguments: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """The answers of nodes; the error of one where none answers.

        Raises:
            ControlError: no node answered.
        """
        found = await asyncio.gather(
            *(self._ask_node(host, op, dict(arguments)) for host in sorted(hosts)),
            return_exceptions=True,
        )
        answers = [one for one in found if not isinstance(one, BaseException)]
        errors = [one for one in found if isinstance(one, ControlError)]
        if not answers and errors:
            raise errors[0]
        return answers

    # -- what goes out -----------------------------------------------------------------------------

    def publish(self) -> None:
        """Write the snapshot now."""
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self.process.write(self._snapshot())

    def _snapshot(self) -> NodeSnapshot:
        now_s = boottime_s()
        parts = [
            head_snapshot.NodeView(
                host=host,
                snapshot=_if_of(self.job.attempt, part.snapshot),
                is_live=part.is_live(now_s),
                attempt=part.attempt,
                ended=part.ended,
                clock_offset_s=part.link.clock_offset_s,
            )
            for host, part in self._parts.items()
        ]
        memory = {
            host: {"seq": part.link.seq, "attempt": part.attempt, "ended": part.ended}
            for host, part in self._parts.items()
        }
        begun = self.process.begin_snapshot(self._spec)
        return head_snapshot.merged(begun, self.job, self._spec, parts, self._trouble.pause, memory)


def _fact_in_any_case(order: pt.Order, attempt: int) -> pt.Fact | None:
    """What follows an order that failed by a defect of ddptop."""
    if isinstance(order, pt.KeepEvidenceOnNodes):
        return pt.VerdictsDue(attempt=attempt)
    if isinstance(order, pt.JudgeTrouble):
        cause = Cause(kind="unknown", summary="The ranks stand still, or their loss went bad.")
        return trouble_judged(order, attempt, cause, None)
    if isinstance(order, pt.BeginOn):
        return pt.PartRefused(node=order.node, attempt=order.attempt, error="internal error")
    return None


def _shifted(event: ev.JobEvent, shift_s: float) -> ev.JobEvent:
    """With its times on the head's clock."""
    at_s = getattr(event, "at_s", None)
    return event if at_s is None else replace(event, at_s=at_s + shift_s)


def _end_of(plain: dict[str, Any], shift_s: float) -> RankEnd:
    end = msgspec.convert(plain, RankEnd)
    at_s = end.exit.at_boottime_s + shift_s
    return dataclasses.replace(end, exit=dataclasses.replace(end.exit, at_boottime_s=at_s))


def _if_of(attempt: int | None, snapshot: NodeSnapshot | None) -> NodeSnapshot | None:
    """The snapshot of a node, unless it is of another attempt."""
    return snapshot if snapshot is not None and snapshot.attempt == attempt else None
