"""The head of a job on several nodes: one state, one log, one snapshot, made from all of them.

It has no agent and no ranks. It may die at any time: the nodes train on, and the next one restores
the state from the log and asks each node for what happened since.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import handover, procs
from ddptop_runner.job.decide import Decision
from ddptop_runner.job.decide_nodes import begin, decide_nodes, hosts_of_ranks
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.old_events import typed
from ddptop_runner.job.state import JobState
from ddptop_runner.judge.alerts import Finding, stalled
from ddptop_runner.judge.causes import culprit, paragraph
from ddptop_runner.judge.causes.culprit import RankEnd
from ddptop_runner.judge.causes.error_text import NOT_A_VICTIM
from ddptop_runner.judge.checkpoints import CheckpointBook
from ddptop_runner.judge.hangs.records import hang_cause
from ddptop_runner.judge.hangs.verdict import HangVerdict, RankProgress, SeenPause
from ddptop_runner.judge.hangs.watch import HangWatch
from ddptop_runner.judge.losses import BadLoss, LossWatch
from ddptop_runner.model import events as ev
from ddptop_runner.model import node_link as nl
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause, NodeSnapshot, Pause, ProcessId, encode
from ddptop_runner.model.spec import JobSpec, Membership, NodeSpec, Rendezvous
from ddptop_runner.node import fetch, head_snapshot
from ddptop_runner.node.agent_link import Message
from ddptop_runner.node.alerts import JobAlerts
from ddptop_runner.node.fetch import Fetcher
from ddptop_runner.node.guardian import PACKET_BYTES
from ddptop_runner.node.job_clock import JobClock
from ddptop_runner.node.keeper import write_end
from ddptop_runner.node.last_resort import LastResort
from ddptop_runner.node.links import LinkError, NodeLink
from ddptop_runner.node.past import look_back
from ddptop_runner.node.remote import node_job_id
from ddptop_runner.node.server import ControlServer
from ddptop_runner.node.snapshot import devices_for_history, for_history
from ddptop_runner.store.disk import SteadyFile
from ddptop_runner.store.history import HistoryWriter

TICK_S = 1.0
PUBLISH_S = 0.05
SHOWN_CHARACTERS = 2000
LINK_GRACE_S = 3.0
"""A link that is made again within this was never broken, as far as a person is concerned."""
UP_S = 30.0
"""A node that begins an attempt is reached within this, or the attempt cannot begin."""
MOST_ATTEMPTS = 5
"""The ends of the logs of the last ones are fetched when the job ends."""
EVIDENCE_S = 10.0
VERDICTS_S = 10.0
"""Nodes whose ranks failed have judged why by then."""
POLL_S = 0.05
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
        self._folder, self._spec, self._channel = folder, spec, channel
        self._placement = spec.placement
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._seq = 0
        self._clock = JobClock(spec.created_at)
        self._guardian: ProcessId | None = None
        self._self = procs.identify(os.getpid())
        self._unguarded = False
        self._history = HistoryWriter(folder.live_dir / "history.db", hosts=spec.hosts)
        self._log = EventLog(self._history, self._show)
        self.defects = LastResort(self._log)
        self._alerts = JobAlerts(self._log, self.defects)
        self._snapshot_file = SteadyFile(folder.node_file(procs.host_name()))
        self._server = ControlServer(
            folder.control_socket, self._command, NoAgent(), lambda *_: lambda: None
        )
        self._parts: dict[str, Part] = {}
        self._fetcher = Fetcher(folder, self._ask_node, self._clock_offsets)
        self._hangs = HangWatch(spec.hang_timeout_s, auto=spec.hang_auto)
        self._losses = LossWatch(spec.on_nan)
        self._checkpoints = CheckpointBook()
        self._found: HangVerdict | BadLoss | None = None
        self._pause: Pause | None = None
        self._skip = asyncio.Event()
        self._wait: asyncio.Event | None = None
        self._evidence = asyncio.Lock()
        self._has_evidence: set[str] = set()
        self._silent: set[str] = set()
        """Nodes that could not keep evidence: they have failed themselves, or are gone."""
        self._under_way: list[tuple[pt.Order, int]] = []
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
        hello = json.loads(await self._loop.sock_recv(self._channel, PACKET_BYTES))
        self._greet(hello)
        with contextlib.suppress(OSError):
            await self._server.start()
        self._loop.add_reader(self._channel, self._read_guardian)
        self.publish()
        for part in self._parts.values():
            self.spawn(part.link.run())
        self.spawn(self._fetcher.run())
        await self._tick_until_ended()
        await self._shut_down()
        job = self.job
        code = job.exit_code if job.exit_code is not None else int(job.phase != "finished")
        self._tell_guardian({"type": "done", "exit_code": code})
        return 0

    def _greet(self, hello: Message) -> None:
        self._guardian = procs.identify(hello["guardian_pid"])
        past = look_back(self._folder, hello)
        self._log.restore(past.events, past.snapshot if past.lives_on else None)
        known: dict[str, Any] = {}
        if past.snapshot is not None:
            self._clock.go_on_from(past.snapshot, alive_since=past.lives_on)
            self._seq = past.snapshot.seq
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
            self._alerts.recall(past.snapshot.alerts, past.snapshot.memory.get("alerts") or {})
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

    async def _tick_until_ended(self) -> None:
        next_tick_s = self._loop.time()
        while not self.ended.is_set():
            if not self._server.is_bound and self._folder.path.is_dir():
                with contextlib.suppress(OSError):
                    await self._server.start()
            self.defects.call(self._tick, None)
            next_tick_s = max(next_tick_s + TICK_S, self._loop.time())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.ended.wait(), next_tick_s - self._loop.time())

    def _tick(self) -> None:
        now_s = boottime_s()
        self.defects.call(lambda: self._look_at_progress(now_s), None)
        snapshot = self._snapshot()
        self.defects.call(lambda: self._look_at_losses(snapshot), None)
        found = [*self._alerts_of_nodes(), *stalled(snapshot.pause, is_told=self._hangs.is_on)]
        self._alerts.look(snapshot, found, now_s)
        self._write(replace(snapshot, alerts=self._alerts.now))
        self._history.add(
            snapshot.ts, snapshot.attempt, for_history(snapshot), devices_for_history(snapshot)
        )

    async def _shut_down(self) -> None:
        self._loop.remove_reader(self._channel)
        while tasks := [task for task in self._tasks if not task.done()]:
            for task in tasks:  # before Python 3.12 wait_for may swallow one
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)
        self._server.close()
        self._clock.end()
        snapshot = self._snapshot()
        self._history.add(
            snapshot.ts, snapshot.attempt, for_history(snapshot), devices_for_history(snapshot)
        )
        await write_end(self._folder, snapshot, self._history, self._snapshot_file)

    # -- facts, events, orders -------------------------------------------------------------------

    def take(self, fact: pt.Fact) -> None:
        """Decide on a fact: record its events, then carry out its orders.

        Raises:
            ControlError: when someone asks for what cannot be done.
        """
        self._carry(decide_nodes(self.job, fact, boottime_s(), self._spec))

    def _carry(self, decision: Decision) -> None:
        before, has_events = self.job.phase, False
        for event in decision:
            if isinstance(event, ev.EventBase):
                self._log.emit(event)
                self._follow_event(event)
                has_events = True
        if self.job.phase != before or any(isinstance(one, pt.Message) for one in decision):
            self.publish()
        elif has_events and self._publishing is None:  # a thousand ranks start at once
            self._publishing = self._loop.call_later(PUBLISH_S, self.publish)
        for order in decision:
            if isinstance(order, pt.Message):
                self._carry_out(order)

    def _follow_event(self, event: ev.JobEvent) -> None:
        if isinstance(event, ev.NodesChosen):
            self._hangs.begin_attempt()
            self._losses.begin_attempt()
            self._found = self._pause = None
            self._has_evidence.clear()
            self._skip.clear()
            for part in self._parts.values():
                part.ends = []
        elif isinstance(event, ev.CheckpointSaved):
            self._checkpoints.recall(event.checkpoint, {})
        elif isinstance(event, ev.JobEnded):
            self.ended.set()

    def _carry_out(self, order: pt.Order) -> None:
        if isinstance(order, pt.SkipWait):
            self._skip.set()
            return
        work = (order, self.attempt)
        if work not in self._under_way:
            self._under_way.append(work)
            self.spawn(self._do(*work))

    async def _do(self, order: pt.Order, attempt: int) -> None:
        try:
            fact = await self._fact_of(order, attempt)
        except Exception as error:  # a defect must not leave a job without an end
            self.defects.report(error)
            fact = _fact_in_any_case(order, attempt)
        finally:
            self._under_way.remove((order, attempt))
        if fact is not None:
            self.take(fact)

    async def _fact_of(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        if isinstance(order, pt.BeginOn):
            return await self._begin_on(order)
        if isinstance(order, pt.KeepEvidenceOnNodes):
            await self._keep_evidence("failure")
            await self._until(self._has_all_verdicts, VERDICTS_S)
            return pt.VerdictsDue(attempt=attempt)
        if isinstance(order, pt.JudgeAttempt):
            async with self._evidence:  # the next attempt must not end what is being looked at
                pass
            return await self._judge_attempt(attempt)
        if isinstance(order, pt.JudgeTrouble):
            return await self._judge_trouble(order, attempt)
        if isinstance(order, pt.WaitForRestart):
            return await self._wait_for_restart(order, attempt)
        if isinstance(order, pt.AwaitNodes):
            await asyncio.sleep(order.seconds)
            return pt.NodesDue(attempt=attempt, waited_s=order.seconds)
        if isinstance(order, pt.EndOn):
            await self._end_part(self._parts[order.node], order.grace_s)
            return None
        if isinstance(order, pt.EndRanks):
            await self._until(lambda: not self._is_beginning, UP_S)
            await asyncio.gather(
                *(self._end_part(part, order.grace_s) for part in self._parts.values())
            )
            return pt.RanksEnded()
        if isinstance(order, pt.Conclude):
            return await self._conclude()
        raise AssertionError(order)  # nothing else is ordered of a head

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline_s = boottime_s() + timeout_s
        while not condition() and boottime_s() < deadline_s:
            await asyncio.sleep(POLL_S)
        return condition()

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
        return any(isinstance(order, pt.BeginOn) for order, _ in self._under_way)

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
                if not await self._until(lambda: part.is_known, away_s):
                    return
                continue
            asked = False
            with contextlib.suppress(ControlError):  # its supervisor may be starting
                await part.link.ask("stop", {"grace_s": grace_s}, timeout_s=10.0)
                asked = True
            wait_s = grace_s + ENDED_S if asked else RETRY_S
            await self._until(lambda: part.ended or not part.is_known, wait_s)

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

    async def _judge_attempt(self, attempt: int) -> pt.AttemptJudged:
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
        return pt.AttemptJudged(
            attempt=attempt, question=None, cause=cause, outcome=outcome, jitter=random.random()
        )

    def _verdict(self, attempt: int) -> tuple[Cause | None, AttemptOutcome | None]:
        """One cause over all nodes: the first rank that failed, and was no victim of another."""
        job, hosts = self.job, hosts_of_ranks(self.job, self._spec)
        failed = {host: life for host, life in job.nodes.items() if life.failed}
        ends = [end for part in self._parts.values() for end in part.ends]
        blamed = culprit.find(ends) if ends else None
        gone = [host for host, life in failed.items() if life.outcome is None]
        away = [host for host, life in job.nodes.items() if life.unknown_since is not None]
        is_victim = blamed is not None and blamed.end.victim != NOT_A_VICTIM
        if blamed is not None and not (is_victim and (gone or away)):
            host = hosts.get(blamed.end.rank)
            life = None if host is None else failed.get(host)
            cause = None if life is None else life.cause
            if cause is None or cause.rank != blamed.end.rank:
                cause = paragraph.cause_of(blamed, ends, paragraph.Surroundings(), None)
            outcome = None if life is None else life.outcome
        elif gone:
            host = gone[0]
            cause, outcome = failed[host].cause, None
        else:
            host, outcome = away[0] if away else None, None
            cause = _cause_of_absence(away, blamed)
        if cause is None:
            return None, outcome
        outcome = self._achieved(outcome, attempt, cause)
        return self._with_loss(replace(cause, host=host), outcome), outcome

    def _achieved(
        self, outcome: AttemptOutcome | None, attempt: int, cause: Cause
    ) -> AttemptOutcome:
        """With what any node achieved: rank 0 alone may save."""
        lives = [life.outcome for life in self.job.nodes.values() if life.outcome is not None]
        if outcome is None:
            outcome = AttemptOutcome(
                attempt, self._lived_s(), None, cause.exit_code, cause.signal, None, kind=cause.kind
            )
        steps = [one.steps for one in lives if one.steps is not None]
        steps += [
            rank.step
            for part in self._parts.values()
            if (seen := _if_of(attempt, part.snapshot)) is not None
            for rank in seen.ranks
            if rank.step is not None and rank.step_source != "log"
        ]
        global_steps = [one.global_step for one in lives if one.global_step is not None]
        saved = [one for one in lives if one.new_checkpoint]
        last = self.job.checkpoint
        if last is not None and last.attempt == attempt:
            new_checkpoint: bool | None = True
        else:
            new_checkpoint = None if last is None and not saved else bool(saved)
        return dataclasses.replace(
            outcome,
            steps=max(steps, default=outcome.steps),
            global_step=max(global_steps, default=outcome.global_step),
            new_checkpoint=new_checkpoint,
            checkpoint_step=last.global_step if last is not None and new_checkpoint else None,
            startup_s=self.job.first_step_after_s,
        )

    def _with_loss(self, cause: Cause, outcome: AttemptOutcome) -> Cause:
        lost = self._checkpoints.work_lost(self.attempt, outcome.steps, outcome.lived_s)
        where = f"On {cause.host}: " if cause.host and cause.kind not in ("node", "launch") else ""
        return replace(
            cause,
            summary=" ".join(filter(None, [where + cause.summary, lost.in_words()])),
            work_lost_steps=lost.steps,
            work_lost_s=lost.seconds,
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
        phase = self.job.phase
        progress = self._progress(now_s)
        if progress is None or phase not in ("starting", "running", "hung"):
            self._pause = None
            return
        looked = self._hangs.look(progress, now_s, hung=phase == "hung")
        self._note_pause(looked.pause, now_s)
        if phase == "hung":
            return
        if looked.verdict is not None:
            self._found = looked.verdict
            self.take(pt.TroubleFound(reason="hang", ranks=list(looked.verdict.ranks)))
        elif looked.suspicion is not None and self.job.suspected is None:
            self._log.emit(
                ev.HangSuspected(
                    attempt=self.attempt,
                    found=looked.suspicion.message,
                    ranks=list(looked.suspicion.ranks),
                )
            )

    def _note_pause(self, seen: SeenPause | None, now_s: float) -> None:
        if seen is None:
            self._pause = None
            return
        since = head_snapshot.since(seen.stepless_s, now_s)
        self._pause = Pause(
            state=seen.state,
            since=since if self._pause is None else self._pause.since,
            reason=seen.reason,
            ranks=list(seen.ranks),
        )

    def _look_at_losses(self, snapshot: NodeSnapshot) -> None:
        bad = self._losses.look(snapshot.ranks)
        if bad is not None and self.job.phase == "running":
            self._found = bad
            self.take(pt.TroubleFound(reason="nan"))

    async def _judge_trouble(self, order: pt.JudgeTrouble, attempt: int) -> pt.TroubleJudged | None:
        found = self._found
        await self._keep_evidence(order.reason)
        if found is None or self.attempt != attempt:
            return None
        folder = str(self._folder.evidence_dir / f"attempt-{attempt}-{order.reason}")
        if isinstance(found, HangVerdict):
            stands_at = {one.rank: one.stands_at for one in self._progress(boottime_s()) or ()}
            cause = hang_cause(found, folder, stands_at)
        else:
            cause = Cause(kind="nan", rank=found.rank, summary=found.in_words(), evidence=folder)
        steps = [one.steps for part in self._parts.values() for one in part.progress if one.steps]
        is_hang = order.reason == "hang"
        lived_s = self._lived_s()
        most = max(steps, default=None)
        bare = AttemptOutcome(attempt, lived_s, most, None, None, None, is_hang, not is_hang)
        host = None if cause.rank is None else hosts_of_ranks(self.job, self._spec).get(cause.rank)
        outcome = self._achieved(bare, attempt, cause)
        return pt.TroubleJudged(
            attempt=attempt,
            reason=order.reason,
            cause=self._with_loss(replace(cause, host=host), outcome),
            outcome=outcome,
            jitter=random.random(),
        )

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

    async def _wait_for_restart(
        self, order: pt.WaitForRestart, attempt: int
    ) -> pt.RestartDue | None:
        """A later wait replaces an earlier one."""
        if self._wait is not None:
            self._wait.set()
        replaced = self._wait = asyncio.Event()
        left_s = 0.0 if order.at_s is None else max(0.0, order.at_s - boottime_s())
        waits = [asyncio.ensure_future(event.wait()) for event in (self._skip, replaced)]
        await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return None if replaced.is_set() else pt.RestartDue(attempt=attempt, question=None)

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

    # -- guardian and people -----------------------------------------------------------------------

    def _read_guardian(self) -> None:
        try:
            packet = self._channel.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._loop.remove_reader(self._channel)
            self._unguarded = True

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
            self._leave()
        elif op != "ping":
            raise ControlError(f"unknown request {op!r}")
        return {"state": self.job.phase}

    def _leave(self) -> None:
        """Make room for the head of a new guardian."""
        if not self._unguarded:
            raise ControlError("the job already has a guardian")

        def leave() -> None:
            self.publish()
            self._history.close()
            os._exit(0)

        self._loop.call_later(0.05, leave)

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

    def _show(self, line: str) -> None:
        self._tell_guardian({"type": "print", "text": line[:SHOWN_CHARACTERS]})

    def _tell_guardian(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(message).encode())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop; an error of it is written to the supervisor's log."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.defects.report(error)

    def publish(self) -> None:
        """Write the snapshot now."""
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self._write(replace(self._snapshot(), alerts=self._alerts.now))

    def _write(self, snapshot: NodeSnapshot) -> None:
        self._snapshot_file.write(encode(snapshot))

    def _snapshot(self) -> NodeSnapshot:
        self._seq += 1
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
            **self._log.memory(),
            "alerts": self._alerts.remember(),
            "parts": {
                host: {"seq": part.link.seq, "attempt": part.attempt, "ended": part.ended}
                for host, part in self._parts.items()
            },
        }
        return head_snapshot.merged(
            self.job,
            self._spec,
            parts,
            seq=self._seq,
            clock=self._clock,
            pause=self._pause,
            guardian=self._guardian,
            supervisor=self._self,
            memory=memory,
            now_s=now_s,
            now=utc_now(),
        )


def _fact_in_any_case(order: pt.Order, attempt: int) -> pt.Fact | None:
    """What follows an order that failed by a defect of ddptop."""
    if isinstance(order, pt.KeepEvidenceOnNodes):
        return pt.VerdictsDue(attempt=attempt)
    if isinstance(order, pt.JudgeAttempt):
        return pt.AttemptJudged(
            attempt=attempt, question=None, cause=None, outcome=None, jitter=random.random()
        )
    if isinstance(order, pt.JudgeTrouble):
        cause = Cause(kind="unknown", summary="The ranks stand still, or their loss went bad.")
        return pt.TroubleJudged(
            attempt=attempt, reason=order.reason, cause=cause, outcome=None, jitter=random.random()
        )
    if isinstance(order, pt.BeginOn):
        return pt.PartRefused(node=order.node, attempt=order.attempt, error="internal error")
    if isinstance(order, pt.EndRanks):
        return pt.RanksEnded()
    return pt.NothingLeft() if isinstance(order, pt.Conclude) else None


def _shifted(event: ev.JobEvent, shift_s: float) -> ev.JobEvent:
    """With its times on the head's clock."""
    at_s = getattr(event, "at_s", None)
    return event if at_s is None else replace(event, at_s=at_s + shift_s)


def _end_of(plain: dict[str, Any], shift_s: float) -> RankEnd:
    end = msgspec.convert(plain, RankEnd)
    at_s = end.exit.at_boottime_s + shift_s
    return dataclasses.replace(end, exit=dataclasses.replace(end.exit, at_boottime_s=at_s))


def _cause_of_absence(away: list[str], blamed: culprit.Culprit | None) -> Cause:
    """Ranks failed while nodes could not be reached, and none of them by itself."""
    who = ", ".join(away) or "a node"
    other = "" if blamed is None else f" while rank {blamed.end.rank} failed: it lost a connection"
    return Cause(kind="node", summary=f"Cannot reach {who}{other}.", host=away[0] if away else None)


def _if_of(attempt: int | None, snapshot: NodeSnapshot | None) -> NodeSnapshot | None:
    """The snapshot of a node, unless it is of another attempt."""
    return snapshot if snapshot is not None and snapshot.attempt == attempt else None
