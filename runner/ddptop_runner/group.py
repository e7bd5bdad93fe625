"""The life of the worker group: starts, failures, restarts, stop, told as they happen.

What goes wrong is handled by `group_failures`. torch's agent asks before each step
that cannot be taken back (`failing`, `torn_down`, `group_stopped`); its questions are answered
here. When the agent itself dies, ranks go on, the guardian reports their exits, and the next
restart gets a new agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ddptop_runner import failure, procs, sweep
from ddptop_runner.alerts import Finding
from ddptop_runner.attempt_record import Message, Surroundings
from ddptop_runner.clock import boottime_s
from ddptop_runner.diagnose import RankExit
from ddptop_runner.errors import ControlError
from ddptop_runner.group_failures import Ending, FailureHandling
from ddptop_runner.host_usage import HostUsage
from ddptop_runner.model import Cause, RankSample
from ddptop_runner.paths import RunFolder
from ddptop_runner.saves import request
from ddptop_runner.spec import JobSpec
from ddptop_runner.story import Story
from ddptop_runner.sweep import LEFTOVER_GRACE_S, JobProcesses

AGENT_EXIT_S = 5.0
"""How long the agent may take to end once its ranks have."""
RESUMED_GRACE_S = 10.0
"""For a stop whose supervisor died: what was left of its grace is not known."""
STARTED_AFTER_S = 30.0
"""A group that lives this long counts as running even if its script takes no optimizer steps."""


class Group(FailureHandling):
    """One job's worker group over all its attempts."""

    def __init__(
        self,
        folder: RunFolder,
        spec: JobSpec,
        story: Story,
        usage: HostUsage,
        around: Surroundings,
        attempt: int,
    ) -> None:
        super().__init__(folder, spec, story, around, attempt)
        self._processes = JobProcesses(spec.job_id, usage, story)
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self.agent_pid: int | None = None
        self._send_to_agent: Callable[[Message], None] | None = None
        self._concluding = False
        self._changing_agent = False
        self._decided_attempt: int | None = None
        """The attempt whose failure was decided on here, not in answer to an agent."""

    def resume_stop(self) -> None:
        """Go on with a stop that an earlier supervisor had begun."""
        if self.state == "stopping":
            self.ending = Ending("stopped")
            self._stop_requested.set()
            self._around.spawn(self._end_ranks(RESUMED_GRACE_S))

    # -- what happens ----------------------------------------------------------------------------

    def agent_connected(self, message: Message, send: Callable[[Message], None]) -> None:
        """The agent says hello, at its start or after the supervisor came back."""
        self._send_to_agent = send
        self.agent_pid = message["pid"]
        if message["workers"]:
            self._adopt_workers(message)
        for exit_ in message["exits"]:
            self.rank_exited(exit_)
        if self._stop_requested.is_set():
            send({"type": "stopping"})

    def agent_disconnected(self) -> None:
        """Its connection is gone; the guardian tells whether the process is."""
        self._send_to_agent = None

    def from_agent(self, message: Message) -> None:
        """Any message of the agent after its hello."""
        kind = message["type"]
        if kind == "group_started":
            self._group_started(message)
        elif kind == "rank_exited":
            self.rank_exited(message)
        elif kind == "failing":
            self._around.spawn(self._answer_failing(message))
        elif kind == "torn_down":
            self._around.spawn(self._answer_torn_down(message))
        elif kind == "group_stopped":
            self._around.spawn(self._answer_group_stopped(message))

    def process_exited(self, pid: int, returncode: int, at_boottime_s: float) -> None:
        """The guardian collected a process: the agent, or an orphan whose agent had died."""
        if pid == self.agent_pid:
            self._send_to_agent = None
            self.agent_pid = None
            self._around.spawn(self._agent_ended(returncode))
            return
        record = self.table.of_pid(pid)
        if record is not None and record.exit is None:
            self._record_exited(record, returncode, at_boottime_s)
            if self.agent_pid is None:
                self._around.spawn(self._after_orphan_exit())

    # -- failures --------------------------------------------------------------------------------

    async def _answer_failing(self, question: Message) -> None:
        if question["attempt"] == self.attempt:
            self._failed_by_themselves = frozenset(question.get("ranks", ()))
        await self._keep_evidence("failure")
        self._ending_ranks_at_s = boottime_s()
        self._answer(question)

    async def _answer_torn_down(self, question: Message) -> None:
        for worker in question["workers"]:
            if worker["returncode"] is not None:
                self.rank_exited(
                    {**worker, "attempt": question["attempt"], "at_boottime_s": boottime_s()}
                )
        restart = await self._decide_after_failure()
        self._answer(question, restart=restart, restarts_left=self.restarts_left)

    async def _answer_group_stopped(self, question: Message) -> None:
        await self._processes.end_leftovers(self.attempt)
        self._answer(question)

    def _answer(self, question: Message, **fields: Any) -> None:
        if self._send_to_agent is not None:
            self._send_to_agent({"answer": question["question"], **fields})

    # -- hangs and losses ------------------------------------------------------------------------

    def check_progress(self, now_s: float) -> None:
        """Once a tick: note that the group runs, and give the hang verdict."""
        lived_s = now_s - self.attempt_started_s
        if self.state == "starting" and self.table.alive() and lived_s > STARTED_AFTER_S:
            self.state = "running"
        looked = self.hangs.look(self.table.progress(now_s), now_s)
        self.table.note_quiet(looked)
        if self.state not in ("starting", "running") or self._stop_requested.is_set():
            return
        if looked.verdict is not None:
            self._around.spawn(self._end_hang(looked.verdict))
        elif looked.suspicion is not None and not self._suspected:
            self._suspected = True
            self._story.tell("hang_suspected", looked.suspicion.message, attempt=self.attempt)
        elif looked.suspicion is None:
            self._suspected = False

    def check_losses(self, ranks: Sequence[RankSample], now_s: float) -> list[Finding]:
        """Once a tick: findings on the losses; acts where `--on-nan` asks for it."""
        bad, findings = self.losses.look(ranks, now_s)
        if bad is not None and self.state == "running" and not self._stop_requested.is_set():
            self.state = "hung" if self._spec.on_nan == "restart" else "stopping"
            self._around.spawn(self._end_bad_loss(bad))
        return findings

    # -- what a person asks for ------------------------------------------------------------------

    def request_stop(self, grace_s: float) -> None:
        """End the job: SIGTERM to every rank, after `grace_s` SIGKILL; 0 kills at once."""
        if self.ended.is_set():
            raise ControlError("the job has ended")
        how = "killing the job" if grace_s <= 0 else f"stopping the job ({grace_s:g} s to end)"
        self._story.tell("stopping", how, attempt=self.attempt)
        self.state = "stopping"
        self.ending = Ending("stopped")
        self._stop_requested.set()
        self._around.publish()
        self._around.spawn(self._end_ranks(grace_s))

    def cannot_start(self, reason: str) -> None:
        """End a queued job that nothing can start any more."""
        cause = Cause(kind="launch", summary=f"The job was never started: {reason}.")
        self.ending = Ending("failed", cause, reason)
        self._around.spawn(self.conclude())

    def request_restart(self) -> None:
        """Restart all ranks; it costs nothing of the budget."""
        if self.state not in ("starting", "running", "hung"):
            raise ControlError(f"the job is {self.state}", "wait until it runs")
        if not self.table.alive():
            raise ControlError("the ranks are not started yet", "try again in a moment")
        self._story.tell(
            "group_restart",
            f"restarting all ranks as attempt {self.attempt + 1}, as asked",
            attempt=self.attempt,
        )
        self.state = "restarting"
        self._around.publish()
        self._restart_ranks()

    def _restart_ranks(self) -> None:
        self._ending_ranks_at_s = boottime_s()
        if self._send_to_agent is not None and not self._new_agent_wanted:
            self._send_to_agent({"type": "restart_group", "restarts_left": self.restarts_left})
        else:
            self._around.spawn(self._restart_without_agent())

    async def _restart_without_agent(self) -> None:
        self._changing_agent = True  # the end of the old one is no news
        await self._processes.end_leftovers(self.attempt, with_agent=True)
        self._changing_agent = self._new_agent_wanted = False
        self._around.start_agent(self.attempt + 1, self.restarts_left)

    async def _end_ranks(self, grace_s: float) -> None:
        """Ranks first, by themselves, so that one which saves its work still has its children."""
        self._ending_ranks_at_s = boottime_s()
        await self._agent_known(AGENT_EXIT_S)
        if self._send_to_agent is not None:
            self._send_to_agent({"type": "stopping"})
        ranks = [record.process for record in self.table.alive() if record.process is not None]
        await sweep.end(ranks, grace_s)
        await sweep.end(self._processes.everything_started(), min(grace_s, LEFTOVER_GRACE_S))
        if self.agent_pid is not None:
            agent = procs.identify(self.agent_pid)
            deadline_s = boottime_s() + (AGENT_EXIT_S if ranks else 1.0)
            while procs.is_alive(agent) and boottime_s() < deadline_s:
                await asyncio.sleep(0.05)
            await sweep.end([agent], 0.0)
        else:
            await self.conclude()

    # -- the agent's end -------------------------------------------------------------------------

    async def _agent_ended(self, returncode: int) -> None:
        for record in self.table.alive():  # an exit that the agent saw but could not tell any more
            if record.process is not None and not procs.is_alive(record.process):
                self._record_exited(record, None if returncode else 0, boottime_s())
        if self._changing_agent:
            return
        if self._new_agent_wanted and self.ending is None:
            await self._restart_without_agent()
            return
        alive = self.table.alive()
        if alive and self.ending is None:
            self._story.tell(
                "alert",
                f"the agent ended ({RankExit(0, 0, returncode, 0).in_words()}); "
                f"{len(alive)} ranks go on without it",
                attempt=self.attempt,
            )
            return
        if self.ending is None and not self.table.exits():
            cause = failure.never_started(self._folder, returncode)
            self.ending = Ending("failed", cause, "no rank could be started", requeue=False)
        if self.ending is None and any(exit_.failed for exit_ in self.table.exits()):
            await self._continue_without_agent()
            return
        await self.conclude()

    async def _after_orphan_exit(self) -> None:
        """A rank ended whose agent is dead: the group follows it, as torch would have it."""
        failed = any(exit_.failed for exit_ in self.table.exits())
        if failed and self._ending_ranks_at_s is None and self.ending is None:
            await self._keep_evidence("failure")
            self._ending_ranks_at_s = boottime_s()
            await self._processes.end_leftovers(self.attempt)
        if self.table.alive() or self.ended.is_set():
            return
        if failed and self.ending is None:
            await self._continue_without_agent()
        else:
            await self.conclude()

    async def _continue_without_agent(self) -> None:
        if self._concluding or self._decided_attempt == self.attempt:
            return
        self._decided_attempt = self.attempt
        if await self._decide_after_failure() or self._new_agent_wanted:
            await self._restart_without_agent()
        else:
            await self.conclude()

    async def conclude(self) -> None:
        """The group is over: end what is left and settle the job's state. Happens once."""
        if self._concluding:
            return
        self._concluding = True
        await self._processes.end_leftovers(self.attempt, with_agent=True)
        self.tell_checkpoint(at_once=True)
        request.withdraw(self._folder)
        ending = self.ending or Ending("finished")
        self.cause = ending.cause
        if ending.state == "finished":
            self.exit_code = 0
            self._story.tell(
                "finished",
                f"finished: all ranks exited with 0 in {self.life}",
                attempt=self.attempt,
            )
        elif ending.state == "stopped":
            self._story.tell("stopped", f"stopped in {self.life}", attempt=self.attempt)
        elif ending.cause is not None:
            self.exit_code = ending.cause.exit_code or 1
            self._story.tell(
                "failed",
                f"failed in {self.life}: {ending.reason}",
                attempt=self.attempt,
                rank=ending.cause.rank,
                exit_code=ending.cause.exit_code,
                signal=ending.cause.signal,
                evidence=ending.cause.evidence,
            )
        self.ending = ending
        self.state = ending.state
        self.ended.set()
