"""The life of the worker group: starts, failures, restarts, stop, and their events.

What goes wrong is handled by `group_failures`. torch's agent asks before each step
that cannot be taken back (`failing`, `torn_down`, `group_stopped`); its questions are answered
here. When the agent itself dies, ranks go on, the guardian reports their exits, and the next
restart gets a new agent. A new supervisor continues what the last one had started (`resume`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Any

from ddptop_runner.base.clock import boottime_s, utc_from_boottime
from ddptop_runner.host import procs, stopping
from ddptop_runner.job import decide, effects, sweep
from ddptop_runner.job import save_request as request
from ddptop_runner.job.attempt_record import Message
from ddptop_runner.job.effects import Effect
from ddptop_runner.job.group_alone import SETTLE_S, UNSEEN_S, GroupAlone
from ddptop_runner.job.group_failures import BAD_END_GRACE_S
from ddptop_runner.job.met_ranks import EXITS_TOLD_S
from ddptop_runner.job.sweep import LEFTOVER_GRACE_S
from ddptop_runner.judge.hangs.types import SeenPause
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Pause, RankSample

AGENT_EXIT_S = 5.0
"""How long the agent may take to end once its ranks have."""
STARTED_AFTER_S = 30.0
"""A group that lives this long counts as running even if its script takes no optimizer steps."""


class Group(GroupAlone):
    """One job's worker group over all its attempts."""

    # -- what happens ----------------------------------------------------------------------------

    def agent_connected(self, message: Message, send: Callable[[Message], None]) -> None:
        """The agent says hello, at its start or after the supervisor came back."""
        if self._changing_agent:
            return  # it is being ended: the next one is asked for once it has
        self._send_to_agent = send
        self.agent_pid = message["pid"]
        self._agent_end_seen = False
        if self.job.wanted_agent is not None:
            self._log.emit(ev.AgentConnected(attempt=self.attempt, pid=message["pid"]))
        is_new = message["attempt"] != self.attempt or not self.table.has_begun
        if message["workers"] and is_new:
            self._group_started(message)  # while no supervisor was there to be told
        elif message["workers"]:
            self._adopt_workers(message)
        for exit_ in message["exits"]:
            self.rank_exited(exit_)
        if self._stop_requested.is_set():
            send({"type": "stopping"})
        elif self._restart_sent:  # it may not have heard it
            send({"type": "restart_group", "restarts_left": self.restarts_left})

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
        elif kind == "ended" and "question" in message:
            self._answer(message)
        elif self._changing_agent:
            pass  # ranks and agent are being ended, and what it asks is decided
        elif kind == "failing":
            self._around.spawn(self._answer_failing(message))
        elif kind == "torn_down":
            self._around.spawn(self._answer_torn_down(message))
        elif kind == "group_stopped":
            self._around.spawn(self._answer_group_stopped(message))

    # -- failures --------------------------------------------------------------------------------

    async def _answer_failing(self, question: Message) -> None:
        failed = question.get("ranks", ()) if question["attempt"] == self.attempt else ()
        try:
            await self._keep_evidence_of_failure()
        except Exception as error:  # the agent waits for its answer, whatever happens here
            self._around.defects.report(error)
        self._log.emit(ev.RanksEnding(attempt=self.attempt, at_s=boottime_s(), failed=list(failed)))
        self._interrupt_those_that_trap_sigterm()
        self._around.publish()
        self._answer(question)

    async def _answer_torn_down(self, question: Message) -> None:
        for worker in question["workers"]:
            if worker["returncode"] is not None:
                self.rank_exited(
                    {**worker, "attempt": question["attempt"], "at_boottime_s": boottime_s()}
                )
        if self._spec.is_command:  # whom it started may go on without it
            await self._processes.end_leftovers(self.attempt)
            await self._met_ranks_told()
        restart = await self._decide_after_failure()
        self._answer(question, restart=restart, restarts_left=self.restarts_left)

    async def _answer_group_stopped(self, question: Message) -> None:
        if self._spec.is_command:
            await self._end_tree(BAD_END_GRACE_S)
        await self._processes.end_leftovers(self.attempt)
        if not self._new_agent_wanted and self.job.ending is None:
            await self._wait_for_memory()
            if self._stop_requested.is_set():
                return  # it is being ended, and starts nothing more
        self._answer(question)

    def _answer(self, question: Message, **fields: Any) -> None:
        if self._send_to_agent is not None:
            self._send_to_agent({"answer": question["question"], **fields})

    # -- hangs and losses ------------------------------------------------------------------------

    def check_progress(self, now_s: float) -> None:
        """Once a tick: note that the group runs, and give the hang verdict."""
        if self._looked_at_s is not None and now_s - self._looked_at_s > UNSEEN_S:
            self._settled_at_s = now_s + SETTLE_S
        self._looked_at_s = now_s
        lived_s = now_s - self.attempt_started_s
        if self.state == "starting" and self.table.alive() and lived_s > STARTED_AFTER_S:
            self._log.emit(ev.RunningAssumed(attempt=self.attempt))
        hung = self.state == "hung"
        looked = self.hangs.look(self.table.progress(now_s), now_s, hung=hung)
        self.table.note_quiet(looked)
        self._note_pause(looked.pause, now_s)
        if self.state not in ("starting", "running") or self._stop_requested.is_set():
            return
        if now_s < self._settled_at_s:
            return
        if looked.verdict is not None:
            self._around.spawn(self._end_hang(looked.verdict))
        elif looked.suspicion is not None and not self._suspected:
            self._suspected = True
            self._log.emit(
                ev.HangSuspected(
                    attempt=self.attempt,
                    found=looked.suspicion.message,
                    ranks=list(looked.suspicion.ranks),
                )
            )
        elif looked.suspicion is None:
            self._suspected = False

    def _note_pause(self, seen: SeenPause | None, now_s: float) -> None:
        """Keep it as viewers are shown it; its beginning does not move."""
        if seen is None or self.state not in ("starting", "running", "hung"):
            self.pause = None
            return
        since = utc_from_boottime(now_s - seen.stepless_s)
        self.pause = Pause(
            state=seen.state,
            since=since if self.pause is None else self.pause.since,
            reason=seen.reason,
            ranks=list(seen.ranks),
        )

    def check_losses(self, ranks: Sequence[RankSample]) -> None:
        """Once a tick: acts on losses gone bad where `--on-nan` asks for it."""
        bad = self.losses.look(ranks)
        if bad is not None and self.state == "running" and not self._stop_requested.is_set():
            stops = self._spec.on_nan != "restart"
            self._log.emit(ev.TroubleFound(attempt=self.attempt, stops=stops))
            self._around.spawn(self._end_bad_loss(bad))

    # -- what a person asks for ------------------------------------------------------------------

    def request_stop(self, grace_s: float) -> None:
        """End the job: SIGTERM to every rank, after `grace_s` SIGKILL; 0 kills at once."""
        self._carry_out(decide.stop(self.job, grace_s, boottime_s()))

    def request_restart(self) -> None:
        """Restart all ranks; it costs nothing of the budget.

        An attempt that is waited for begins at once. Devices that were set aside and are healthy
        again are taken back.
        """
        decide.require_restartable(self.job, has_ranks=bool(self.table.alive()))
        if self._hurry.is_set():
            return
        used, limit = self.job.budget.used, self._spec.max_restarts
        self.planner.asked()
        back = self.planner.take_back()
        self._carry_out(decide.restart(self.job, boottime_s(), used=used, limit=limit, back=back))

    def _carry_out(self, decision: decide.Decision) -> None:
        """Record what was decided, and do what it asks for."""
        for one in decision:
            if isinstance(one, ev.EventBase):
                self._log.emit(one)
        self.planner.used = self.job.budget.used
        self._around.publish()
        for one in decision:
            if not isinstance(one, ev.EventBase):
                self._do(one)

    def _do(self, effect: Effect) -> None:
        spawn = self._around.spawn
        if isinstance(effect, effects.EndRanks):
            self._stop_requested.set()
            spawn(self._end_ranks(effect.grace_s))
        elif isinstance(effect, effects.RestartRanks):
            if self.planner.needs_new_agent:
                self._run_on(self.planner.spec)
                self._new_agent_wanted = True
            self._restart_ranks()
        elif isinstance(effect, effects.SkipWait):
            self._hurry.set()
        elif isinstance(effect, effects.ReplaceAgent):
            spawn(self._restart_without_agent(effect.wanted))
        elif isinstance(effect, effects.FinishAttempt):
            spawn(self._resume_bad_end(restart=effect.again))
        else:
            spawn(self._agent_ended(None))

    def _restart_ranks(self) -> None:
        self._log.emit(ev.RanksEnding(attempt=self.attempt, at_s=boottime_s()))
        self._interrupt_those_that_trap_sigterm()
        if self._send_to_agent is not None and not self._new_agent_wanted:
            self._log.emit(ev.RestartSent(attempt=self.attempt))
            self._around.publish()
            self._send_to_agent({"type": "restart_group", "restarts_left": self.restarts_left})
        else:
            self._around.spawn(self._restart_without_agent())

    def _interrupt_those_that_trap_sigterm(self) -> None:
        """Else torch's agent, which sends SIGTERM, would wait for them in vain."""
        for record in [] if self._spec.is_command else self.table.ranks_alive():
            number = stopping.ask_to_end(record.reported.frameworks)
            if record.process is not None and number != signal.SIGTERM:
                procs.signal_process(record.process, number)

    async def _end_tree(self, grace_s: float) -> None:
        """End a command and all that it started."""
        await stopping.end(self._processes.everything_started, grace_s, self._frameworks())

    def _frameworks(self) -> dict[int, list[str]]:
        """By pid of each living rank: what tells how it is asked to end."""
        return {
            record.pid: [*record.reported.frameworks, *filter(None, [self.launcher_name])]
            for record in self.table.ranks_alive()
            if record.pid is not None
        }

    async def _end_ranks(self, grace_s: float) -> None:
        """Ranks first, by themselves, so that one which saves its work still has its children."""
        self._log.emit(ev.RanksEnding(attempt=self.attempt, at_s=boottime_s()))
        await self._agent_known(AGENT_EXIT_S)
        if self._send_to_agent is not None:
            self._send_to_agent({"type": "stopping"})
        ranks = [record.process for record in self.table.alive() if record.process is not None]
        self._in_grace = True
        if self._spec.is_command:
            await self._end_tree(grace_s)
        else:
            await stopping.end(lambda: sweep.alive(ranks), grace_s, self._frameworks())
        self._in_grace = False
        leftover_s = min(grace_s, LEFTOVER_GRACE_S)
        await stopping.end(self._processes.everything_started, leftover_s)
        if self.agent_pid is not None:
            agent = procs.identify(self.agent_pid)
            deadline_s = boottime_s() + (AGENT_EXIT_S if ranks else 1.0)
            while procs.is_alive(agent) and boottime_s() < deadline_s:
                await asyncio.sleep(0.05)
            await stopping.end(lambda: sweep.alive([agent]), 0.0)
        else:
            deadline_s = boottime_s() + EXITS_TOLD_S
            while self.table.alive() and boottime_s() < deadline_s:
                await asyncio.sleep(0.02)
            await self.conclude()

    # -- the end ---------------------------------------------------------------------------------

    async def conclude(self) -> None:
        """The group is over: end what is left and settle the job's state. Happens once."""
        if self._concluding:
            return
        self._concluding = True
        await self._processes.end_leftovers(self.attempt, with_agent=True)
        await self._met_ranks_told()
        self.tell_checkpoint(at_once=True)
        request.withdraw(self._folder)
        self.before_end()
        self._log.emit(decide.end(self.job, is_command=self._spec.is_command))
        self.ended.set()
