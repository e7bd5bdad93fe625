"""The group without its agent, or after the death of its supervisor.

Ranks whose agent is dead continue; their exits come from the guardian, or are observed from
outside, and the next restart gets a new agent. A restarted supervisor continues what the last one
had started (`resume`): a stop, a wait, a restart.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job import decide, failure
from ddptop_runner.job.attempt_record import Message, Surroundings
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.group_failures import FailureHandling
from ddptop_runner.job.state import WantedAgent
from ddptop_runner.job.sweep import JobProcesses
from ddptop_runner.judge.restarts.policy import AttemptOutcome
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import NodeSnapshot, ProcessId
from ddptop_runner.model.spec import JobSpec

RECONNECT_S = 3.0
"""An agent that lives is connected again by then."""
UNSEEN_S = 3.0
"""A look that comes so late means that this process was stopped, or the machine was."""
SETTLE_S = 6.0
"""After that, and at the start, no hang is found before every rank can have been heard again."""


class GroupAlone(FailureHandling):
    """The part of a Group that does without an agent, and outlives supervisors."""

    def __init__(
        self,
        folder: RunFolder,
        spec: JobSpec,
        log: EventLog,
        usage: HostUsage,
        around: Surroundings,
    ) -> None:
        super().__init__(folder, spec, log, around)
        self._processes = JobProcesses(spec.job_id, usage, log)
        self.ended = asyncio.Event()
        self.agent_pid: int | None = None
        self._agent: ProcessId | None = None
        """The process of `agent_pid`, as it was first seen."""
        self._send_to_agent: Callable[[Message], None] | None = None
        self._concluding = False
        self._changing_agent = False
        self._new_agent_begins = False
        """An agent was asked for, and none of its ranks has been started yet."""
        self._agent_end_seen = False
        self._ending_orphans = False
        self._continued_attempt: int | None = None
        """The attempt that was gone on from here, not in answer to an agent."""
        self._in_grace = False
        """Ranks were asked to end, and have the time that a stop gives them."""
        self._seen_exits: dict[int, int | None] = {}
        """Of ranks whose agent is to tell: return codes by pid, as seen from outside."""
        self._looked_at_s: float | None = None
        self._settled_at_s = boottime_s() + SETTLE_S

    @abstractmethod
    def _carry_out(self, decision: decide.Decision) -> None:
        """Record what was decided, and do what it asks for."""

    @abstractmethod
    async def conclude(self) -> None:
        """The group is over: settle the job's state."""

    def _begin_attempt(self) -> None:
        super()._begin_attempt()
        self._ending_orphans = False
        self._new_agent_begins = False
        self._seen_exits = {}

    # -- over the death of a supervisor ----------------------------------------------------------

    @property
    def _restart_sent(self) -> bool:
        """Whether the agent was told to end its ranks and to start the next attempt."""
        return self.job.restart is not None and self.job.restart.sent

    def recover(self, snapshot: NodeSnapshot) -> None:
        """Go on from the snapshot of a supervisor that died."""
        super().recover(snapshot)
        self._agent = snapshot.agent
        if self.job.is_over:  # it died between its last snapshot and its last word
            self.ended.set()

    def resume(self) -> None:
        """Go on with what an earlier supervisor had begun. Call once all exits are told."""
        if not self.ended.is_set():
            self._carry_out(
                decide.resume(
                    self.job,
                    boottime_s(),
                    agent_pid=self.agent_pid,
                    agent_end_seen=self._agent_end_seen,
                )
            )

    async def _resume_bad_end(self, *, restart: bool) -> None:
        again = restart and await self._wait_for_restart()
        if not again or not self._restart_sent:  # else told as the agent connects
            deadline_s = boottime_s() + RECONNECT_S
            while self.agent_pid and self._send_to_agent is None and boottime_s() < deadline_s:
                await asyncio.sleep(0.05)
            await self._end_bad_ranks(again=again)

    # -- ends that no agent tells of -------------------------------------------------------------

    def minded_processes(self) -> list[ProcessId]:
        """The agent and the living ranks: whoever collects no others has to see these end."""
        found = [record.process for record in self.table.alive() if record.process is not None]
        if not self.agent_pid:
            return found
        if self._agent is None or self._agent.pid != self.agent_pid:
            self._agent = procs.identify(self.agent_pid)
        return [self._agent, *found]

    def seen_to_exit(self, process: ProcessId, returncode: int | None) -> None:
        """A process that no guardian collects has ended; None: nobody knows how."""
        record = self.table.of_pid(process.pid)
        if record is None or self.agent_pid is None:
            self.process_exited(process.pid, returncode, boottime_s())
        else:
            self._seen_exits[process.pid] = returncode  # its agent tells; or it dies as well

    def process_exited(self, pid: int, returncode: int | None, at_boottime_s: float) -> None:
        """A process ended: the agent, or an orphan whose agent had died."""
        if pid == self.agent_pid:
            self._send_to_agent = None
            self.agent_pid = None
            self._agent_end_seen = True
            self._around.spawn(self._agent_ended(returncode))
            return
        record = self.table.of_pid(pid)
        if record is not None and record.exit is None:
            self._record_exited(record, returncode, at_boottime_s)
            if self.agent_pid is None:
                self._around.spawn(self._after_orphan_exit())

    async def _agent_ended(self, returncode: int | None) -> None:
        for record in self.table.alive():  # an exit that the agent saw but could not tell any more
            if record.process is not None and not procs.is_alive(record.process):
                seen = self._seen_exits.get(record.process.pid)
                known = 0 if returncode == 0 else seen
                self._record_exited(record, known, boottime_s())
        if self._changing_agent:
            return
        going_down = self._new_agent_wanted or self._restart_sent
        if (
            going_down and self.job.ending is None
        ):  # a restart was under way: no failure, no rank goes on
            await self._restart_without_agent()
            return
        alive = self.table.alive()
        if alive and self._in_grace:
            return  # they may be saving; whoever ends them goes on
        if alive and self.job.ending is None:
            self._log.emit(
                ev.AgentLost(
                    attempt=self.attempt,
                    status=returncode,
                    ranks=len(alive),
                    is_command=self.table.launcher is not None,
                )
            )
            if self.table.exits():
                await self._after_orphan_exit()
            return
        never_began = self._new_agent_begins or not self.table.exits()
        if self.job.ending is None and never_began and await self._try_again_to_start(returncode):
            return
        if self.job.ending is None and any(exit_.failed for exit_ in self.table.exits()):
            await self._continue_without_agent()
            return
        await self.conclude()

    async def _try_again_to_start(self, returncode: int | None) -> bool:
        """After an agent that ended before it had started a rank; False where the job is to end.

        One that ended by itself will do so again; one that was killed says nothing of the job, and
        another one is tried within the budget.
        """
        cause = failure.never_started(self._folder, returncode)
        if returncode is not None and returncode >= 0:
            self._end_as_failed(cause, "no rank could be started", requeue=False)
            return False
        if self._new_agent_begins:
            self._log.emit(ev.AttemptOpened(attempt=self.attempt + 1, at_s=boottime_s()))
            self._begin_attempt()
        lived_s = boottime_s() - self.attempt_started_s
        outcome = AttemptOutcome(self.attempt, lived_s, 0, None, cause.signal, None, kind="signal")
        again = await self._restart_or_end(outcome, cause)
        if again or self._new_agent_wanted:
            await self._restart_without_agent()
        return again or self._new_agent_wanted

    async def _after_orphan_exit(self) -> None:
        """A rank ended whose agent is dead: the group follows it, as torch would have it."""
        if self._changing_agent or self._new_agent_begins:
            return
        failed = any(exit_.failed for exit_ in self.table.exits())
        over = self.table.launcher is None or not self.table.launcher.alive
        others = self.table.ranks_alive() if over else []
        if failed and not self._ending_orphans and self.job.ending is None and others:
            self._ending_orphans = True
            await self._keep_evidence_of_failure()
            self._log.emit(ev.RanksEnding(attempt=self.attempt, at_s=boottime_s()))
            await self._processes.end_leftovers(self.attempt)
        if self.table.alive() or self.ended.is_set():
            return
        if failed and self.job.ending is None:
            await self._continue_without_agent()
        else:
            await self.conclude()

    async def _continue_without_agent(self) -> None:
        if self._concluding or self._continued_attempt == self.attempt:
            return
        self._continued_attempt = self.attempt
        if await self._decide_after_failure() or self._new_agent_wanted:
            await self._restart_without_agent()
        else:
            await self.conclude()

    async def _wait_for_memory(self) -> None:
        """Until the devices have the memory of the ended attempt back."""

        def skip() -> bool:
            return self._stop_requested.is_set() or self._hurry.is_set()

        waited = await self.planner.wait_for_memory(
            self._around.device_report, self._processes.is_living, skip
        )
        if (found := waited.in_words()) is not None:
            self._log.emit(
                ev.GpuMemoryAwaited(
                    attempt=self.attempt,
                    seconds=waited.seconds,
                    found=found,
                    is_problem=bool(waited.left) or waited.silent,
                )
            )

    async def _restart_without_agent(self, wanted: WantedAgent | None = None) -> None:
        if wanted is None:
            wanted = WantedAgent(
                attempt=self.attempt + 1, restarts_left=self.restarts_left, replaces=self.agent_pid
            )
        self._log.emit(
            ev.AgentRequested(
                attempt=self.attempt,
                next_attempt=wanted.attempt,
                restarts_left=wanted.restarts_left,
                replaces=wanted.replaces,
            )
        )
        self._around.publish()
        self._changing_agent = True  # the end of the old one is no news
        self.agent_pid = self._send_to_agent = None
        await self._processes.end_leftovers(self.attempt, with_agent=True)
        await self._wait_for_memory()
        self._changing_agent = self._new_agent_wanted = False
        if self._stop_requested.is_set():
            await self.conclude()
            return
        self._new_agent_begins = True
        self._around.start_agent(wanted.attempt, wanted.restarts_left)
