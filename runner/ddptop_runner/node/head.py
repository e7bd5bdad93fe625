"""The head of a job on several nodes: combines all nodes into one state, one log, one snapshot.

It has no agent and no ranks. It may die at any time: the nodes train on, and the next head restores
the state from the log and asks each node what happened since.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import PurePath

from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job import failure
from ddptop_runner.job.decide import Decision, begin_job
from ddptop_runner.job.event_log import Memory
from ddptop_runner.job.samples import of_nodes
from ddptop_runner.job.state import away_for_long, hosts_of_ranks
from ddptop_runner.job.trouble import TroubleWatch, cause_of, plain_outcome
from ddptop_runner.judge.alerts import stalled
from ddptop_runner.judge.checkpoints import CheckpointBook, SaveMemory
from ddptop_runner.judge.hangs.verdict import HangVerdict, Limits
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause, NodeSnapshot
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.node.engine import Decisions, evidence_kept, until
from ddptop_runner.node.fetch import Fetcher
from ddptop_runner.node.process import TICK_S, JobProcess
from ddptop_runner.node.remote_nodes import ENDED_S, EVIDENCE_S, FOR_NODES, RemoteNodes
from ddptop_runner.node.server import ControlServer

PUBLISH_S = 0.05
MOST_ATTEMPTS = 5
"""Number of last attempts whose logs' ends are fetched when the job ends."""
SAVED_LATELY_S = 5.0
"""Time after a checkpoint during which another one is not worth the wait."""
SAVES_WITHIN_S = 10.0
"""A script that checks for requests begins to save within this time and two more steps."""
SAVE_S = 90.0
"""How long a checkpoint may delay the return of a node."""
VERDICTS_S = 10.0
"""Nodes whose ranks failed have a verdict within this time."""


class Head(Decisions):
    """One job's head. Construct inside a running event loop, then `run`."""

    def __init__(self, folder: RunFolder, spec: JobSpec, channel: socket.socket) -> None:
        assert spec.placement is not None  # checked by `supervise`
        self._folder, self._requested = folder, spec
        self._placement = spec.placement
        self._loop = asyncio.get_running_loop()
        self.process = process = JobProcess(folder, spec, channel)
        self._alerts, self.defects = process.alerts, process.defects
        self._server = ControlServer(folder.control_socket, self._command)
        self.nodes = RemoteNodes(spec, spec.placement, process, self.take)
        self._fetcher = Fetcher(
            folder,
            self.nodes.ask,
            self.nodes.clock_offsets,
            lambda attempt: hosts_of_ranks(self.job, spec, attempt),
        )
        self._checkpoints = CheckpointBook()
        trouble = TroubleWatch(spec, process.log, self.take)
        super().__init__(process.log, process.defects, process.spawn, trouble)
        self._publishing: asyncio.TimerHandle | None = None
        """Writes the snapshot soon, after events that only change figures."""

    @property
    def _spec(self) -> JobSpec:
        return self._requested

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
        for node in self.nodes.by_host.values():
            self.process.spawn(node.link.run())
        await self.process.tick_until(self.ended, self._each_second)
        await self._shut_down()
        self.process.send_exit_code()
        return 0

    def _greet(self, hello: pt.GuardianHello) -> None:
        found = self.process.restore(hello)
        if found.snapshot is not None:
            self._checkpoints.recall(found.snapshot.checkpoint, SaveMemory())
        self.nodes.restore(None if found.snapshot is None else found.memory.nodes)
        if found.event is not None:
            self._log.emit(found.event)
        if found.has_continued and found.snapshot is not None:
            self.process.restore_alerts(found)
            self._trouble.recall(Limits())
            if self.job.is_over:
                self.ended.set()
            else:
                self.take(pt.SupervisorStarted(agent=pt.AgentState()))
            return
        self._log.emit(
            ev.Launched(
                attempt=hello.attempt,
                target=PurePath(self._spec.target).name,
                nproc=self._spec.nproc,
                at_s=boottime_s(),
            )
        )
        self._carry(begin_job(hello.attempt, boottime_s(), self._spec))

    async def _each_second(self) -> None:
        if not self._server.is_bound and self._folder.path.is_dir():
            with contextlib.suppress(OSError):
                await self._server.start()
        self.defects.call(self._tick, None)

    def _tick(self) -> None:
        now_s = boottime_s()
        self.nodes.look_at_silence(now_s)
        self.defects.call(lambda: self._look_at_progress(now_s), None)
        snapshot = self._snapshot()
        self.defects.call(lambda: self._trouble.look_at_losses(snapshot.ranks), None)
        found = [
            *self.nodes.alerts(),
            *stalled(snapshot.pause, has_event=self._trouble.hangs.is_on),
        ]
        self._alerts.look(snapshot, found, now_s)
        self.process.look_at_workers(self._stacks)
        self.process.write(snapshot)
        self.process.record(snapshot)
        self.process.spawn(self.nodes.recover_environment())
        if (began := snapshot.attempts_began.get(self.attempt)) is not None:
            self.process.spawn(self.nodes.share_began(self.attempt, began))

    async def _shut_down(self) -> None:
        self.process.stop_listening()
        while tasks := [task for task in self.process.tasks if not task.done()]:
            for task in tasks:  # before Python 3.12, wait_for may swallow a cancellation
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)
        self._server.close()
        await self.process.end(self._snapshot)

    # -- facts, events, orders -------------------------------------------------------------------

    def _recorded(self, decision: Decision, *, has_changed: bool) -> None:
        if has_changed:
            self.publish()
        elif decision and self._publishing is None:  # a thousand ranks start at once
            self._publishing = self._loop.call_later(PUBLISH_S, self.publish)
        self.nodes.send(decision)

    def _carry_out(self, order: pt.Order) -> None:
        if not isinstance(order, FOR_NODES):  # else, it has been sent
            super()._carry_out(order)

    def _follow(self, event: ev.JobEvent) -> None:
        if isinstance(event, ev.AttemptStarted | ev.AttemptOpened):
            self._trouble.begin_attempt()
            self.nodes.begin_attempt()
        elif isinstance(event, ev.NodesChosen):
            self._skip.clear()
        elif isinstance(event, ev.CheckpointSaved):
            self._checkpoints.learn(event.checkpoint)
        super()._follow(event)

    async def _fact_of(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        if isinstance(order, pt.BeginOn):
            refused = await self.nodes.begin(order)
            self.publish()  # `launch` waits for it
            return refused
        if isinstance(order, pt.KeepEvidence):
            await self.nodes.keep_evidence("failure")
            return evidence_kept(order, attempt)
        if isinstance(order, pt.JudgeAttempt) and order.trouble is not None:
            return await self._judge_trouble(order.trouble, attempt)
        if isinstance(order, pt.JudgeAttempt):
            await self._keep_evidence("failure")
            await until(self.nodes.has_all_verdicts, VERDICTS_S)
            return await self._judge_attempt(attempt)
        if isinstance(order, pt.AwaitNodes):
            await asyncio.sleep(order.seconds)
            return pt.NodesDue(attempt=attempt)
        if isinstance(order, pt.AskCheckpoint):
            await self._save_first(attempt)
            return pt.CheckpointWaited(attempt=attempt)
        if isinstance(order, pt.EndOn):
            node = self.nodes.by_host[order.node]
            async with node.is_beginning:
                await self.nodes.end(node, order.grace_s)
            return None
        if isinstance(order, pt.EndRanks | pt.Conclude):
            if isinstance(order, pt.EndRanks):
                await self.nodes.end_all(order.grace_s)
            return await self._conclude()
        raise AssertionError(order)  # a head gets no other orders

    # -- evidence and causes ---------------------------------------------------------------------

    async def _keep_evidence(self, reason: pt.EvidenceReason) -> None:
        """Save evidence on each node with living ranks, before any signal, then fetch it."""
        name = f"attempt-{self.attempt}-{reason}"
        await self.nodes.keep_evidence(reason)
        with contextlib.suppress(DdptopError):
            await self._fetcher.take_evidence(name, EVIDENCE_S)

    async def _judge_attempt(self, attempt: int) -> pt.AttemptJudged:
        name = f"attempt-{attempt}-failure"
        with contextlib.suppress(DdptopError):
            await self._fetcher.take_evidence(name, EVIDENCE_S)
        await self.nodes.judge_ranks(attempt)
        nothing: tuple[Cause | None, AttemptOutcome | None] = (None, None)
        cause, outcome = self.defects.call(lambda: self._verdict(attempt), nothing)
        if cause is not None:
            if cause.rank is not None:
                self.process.spawn(self._fetcher.take_logs(attempt, [cause.rank]))
            kept = self._folder.evidence_dir / name
            cause = replace(cause, evidence=str(kept) if kept.is_dir() else None)
        return pt.AttemptJudged(attempt=attempt, cause=cause, outcome=outcome)

    def _verdict(self, attempt: int) -> tuple[Cause | None, AttemptOutcome | None]:
        cause, outcome = failure.blame(self.job, self._spec, self.nodes.judged)
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
        ranks, judged = self._snapshot().ranks, self.nodes.judged
        return failure.achieved_on_nodes(outcome, cause, self.job, ranks, judged, self._checkpoints)

    # -- hangs and losses over all nodes -----------------------------------------------------------

    def _look_at_progress(self, now_s: float) -> None:
        progress = self.nodes.progress(now_s)
        if progress is None:
            self._trouble.pause = None
        else:
            away = away_for_long(self.job, now_s, self._spec)
            limit_s = self._placement.node_timeout_s if away else None
            self._trouble.look(progress, now_s, without_nodes_s=limit_s)

    async def _judge_trouble(self, trouble: ev.Trouble, attempt: int) -> pt.AttemptJudged | None:
        found = self._trouble.found
        await self._keep_evidence(trouble)
        if found is None or self.attempt != attempt:
            return None
        folder = str(self._folder.evidence_dir / f"attempt-{attempt}-{trouble}")
        cause = cause_of(found, folder, self._checkpoints.last, attempt)
        if isinstance(found, HangVerdict):
            away = away_for_long(self.job, boottime_s(), self._spec)
            cause = failure.hang_without(away, cause)
        nodes = self.nodes.by_host.values()
        steps = [one.steps for node in nodes for one in node.progress if one.steps]
        hosts = hosts_of_ranks(self.job, self._spec)
        host = cause.host if cause.rank is None else hosts.get(cause.rank)
        outcome, cause = self._with_achievements(
            plain_outcome(found, attempt, self._lived_s(), max(steps, default=None)),
            replace(cause, host=host),
        )
        return pt.AttemptJudged(attempt=attempt, trouble=trouble, cause=cause, outcome=outcome)

    # -- the next attempt, and the end -------------------------------------------------------------

    @property
    def _is_stopped(self) -> bool:
        """Whether a user has ended the job; in Slurm, the allocation's end is enough."""
        return self.job.kill_at_s is not None and self._placement.by != "slurm"

    async def _conclude(self) -> pt.NothingLeft:
        async def wait_for_nodes() -> None:
            while self._is_stopped and self.nodes.may_run_unseen():  # the order outlives the link
                await asyncio.sleep(TICK_S)
                await self.nodes.end_all(0.0)
            # a node that came back may still write its last lines
            await until(
                lambda: not any(isinstance(order, pt.EndOn) for order, _ in self._under_way),
                ENDED_S,
            )

        await self.nodes.end_all(0.0)
        await wait_for_nodes()
        last = self.attempt or 0
        await self._fetcher.take_ends(range(max(0, last - MOST_ATTEMPTS + 1), last + 1))
        await wait_for_nodes()  # more may have come back, or a user may have stopped the job
        nodes = self.nodes.by_host.items()
        left = [host for host, node in nodes if node.is_stale or not node.ended]
        if left:
            text = f"ranks on {' and '.join(left)} could not be ended: the link is broken"
            self._log.emit(ev.Noticed(attempt=self.attempt, text=text))
        self._alerts.record_end()
        return pt.NothingLeft()

    # -- users -----------------------------------------------------------------------------------

    async def _command(self, request: pt.SupervisorRequest) -> pt.Reply:
        if isinstance(request, pt.FetchLogs | pt.FetchEvidence):
            return await self._fetcher.command(request)
        if isinstance(request, pt.GetStacks):
            return await self._stacks(request.rank)
        if isinstance(request, pt.RequestCheckpoint):
            return await self._ask_to_save()
        if isinstance(request, pt.StopAsked):
            self.take(request)
        elif isinstance(request, pt.Restart):
            self.take(pt.RestartAsked(agent=pt.AgentState()))
        elif not isinstance(request, pt.Ping):
            raise ControlError(f"{type(request).__name__} is for nodes")
        return pt.Done()

    async def _stacks(self, rank: int | None) -> pt.Stacks:
        hosts = hosts_of_ranks(self.job, self._spec)
        if rank is not None and rank not in hosts:
            raise ControlError(f"rank {rank} does not exist", f"valid ranks: 0 to {len(hosts) - 1}")
        wanted = set(hosts.values()) if rank is None else {hosts[rank]}
        answers = await self.nodes.ask_each(wanted, pt.GetStacks(rank=rank), pt.Stacks)
        return pt.Stacks(stacks=[one for answer in answers for one in answer.stacks])

    async def _ask_to_save(self) -> pt.SaveAsked:
        hosts = set(hosts_of_ranks(self.job, self._spec).values())
        answers = await self.nodes.ask_each(hosts, pt.RequestCheckpoint(), pt.SaveAsked)
        if not answers:
            raise ControlError(f"no rank is running: the job is {self.job.phase}")
        return replace(
            answers[0],
            signalled={rank: name for one in answers for rank, name in one.signalled.items()},
            refused={rank: why for one in answers for rank, why in one.refused.items()},
        )

    async def _save_first(self, attempt: int) -> None:
        """Ask the ranks to save and wait until they have, longer if one is writing."""
        before, asked_s = self.job.checkpoint, boottime_s()
        if before is not None and abs((utc_now() - before.at).total_seconds()) < SAVED_LATELY_S:
            return
        with contextlib.suppress(DdptopError):
            await self._ask_to_save()
        limit_s = SAVES_WITHIN_S
        while boottime_s() - asked_s < limit_s:
            await asyncio.sleep(TICK_S)  # by then, each node has reported whether a rank is writing
            snapshot = self._snapshot()
            if self.attempt != attempt or self.job.phase != "running":
                return
            if any(rank.phase == "checkpoint" for rank in snapshot.ranks):
                limit_s = SAVE_S
            elif self.job.checkpoint != before:
                return
            step_s = max((rank.step_time_s or 0.0 for rank in snapshot.ranks), default=0.0)
            limit_s = max(limit_s, min(SAVE_S, SAVES_WITHIN_S + 2 * step_s))

    # -- publishing --------------------------------------------------------------------------------

    def publish(self) -> None:
        """Write the snapshot immediately."""
        if self._publishing is not None:
            self._publishing.cancel()
            self._publishing = None
        self.process.write(self._snapshot())

    def _snapshot(self) -> NodeSnapshot:
        """The current snapshot.

        Nodes report only some of the checkpoints of a script that saves often as events; their
        snapshots contain the last.
        """
        snapshots = self.nodes.snapshots()
        for seen in snapshots.values():
            self._checkpoints.learn(seen.checkpoint)
        samples = of_nodes(
            self.job,
            snapshots,
            stale=self.nodes.stale(),
            clock_offsets=self.nodes.clock_offsets(),
            started_at=self.process.clock.started_at,
            pause=self._trouble.pause,
            checkpoint=self._checkpoints.last,
        )
        return self.process.snapshot(self._spec, samples, Memory(nodes=self.nodes.memory()))
