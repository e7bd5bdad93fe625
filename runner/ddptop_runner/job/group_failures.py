"""What the group does when something goes wrong: evidence, cause, verdict, and the way on.

Decisions are pure: `failure.judge`, `restarts.policy`, `hangs.verdict`. Evidence is taken before
any signal is sent.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from pathlib import PurePath
from typing import Any

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host.oom import OomWatch
from ddptop_runner.job import evidence, failure
from ddptop_runner.job.attempt_record import Surroundings
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.met_ranks import MetRanks
from ddptop_runner.job.restart_facts import with_facts
from ddptop_runner.judge.hangs.records import hang_cause
from ddptop_runner.judge.hangs.types import HangVerdict
from ddptop_runner.judge.losses import BadLoss
from ddptop_runner.judge.restarts.planner import RestartPlanner
from ddptop_runner.judge.restarts.policy import AttemptOutcome
from ddptop_runner.model import events as ev
from ddptop_runner.model.run_step import at_step
from ddptop_runner.model.snapshot import Cause, NodeSnapshot, encode
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import JobState as Phase
from ddptop_runner.store import evidence_folder
from ddptop_runner.store.evidence_folder import RankFiles, Scene

BAD_END_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL, for a group that hangs or trains on NaN."""


class FailureHandling(MetRanks):
    """The part of a Group that handles failures, hangs and losses gone bad."""

    def __init__(
        self, folder: RunFolder, spec: JobSpec, log: EventLog, around: Surroundings
    ) -> None:
        super().__init__(folder, spec, log, around)
        self.planner = RestartPlanner(spec)
        self._oom = OomWatch()
        self._oom.begin_attempt()
        self._xids_before: dict[int, list[int]] = {}
        self._stop_requested = asyncio.Event()
        self._hurry = asyncio.Event()
        """A person asked for the next attempt while it was waited for."""
        self._new_agent_wanted = False
        """The next attempt has other devices, so it needs another agent."""

    @abstractmethod
    def _restart_ranks(self) -> None:
        """End all ranks and start the next attempt."""

    @abstractmethod
    async def _end_ranks(self, grace_s: float) -> None:
        """End all ranks and the job."""

    @property
    def restart_at_s(self) -> float | None:
        """CLOCK_BOOTTIME of the next attempt, while it is waited for."""
        return None if self.job.restart is None else self.job.restart.at_s

    @property
    def restarts_used(self) -> int:
        """Of the budget, since it was last filled."""
        return self.planner.used

    @property
    def restarts_left(self) -> int:
        """What the budget still has."""
        return self.planner.left

    def remember(self) -> dict[str, Any]:
        """What a supervisor that is started again needs besides the snapshot's other fields."""
        return {
            "restarts": self.planner.remember(),
            "hangs": self.hangs.remember(),
            "saves": self.checkpoints.remember(),
            "oom": self._oom.remember(),
            "group": msgspec.to_builtins(self._remembered(), str_keys=True),
            **self._log.memory(),
        }

    def recover(self, snapshot: NodeSnapshot) -> None:
        """Go on from the snapshot of a supervisor that died."""
        self.planner.recall(snapshot.memory.get("restarts") or {})
        self.planner.used = self.job.budget.used
        if self.planner.set_aside:
            self._run_on(self.planner.spec)
        super().recover(snapshot)
        self._oom.recall(snapshot.memory.get("oom") or {})

    def leave_queue(self, spec: JobSpec) -> None:
        """The job has its devices; an agent is being started."""
        super().leave_queue(spec)
        self.planner.begin_job(spec)

    def _run_on(self, spec: JobSpec) -> None:
        """The next attempt runs so."""
        self._spec = spec
        self._around.change_spec(spec)

    def _begin_attempt(self) -> None:
        super()._begin_attempt()
        self.planner.begin_attempt()
        self._hurry.clear()
        self._oom.begin_attempt()
        report = self._around.device_report()
        self._xids_before = failure.xids_of([] if report is None else report.gpus)

    async def _keep_evidence(self, reason: str) -> str:
        report, alive = self._around.device_report(), self.table.ranks_alive()
        stacks, _ = await asyncio.gather(
            evidence.collect_stacks(self._folder, self.attempt, alive),
            evidence.ask_for_records(self._folder, self.attempt, alive),
        )
        scene = Scene(
            stacks=stacks,
            snapshot=self._around.snapshot_bytes(),
            ranks=[
                RankFiles(
                    record.rank,
                    record.pid if record.alive else None,
                    str(evidence.flight_record(self._folder, self.attempt, record.rank)),
                )
                for record in self.table
            ],
            kernel=self._oom.log.lines(),
            memory=self._oom.groups(),
            devices=None if report is None else encode(report),
        )
        return str(await evidence_folder.keep(self._folder, self.attempt, reason, scene))

    # -- a rank failed ---------------------------------------------------------------------------

    async def _decide_after_failure(self) -> bool:
        """`_judge_and_decide`; a defect in it must not leave a job without ranks and an end."""
        try:
            return await self._judge_and_decide()
        except Exception as error:
            self._around.defects.report(error)
        return self._restart_anyway()

    def _restart_anyway(self, *, end_ranks: bool = False) -> bool:
        """Whether there is a next attempt, where a defect kept anybody from deciding it."""
        if self._stop_requested.is_set() or self.job.ending is not None:
            return False
        if self.job.is_decided:
            return True
        if self.planner.left > 0:
            self.planner.used += 1
            self._log.emit(
                ev.RestartDecided(
                    attempt=self.attempt,
                    used=self.planner.used,
                    limit=self._spec.max_restarts,
                    end_ranks=end_ranks,
                )
            )
            return True
        cause = self.job.cause or Cause(
            kind="unknown", summary="The attempt failed; see its evidence."
        )
        self._end_as_failed(cause, "no restarts left", end_ranks=end_ranks)
        return False

    def _end_as_failed(
        self,
        cause: Cause | None,
        reason: str,
        *,
        requeue: bool | None = None,
        end_ranks: bool = False,
    ) -> None:
        """The job ends once its ranks have."""
        self._log.emit(
            ev.EndDecided(
                attempt=self.attempt,
                state="failed",
                cause=cause,
                reason=reason,
                requeue=requeue,
                end_ranks=end_ranks,
            )
        )

    async def _judge_and_decide(self) -> bool:
        """Tell the failure, and either wait for the restart's time or set the job's end.

        Asked again of the same attempt, as an agent does whose supervisor died, it goes on with
        what was decided.
        """
        if self.job.is_decided:
            return self.job.ending is None and await self._wait_for_restart()
        lived_s = boottime_s() - self.attempt_started_s
        outcome, cause = failure.judge(
            *(self._folder, self.attempt, self.table, lived_s),
            oom=self._oom,
            xids_before=self._xids_before,
        )
        if self._stop_requested.is_set() or self.job.ending is not None:
            return False
        return await self._restart_or_end(outcome, cause)

    async def _restart_or_end(
        self, outcome: AttemptOutcome, cause: Cause, *, end_ranks: bool = False
    ) -> bool:
        """Tell what happened, decide, and wait until the next attempt may begin.

        Args:
            outcome: the attempt's, for the policy.
            cause: what happened.
            end_ranks: whether ranks live that have to be ended.

        Returns:
            Whether there is a next attempt. False: the job ends, or `_new_agent_wanted` is set.
        """
        cause = self._with_work_lost(cause, outcome.lived_s)
        judged = ev.HangJudged if outcome.hung else ev.FailureJudged
        self._log.emit(judged(attempt=self.attempt, cause=cause))
        last = self.checkpoints.last
        self.planner.failed(
            with_facts(outcome, self.table, last, self.job.first_step_after_s, cause.kind)
        )
        decision = self.planner.decide()
        if not decision.restart:
            self._end_as_failed(
                cause, decision.reason, requeue=decision.requeue, end_ranks=end_ranks
            )
            self._around.publish()
            return False
        self._log.emit(
            ev.RestartDecided(
                attempt=self.attempt,
                used=self.restarts_used,
                limit=self._spec.max_restarts,
                delay_s=decision.delay_s,
                at_s=boottime_s() + decision.delay_s,
                reason=decision.reason,
                end_ranks=end_ranks,
            )
        )
        self._around.publish()
        return await self._wait_for_restart()

    async def _wait_for_restart(self) -> bool:
        """Wait for the time that was decided on; False where there is no restart after all."""
        left_s = 0.0 if self.restart_at_s is None else self.restart_at_s - boottime_s()
        if await self._stopped_within(max(0.0, left_s)):
            return False
        return await self._prepare_devices()

    async def _stopped_within(self, delay_s: float) -> bool:
        events = (self._stop_requested, self._hurry)
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self._stop_requested.is_set()

    async def _prepare_devices(self) -> bool:
        """Wait for devices that are fit; False where there are none, or others than before."""
        following = await self.planner.prepare(self._around.device_report)
        if self._stop_requested.is_set():
            return False
        for note in following.notes:
            self._log.emit(ev.Noticed(attempt=self.attempt, text=note))
        if following.refused is not None:
            cause = self.job.cause
            if cause is not None:
                summary = f"{following.refused}. {cause.summary}"
                cause = msgspec.structs.replace(cause, kind="gpu", summary=summary)
            self._end_as_failed(cause, following.refused, requeue=True)
            return False
        if self.planner.needs_new_agent:
            self._run_on(following.spec)
            self._new_agent_wanted = True
            return False
        return True

    # -- the group hangs, or trains on nonsense ---------------------------------------------------

    async def _end_hang(self, found: HangVerdict) -> None:
        summary = f"The job hung: {found.message}."
        await self._end_in_any_case(self._judge_hang(found), Cause(kind="hang", summary=summary))

    async def _end_bad_loss(self, bad: BadLoss) -> None:
        cause = Cause(kind="nan", rank=bad.rank, summary=bad.in_words())
        await self._end_in_any_case(self._judge_bad_loss(bad), cause)

    async def _end_in_any_case(self, work: Coroutine[Any, Any, None], cause: Cause) -> None:
        """`work`; a defect in it must not leave ranks that hang, or that train on nonsense."""
        try:
            await work
        except Exception as error:
            self._around.defects.report(error)
            judged = ev.HangJudged if cause.kind == "hang" else ev.FailureJudged
            if self.job.cause is None:
                self._log.emit(judged(attempt=self.attempt, cause=cause))
            if cause.kind == "nan" and self._spec.on_nan == "stop":
                self._end_as_failed(
                    self.job.cause, "the loss was not finite (--on-nan stop)", requeue=False
                )
            await self._end_bad_ranks(again=self._restart_anyway(end_ranks=True))

    async def _judge_hang(self, found: HangVerdict) -> None:
        attempt = self.attempt
        self._log.emit(ev.TroubleFound(attempt=attempt, ranks=list(found.ranks)))
        for rank in found.ranks:
            self.table[rank].hung = True
        self._around.publish()
        folder = await self._keep_evidence("hang")
        if not self._goes_on(attempt, "hung"):
            return
        stands_at = {record.rank: record.reported.stands_at for record in self.table}
        cause = failure.after_hang(hang_cause(found, folder, stands_at), self.table)
        evidence_folder.summarise(cause)
        await self._end_attempt(self._outcome(hung=True), cause)

    def _goes_on(self, attempt: int, state: Phase) -> bool:
        """Whether nothing else has decided on the attempt while its evidence was taken.

        A rank may have ended meanwhile, or a person stopped or restarted the job.
        """
        over = self.job.is_decided or self._stop_requested.is_set()
        return (self.attempt, self.state) == (attempt, state) and not over

    async def _judge_bad_loss(self, bad: BadLoss) -> None:
        attempt, state = self.attempt, self.state
        folder = await self._keep_evidence("nan")
        if not self._goes_on(attempt, state):
            return
        cause = Cause(
            kind="nan",
            rank=bad.rank,
            summary=" ".join(filter(None, [bad.in_words(), self._doubt_checkpoint(bad)])),
            evidence=folder,
        )
        if self._spec.on_nan == "stop":
            cause = self._with_work_lost(cause, boottime_s() - self.attempt_started_s)
            self._log.emit(ev.FailureJudged(attempt=self.attempt, cause=cause))
            self._end_as_failed(cause, "the loss was not finite (--on-nan stop)", requeue=False)
            self._stop_requested.set()
            await self._end_ranks(BAD_END_GRACE_S)
            return
        await self._end_attempt(self._outcome(bad_loss=True), cause)

    def _with_work_lost(self, cause: Cause, lived_s: float) -> Cause:
        self.tell_checkpoint(at_once=True)
        lost = self.checkpoints.work_lost(self.attempt, self.table.most_steps(), lived_s)
        summary = " ".join(filter(None, [cause.summary, lost.in_words()]))
        told = msgspec.structs.replace(
            cause, summary=summary, work_lost_steps=lost.steps, work_lost_s=lost.seconds
        )
        evidence_folder.keep_cause(told)
        return told

    def _doubt_checkpoint(self, bad: BadLoss) -> str:
        """Says so where the last checkpoint was saved after the loss had gone bad."""
        last = self.checkpoints.last
        if last is None or last.attempt != self.attempt or None in (last.step, bad.step):
            return ""
        if (last.step or 0) < (bad.step or 0):
            return ""
        name = PurePath(last.path).name
        return f"{name}, saved{at_step(last)}, is newer than that step and may also be affected."

    def _outcome(self, *, hung: bool = False, bad_loss: bool = False) -> AttemptOutcome:
        lived_s = boottime_s() - self.attempt_started_s
        return AttemptOutcome(
            self.attempt,
            lived_s,
            self.table.most_steps(),
            None,
            None,
            None,
            hung=hung,
            bad_loss=bad_loss,
        )

    async def _end_attempt(self, outcome: AttemptOutcome, cause: Cause) -> None:
        """End ranks that live: for the next attempt, or for good."""
        attempt = self.attempt
        again = await self._restart_or_end(outcome, cause, end_ranks=True)
        if self.attempt == attempt:  # else its ranks ended by themselves, and others were started
            await self._end_bad_ranks(again=again)

    async def _end_bad_ranks(self, *, again: bool) -> None:
        if again or self._new_agent_wanted:
            self._restart_ranks()
        elif not self._stop_requested.is_set():
            self._stop_requested.set()
            await self._end_ranks(BAD_END_GRACE_S)
