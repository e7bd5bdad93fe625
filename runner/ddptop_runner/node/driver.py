"""Drives the state machine of a job on this node: takes facts, records events, carries out orders.

Facts come from the agent, the guardian, /proc, and users. `job.decide` turns each into events,
which the log records, and orders, which are carried out here; an order's result is the next fact.
On one of several nodes, the head decides: facts go there, and its events and orders come back.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs, stopping
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job import evidence, failure
from ddptop_runner.job import save_request as request
from ddptop_runner.job.attempt import Attempt
from ddptop_runner.job.decide import Decision
from ddptop_runner.job.event_log import EventLog, Memory
from ddptop_runner.job.processes import LEFTOVER_GRACE_S, JobProcesses, alive
from ddptop_runner.job.trouble import cause_of, plain_outcome
from ddptop_runner.judge.hangs.verdict import HangVerdict
from ddptop_runner.judge.restarts.devices import Choice, JobDevices, Waited
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause, NodeSnapshot, ProcessId, encode
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.node.engine import Decisions, evidence_kept, until
from ddptop_runner.node.server import SendToAgent
from ddptop_runner.store import evidence_folder
from ddptop_runner.store.evidence_folder import Scene

if TYPE_CHECKING:
    from ddptop_runner.node.supervisor import Supervisor

AGENT_EXIT_S = 5.0
"""How long the agent may take to end once its ranks have ended."""
EXITS_KNOWN_S = 1.5
"""Ranks' exit statuses are known within this time if the guardian or the kernel reports them."""
RECONNECT_S = 3.0
"""A living agent reconnects within this time."""


class JobDriver(Decisions):
    """One job on this node, over all its attempts.

    Args:
        folder: the job's run folder.
        spec: the job, as requested.
        log: records events and holds the job's state.
        usage: remembers each process seen in a rank's tree.
        around: the supervisor.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: JobSpec,
        log: EventLog,
        usage: HostUsage,
        around: Supervisor,
    ) -> None:
        self._folder = folder
        self._around = around
        self.attempt = Attempt(folder, spec, log, self.take, around.publish)
        self.attempt.on_bad_exit = lambda: around.spawn(self._keep_evidence_of_failure())
        self.attempt.on_new_ranks = self._forget_evidence
        self.devices = JobDevices(spec)
        self.processes = JobProcesses(spec.job_id, usage, log)
        self.agent_pid: int | None = None
        self.awaits_agent = False
        """Whether the guardian was asked for an agent and has not reported it yet."""
        self.before_end: Callable[[], None] = lambda: None
        """Called once before the job's end is recorded."""
        self._agent: ProcessId | None = None
        """The process of `agent_pid`, as first seen."""
        self._link: SendToAgent | None = None
        self._asked: pt.AgentAsked | None = None
        """The agent's question that awaits an answer; each agent numbers its own."""
        self._agent_attempt: int | None = None
        """The attempt that the agent runs or is about to begin."""
        self._agent_status: int | None = None
        self._group: pt.GroupStarted | None = None
        """The last group of ranks that the agent has reported."""
        self._exits: dict[int, pt.ProcessExited] = {}
        """By pid, the exits in that group."""
        self._is_alone = False
        """On one of several nodes: whether its part of the job is being ended."""
        self._early_exits: list[pt.RankEnded] = []
        """Exits in a group that the head has not acknowledged yet."""
        self.head_seq = 0 if spec.membership is None else spec.membership.head_seq
        """Of the last event taken over from the head."""
        self._agent_end_seen = False
        self._seen_exits: dict[int, int | None] = {}
        """Statuses by pid, seen from outside, of ranks whose agent has yet to report."""
        self._xids_before: dict[int, list[int]] = {}
        self._has_evidence = False
        """Whether evidence was saved when the first of the current ranks failed."""
        self._keeping_evidence = asyncio.Lock()
        super().__init__(log, around.defects, around.spawn, self.attempt.trouble)

    @property
    def _spec(self) -> JobSpec:
        """The job, as requested."""
        return self.attempt.requested

    # -- facts, events, orders -------------------------------------------------------------------

    def take(self, fact: pt.Fact) -> None:
        """Decide on a fact: record its events, then carry out its orders.

        Raises:
            ControlError: a request cannot be carried out.
        """
        if isinstance(fact, pt.GroupStarted):
            if self._group is None or self._group.attempt != fact.attempt:
                self._exits = {}
            self._group, self._agent_attempt = fact, fact.attempt
        elif isinstance(fact, pt.ProcessExited) and fact.pid is not None:
            known = self._exits.get(fact.pid)
            if known is not None and known.status is not None and known.rank == fact.rank:
                fact = known  # the head may not have taken it yet
            self._exits[fact.pid or 0] = fact
        if self._spec.membership is not None:
            self._adopt()
            if not self._is_alone or isinstance(fact, pt.ProcessExited):
                self._around.report(fact)
        if self._spec.membership is None or self._is_alone:
            super().take(fact)

    def carry(self, message: pt.Carry) -> None:
        """Take over the head's events, and carry out its orders."""
        self.head_seq = max(self.head_seq, message.seq)
        if not self._is_alone:
            self._carry([*message.events, *message.orders])

    def _recorded(self, decision: Decision, *, has_changed: bool) -> None:
        self._adopt()
        if has_changed or any(isinstance(one, ev.RankStarted) for one in decision):
            self._around.publish()

    def _adopt(self) -> None:
        """Add the group's ranks to the table once its attempt is the job's."""
        group = self._group
        if group is None or group.attempt != self.job.attempt or self.job.world is None:
            return
        self.attempt.adopt(group.workers)
        early, self._early_exits = self._early_exits, []
        for ended in early:
            self._process_ended(ended)

    def resync(self) -> list[pt.Fact]:
        """The facts that the head may have missed, and a last one that completes them."""
        facts: list[pt.Fact] = [] if self._group is None else [self._group]
        facts += [one for one in self._exits.values() if one.attempt == self.attempt.number]
        if self._asked is not None and self._link is not None:
            facts.append(self._asked)
        return [*facts, pt.LinkMade(agent=self._agent_state(), after_seq=self.head_seq)]

    def _follow(self, event: ev.JobEvent) -> None:
        if isinstance(event, ev.AttemptStarted | ev.AttemptOpened):
            self._forget_evidence()
            self._skip.clear()
            self._seen_exits = {}
            report = self._around.device_report()
            self._xids_before = failure.xids_of([] if report is None else report.gpus)
            self.attempt.begin()
        super()._follow(event)

    def _carry_out(self, order: pt.Order) -> None:
        if isinstance(order, pt.AnswerAgent):
            self._answer_agent(order)
        elif isinstance(order, pt.TellAgent):
            if self._link is not None:
                self._link(order)
        elif isinstance(order, pt.InterruptRanks):
            self._interrupt_ranks()
        elif isinstance(order, pt.StartAgent):
            self._skip.clear()
            self._agent_attempt, self._asked = order.attempt, None
            self._around.start_agent(order)
        else:
            super()._carry_out(order)

    async def _fact_of(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        if isinstance(order, pt.KeepEvidence):
            await self._keep_evidence_of_failure()
            return evidence_kept(order, attempt)
        if isinstance(order, pt.EndLeftovers):
            return await self._end_leftovers(order)
        if isinstance(order, pt.JudgeAttempt) and order.trouble is not None:
            return await self._judge_trouble(order.trouble, attempt)
        if isinstance(order, pt.JudgeAttempt):
            return await self._judge_attempt(attempt)
        if isinstance(order, pt.ChooseDevices):
            return await self._choose_devices()
        if isinstance(order, pt.EndRanks | pt.Conclude):
            if isinstance(order, pt.EndRanks):
                await self._end_ranks(order.grace_s)
            return await self._conclude()
        raise AssertionError(order)  # `_carry_out` has done it

    # -- the agent -------------------------------------------------------------------------------

    def agent_connected(self, hello: pt.AgentHello, send: SendToAgent) -> None:
        """Connect an agent, unless it is being ended."""
        wanted = self.job.node().wanted_agent
        if wanted is not None and hello.pid == wanted.replaces:
            return
        self._link, self._asked = send, None
        self.agent_pid, self._agent_end_seen = hello.pid, False
        if self._agent_attempt is None:
            self._agent_attempt = hello.attempt
        if hello.workers:
            self.take(pt.GroupStarted(attempt=hello.attempt, workers=hello.workers))
        for ended in hello.exits:
            self._process_ended(ended)
        self.take(pt.AgentListens(pid=hello.pid))

    def from_agent(self, send: SendToAgent, message: pt.FromAgent) -> None:
        """Handle a later message, unless it is from a former agent."""
        if send is not self._link:
            return
        if isinstance(message, pt.RankEnded):
            self._process_ended(message)
            return
        if isinstance(message, pt.PlainStart):
            words = f"ranks are not forked: {message.why}"
            self._log.emit(ev.Noticed(attempt=self.attempt.number, text=words))
            return
        if isinstance(message, pt.AgentAsked):
            self._asked = message
            for worker in message.workers:
                if worker.returncode is not None and message.attempt == self.attempt.number:
                    self.attempt.exited(worker.pid, worker.returncode, boottime_s())
        self.take(message)

    def agent_disconnected(self, send: SendToAgent) -> None:
        """Handle the end of a connection; the guardian reports the end of the process."""
        if send is self._link:
            self._link = None

    def _process_ended(self, ended: pt.RankEnded) -> None:
        group = self._group
        if ended.attempt == self.attempt.number and self.attempt.table.of_pid(ended.pid):
            self.attempt.exited(ended.pid, ended.returncode, ended.at_boottime_s)
        elif group is not None and group.attempt == ended.attempt != self.attempt.number:
            self._early_exits.append(ended)

    def _agent_state(self) -> pt.AgentState:
        asked, attempt = self._asked, self._agent_attempt
        is_torn_down = asked is not None and asked.kind == "torn_down" and self._link is not None
        cause = None
        if self.agent_pid is None:
            status = self._agent_status
            cause = self._defects.call(lambda: failure.never_started(self._folder, status), None)
        return pt.AgentState(
            pid=self.agent_pid,
            listens=self._link is not None,
            attempt=self.attempt.number if attempt is None else attempt,
            question=asked.question if asked is not None and is_torn_down else None,
            status=self._agent_status,
            cause=cause,
        )

    def _answer_agent(self, answer: pt.AnswerAgent) -> None:
        if self._link is None or self._asked is None or answer.question != self._asked.question:
            return
        self._asked = None
        self._link(answer)
        if answer.rendezvous is not None:
            self._agent_attempt = (self._agent_attempt or 0) + 1

    def _refuse_restart(self) -> bool:
        """Answer an agent that asks whether another attempt follows; returns whether one did."""
        question = self._agent_state().question
        if question is not None:
            self._answer_agent(pt.AnswerAgent(question=question, restart=False))
        return question is not None

    def _interrupt_ranks(self) -> None:
        """Interrupt ranks, because torch's agent would send SIGTERM and wait in vain."""
        for record in self.attempt.table.alive():
            number = stopping.ask_to_end(record.reported.frameworks)
            if record.process is not None and number != signal.SIGTERM:
                procs.signal_process(record.process, number)

    # -- exits that no agent reports -------------------------------------------------------------

    def unguarded_processes(self) -> list[ProcessId]:
        """The agent and living ranks whose exits have to be watched without a guardian."""
        alive = self.attempt.table.alive()
        found = [record.process for record in alive if record.process is not None]
        if not self.agent_pid:
            return found
        if self._agent is None or self._agent.pid != self.agent_pid:
            self._agent = procs.identify(self.agent_pid)
        return [self._agent, *found]

    def seen_to_exit(self, process: ProcessId, status: int | None) -> None:
        """Handle the exit of a process that no guardian collects; `status` is None if unknown."""
        if self.attempt.table.of_pid(process.pid) is None or self.agent_pid is None:
            self.process_exited(process.pid, status, boottime_s())
        else:
            self._seen_exits[process.pid] = status  # its agent reports it or dies too

    def process_exited(self, pid: int, status: int | None, at_s: float) -> None:
        """Handle the exit of the agent, or of an orphan whose agent had died."""
        if pid == self.agent_pid:
            self._link = self.agent_pid = None
            self._agent_end_seen, self._agent_status, self._asked = True, status, None
            self._note_dead_ranks(status)
            self.take(pt.AgentExited(pid=pid, agent=self._agent_state()))
        elif self.attempt.exited(pid, status, at_s) and self.agent_pid is None:
            self.take(pt.OrphanExited())

    def _note_dead_ranks(self, agent_status: int | None) -> None:
        """Take in exits that the agent saw but could no longer report."""
        finished = agent_status == 0 and self.job.node().ending_ranks_at_s is None
        for record in self.attempt.table.alive():
            if record.process is not None and not procs.is_alive(record.process):
                known = 0 if finished else self._seen_exits.get(record.process.pid)
                self.attempt.exited(record.process.pid, known, boottime_s())

    # -- evidence and causes ---------------------------------------------------------------------

    def _forget_evidence(self) -> None:
        self._has_evidence = False

    async def _keep_evidence_of_failure(self) -> None:
        """Save evidence once for all ranks that exit in the same failure; returns when on disk."""
        async with self._keeping_evidence:
            if not self._has_evidence:
                self._has_evidence = True
                await self._keep_evidence("failure")

    async def _keep_evidence(self, reason: str) -> str:
        attempt, report = self.attempt, self._around.device_report()
        number, alive = attempt.number, attempt.table.ranks_alive()
        stacks, _ = await asyncio.gather(
            evidence.collect_stacks(self._folder, number, alive),
            evidence.ask_for_records(self._folder, number, alive),
        )
        scene = Scene(
            stacks=stacks,
            snapshot=self._around.snapshot_bytes(),
            ranks={record.rank: record.pid if record.alive else None for record in attempt.table},
            devices=None if report is None else encode(report),
        )
        return str(await evidence_folder.keep(self._folder, number, reason, scene))

    async def _judge_attempt(self, attempt: int) -> pt.AttemptJudged:
        await self.processes.end_leftovers(attempt)  # a command's leftovers may train on
        await until(lambda: not self.attempt.has_unreported_exits, EXITS_KNOWN_S)
        if self.job.is_decided:
            return pt.AttemptJudged(attempt=attempt, cause=None, outcome=None)
        life = self.job.node()
        if life.cause is not None:  # it has failed before it had a rank
            return pt.AttemptJudged(attempt=attempt, cause=life.cause, outcome=life.outcome)
        cause, outcome = self._verdict(attempt)
        return pt.AttemptJudged(attempt=attempt, cause=cause, outcome=outcome)

    def _verdict(self, attempt: int) -> tuple[Cause, AttemptOutcome]:
        outcome, cause = failure.judge(
            *(self._folder, attempt, self.attempt.table, self._lived_s()),
            oom=self.attempt.oom,
            xids_before=self._xids_before,
            sees_all_ranks=self._spec.membership is None,
            offers_memory_snapshots=self._spec.probe and not self._spec.memory_snapshot,
        )
        outcome, cause = self._with_achievements(outcome, cause)
        return cause, outcome

    def judge_ranks(self, attempt: int) -> pt.RanksJudged:
        """How the ranks ended, for the head, which judges those of all nodes together."""
        if attempt != self.attempt.number:
            raise ControlError(f"this node is in attempt {self.attempt.number}")
        cause, outcome = self._verdict(attempt)
        ends = failure.ends_of(self._folder, attempt, self.attempt.table)
        plain = [msgspec.to_builtins(failure.shortened(end)) for end in ends]
        return pt.RanksJudged(ends=plain, cause=cause, outcome=outcome)

    async def _judge_trouble(self, trouble: ev.Trouble, attempt: int) -> pt.AttemptJudged | None:
        found = self.attempt.trouble.found
        folder = await self._keep_evidence(trouble)
        if found is None or self.attempt.number != attempt or self.job.is_decided:
            return None
        table = self.attempt.table
        cause = cause_of(found, folder, self.attempt.checkpoints.last, attempt)
        if isinstance(found, HangVerdict):
            cause = failure.after_hang(cause, table)
            evidence_folder.summarize(cause)
        outcome, cause = self._with_achievements(
            plain_outcome(found, attempt, self._lived_s(), table.most_steps()), cause
        )
        return pt.AttemptJudged(attempt=attempt, trouble=trouble, cause=cause, outcome=outcome)

    def _with_achievements(
        self, outcome: AttemptOutcome, cause: Cause
    ) -> tuple[AttemptOutcome, Cause]:
        attempt = self.attempt
        attempt.look_at_checkpoints(at_once=True)
        outcome, cause = failure.with_achievements(
            outcome,
            cause,
            [record.run_step for record in attempt.table],
            attempt.checkpoints,
            self.job.first_step_after_s,
            sees_all_ranks=self._spec.membership is None,
        )
        return outcome, cause

    # -- the next attempt ------------------------------------------------------------------------

    async def _choose_devices(self) -> pt.DevicesChosen:
        choice = Choice([])
        try:
            choice = await self.devices.choose(
                self._around.device_report,
                self.job.set_aside,
                self._failed_s(),
                self._around.request_device_report,
            )
        except Exception as error:  # the next attempt takes the same devices
            self._defects.report(error)
        await until(lambda: not self.awaits_agent, AGENT_EXIT_S)
        if self.agent_pid is not None:
            await until(self._has_reconnected, RECONNECT_S)
        return pt.DevicesChosen(
            agent=self._agent_state(),
            aside=choice.aside,
            refused=choice.refused,
            notes=list(choice.notes),
        )

    def _has_reconnected(self) -> bool:
        """Whether the agent is connected; without living ranks, it has a question."""
        has_spoken = self._asked is not None or bool(self.attempt.table.alive())
        return self._link is not None and has_spoken

    def _failed_s(self) -> float:
        """CLOCK_BOOTTIME of the attempt's failure, as far as known."""
        exits = [one.at_s for one in self.job.processes if one.exited and one.at_s is not None]
        return max(exits, default=boottime_s())

    async def _end_leftovers(self, order: pt.EndLeftovers) -> pt.LeftoversEnded:
        if order.with_agent:  # its exit is expected
            self._link = self.agent_pid = self._asked = None
        if order.grace_s is not None:
            await self._end_group(order.grace_s)
        await self.processes.end_leftovers(self.attempt.number, with_agent=order.with_agent)
        waited = await self._wait_for_memory() if order.await_memory else Waited(0.0)
        memory, found = None, waited.in_words()
        if found is not None:
            left = bool(waited.left)
            memory = ev.GpuMemoryAwaited(seconds=waited.seconds, found=found, is_problem=left)
        return pt.LeftoversEnded(
            question=order.question, with_agent=order.with_agent, memory=memory
        )

    async def _wait_for_memory(self) -> Waited:
        """Wait until the ended attempt's device memory is free again."""
        return await self.devices.wait_for_memory(
            self._around.device_report,
            self.job.set_aside,
            self.processes.is_living,
            self._skip.is_set,
            self._around.request_device_report,
        )

    # -- ends ------------------------------------------------------------------------------------

    async def _end_group(self, grace_s: float) -> None:
        """End only the ranks, or a command with everything that it started."""
        table = self.attempt.table
        ranks = [record.process for record in table.alive() if record.process is not None]

        def own_ranks() -> list[ProcessId]:
            return alive(ranks)

        everyone = own_ranks if table.launcher is None else self.processes.everything_started
        await stopping.end(everyone, grace_s, self._frameworks())

    def _frameworks(self) -> dict[int, list[str]]:
        """By pid, each living rank's frameworks, which decide how to ask it to end."""
        name = self.attempt.spec.launcher
        launchers = [] if name is None else [name]
        return {
            record.pid: [*record.reported.frameworks, *launchers]
            for record in self.attempt.table.ranks_alive()
            if record.pid is not None
        }

    async def _end_ranks(self, grace_s: float) -> None:
        """End ranks before their children, so that a rank that saves its work still has them."""
        table = self.attempt.table
        await until(lambda: not self.awaits_agent, AGENT_EXIT_S)
        if self._link is not None:
            self._link(pt.TellAgent(order="stopping"))
        self._refuse_restart()
        had_ranks = bool(table.alive())
        await self._end_group(grace_s)
        leftover_s = min(grace_s, LEFTOVER_GRACE_S)
        await stopping.end(self.processes.everything_started, leftover_s)
        if self.agent_pid is not None:
            agent = procs.identify(self.agent_pid)
            await until(lambda: not procs.is_alive(agent), AGENT_EXIT_S if had_ranks else 1.0)
            await stopping.end(lambda: alive([agent]), 0.0)

        def are_known() -> bool:
            """Whether all exits are; on one of several nodes, the head may not have taken them."""
            return not self.agent_pid and all(one.pid in self._exits for one in table.alive())

        await until(are_known, EXITS_KNOWN_S)

    async def _conclude(self) -> pt.NothingLeft:
        """End what is left, and record what is still outstanding."""
        if self._refuse_restart():
            await until(lambda: self.agent_pid is None, AGENT_EXIT_S)
        await self.processes.end_leftovers(self.attempt.number, with_agent=True)
        await until(lambda: not self.attempt.has_unreported_exits, EXITS_KNOWN_S)
        self.attempt.look_at_checkpoints(at_once=True)
        request.withdraw(self._folder)
        if not self.job.is_over:
            self.before_end()
        return pt.NothingLeft()

    # -- users and supervisors -------------------------------------------------------------------

    def stop(self, grace_s: float, by: str | None = None) -> None:
        """End the job: SIGTERM to every rank, SIGKILL after `grace_s`; 0 kills at once.

        Args:
            grace_s: between the two signals.
            by: the user who asked.
        """
        if self._spec.membership is None:
            self.take(pt.StopAsked(grace_s=grace_s, by=by))
        elif self.job.is_over:
            raise ControlError("the job has ended", code="ended")
        else:
            self._end_part(grace_s, by)

    def _end_part(self, grace_s: float, by: str | None) -> None:
        """End the node's part of the job, and decide alone from here on, as on one machine."""
        group: list[pt.Fact] = [] if self._group is None else [self._group]
        missed = [] if self._is_alone else [*group, *self._exits.values()]
        self._is_alone = True
        for fact in missed:
            super().take(fact)
        lives = self.job.processes
        if self.job.ending is not None:
            ending = ev.RanksEnding(attempt=self.job.attempt, at_s=boottime_s())
            self._carry([ending, pt.EndRanks(grace_s=grace_s)])
        elif lives and all(one.exited and one.status == 0 for one in lives):
            self._carry([pt.Conclude()])
        else:
            super().take(pt.StopAsked(grace_s=grace_s, by=by))
        if self._asked is not None:
            super().take(self._asked)

    def restart(self) -> None:
        """Restart all ranks without charging the budget.

        A pending attempt begins at once. Devices that were set aside are used again unless lost.

        Raises:
            ControlError: a restart is not possible.
        """
        if self._spec.membership is not None:
            raise ControlError("the head of the job decides on restarts", "restart the job there")
        back = self.devices.fit_again(self.job.set_aside)
        self.take(pt.RestartAsked(agent=self._agent_state(), devices_back=back))

    async def keep_evidence(self, reason: str) -> None:
        """Save evidence for the head, before any signal.

        Raises:
            ControlError: no rank is alive.
        """
        if not self.attempt.table.ranks_alive():
            raise ControlError("no rank is alive")
        if reason == "failure":
            await self._keep_evidence_of_failure()
        else:
            await self._keep_evidence(reason)

    def leave_queue(self, spec: JobSpec) -> None:
        """Leave the queue: the job has its devices, and an agent is being started."""
        self.attempt.requested = spec
        self.devices.begin_job(spec)

    def remember(self) -> Memory:
        """The part of the memory that is known here."""
        return msgspec.structs.replace(self.attempt.remember(), head_seq=self.head_seq)

    def recover(self, snapshot: NodeSnapshot, memory: Memory) -> None:
        """Restore from an earlier supervisor's snapshot; the log has already restored the state."""
        self._agent = snapshot.agent
        self.head_seq = max(self.head_seq, memory.head_seq)
        self.attempt.recover(snapshot, memory)
        if self.job.is_over:  # the supervisor died between its last snapshot and its exit
            self.ended.set()

    def resume(self) -> None:
        """Continue what an earlier supervisor had begun; call once all exits are known."""
        self._is_alone = self._spec.membership is not None and self.job.phase == "stopping"
        if not self.ended.is_set() and (self._spec.membership is None or self._is_alone):
            super().take(
                pt.SupervisorStarted(agent=self._agent_state(), agent_end_seen=self._agent_end_seen)
            )
