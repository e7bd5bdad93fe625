"""Takes the facts of a job, records what is decided, and has the orders carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.job.decide import Decision, decide
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.state import JobState
from ddptop_runner.job.trouble import TroubleWatch, plain_cause
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.node.alerts import LastResort

POLL_S = 0.02


class Decisions:
    """Takes the facts of one job, records what is decided, and carries out the orders.

    The same order is never carried out twice at a time; its result is the next fact.

    Args:
        log: records events, and holds the state of the job.
        defects: catches errors that should never be raised.
        spawn: runs work concurrently with the loop.
        trouble: holds the trouble for which an attempt is ended.
    """

    def __init__(
        self,
        log: EventLog,
        defects: LastResort,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        trouble: TroubleWatch,
    ) -> None:
        self._log, self._defects, self._spawn, self._trouble = log, defects, spawn, trouble
        self._under_way: list[tuple[pt.Order, int]] = []
        """The current orders, with their attempts."""
        self._skip = asyncio.Event()
        """Ends each wait for the next attempt."""
        self._wait: asyncio.Event | None = None
        """Ends the latest wait for the next attempt when another replaces it."""
        self.ended = asyncio.Event()

    @property
    def job(self) -> JobState:
        """The state of the job."""
        return self._log.state

    @property
    def _spec(self) -> JobSpec:
        """The job, as requested."""
        raise NotImplementedError

    def _lived_s(self) -> float:
        """How long the attempt has lived."""
        since_s = self.job.attempt_started_s
        return 0.0 if since_s is None else max(0.0, boottime_s() - since_s)

    def take(self, fact: pt.Fact) -> None:
        """Decide on a fact: record its events, then carry out its orders.

        Raises:
            ControlError: a request cannot be carried out.
        """
        self._carry(decide(self.job, fact, boottime_s(), self._spec))

    def _carry(self, decision: Decision) -> None:
        phase = self.job.phase
        for event in decision:
            if isinstance(event, ev.EventBase):
                self._log.emit(event)
                self._follow(event)
        attempt = self.job.attempt or 0
        orders = [
            one
            for one in decision
            if isinstance(one, pt.Message) and (one, attempt) not in self._under_way
        ]
        self._recorded(decision, has_changed=bool(orders) or self.job.phase != phase)
        for order in orders:
            self._carry_out(order)

    def _follow(self, event: ev.JobEvent) -> None:
        """Called with each recorded event."""
        if isinstance(event, ev.JobEnded):
            self.ended.set()

    def _recorded(self, decision: Decision, *, has_changed: bool) -> None:
        """Called before the orders of a decision, with whether viewers should see it at once."""
        raise NotImplementedError

    async def _fact_of(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        """Carry out an order of an attempt; returns the resulting fact."""
        raise NotImplementedError

    def _carry_out(self, order: pt.Order) -> None:
        """Carry out an order, by default concurrently with the loop."""
        if isinstance(order, pt.SkipWait):
            self._skip.set()
            return
        work = (order, self.job.attempt or 0)
        self._under_way.append(work)
        self._spawn(self._do(*work))

    async def _do(self, order: pt.Order, attempt: int) -> None:
        try:
            if isinstance(order, pt.WaitForRestart):
                fact: pt.Fact | None = await self._wait_for_restart(order, attempt)
            else:
                fact = await self._fact_of(order, attempt)
        except Exception as error:  # a bug must not leave a job without an end
            self._defects.report(error)
            fact = self._fact_in_any_case(order, attempt)
        finally:
            self._under_way.remove((order, attempt))
        if fact is None:
            return
        try:
            self.take(fact)
        except Exception as error:
            self._defects.report(error)
            if isinstance(fact, pt.AttemptJudged):  # decided only by the budget
                self.take(replace(fact, outcome=None))

    def _fact_in_any_case(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        """The fact that follows an order that failed because of a bug in ddptop."""
        if isinstance(order, pt.JudgeAttempt):  # the ranks are ended regardless
            found = None if order.trouble is None else self._trouble.found
            cause = None if found is None else plain_cause(found)
            return pt.AttemptJudged(
                attempt=attempt, trouble=order.trouble, cause=cause, outcome=None
            )
        if isinstance(order, pt.EndRanks | pt.Conclude):
            return pt.NothingLeft()
        if isinstance(order, pt.KeepEvidence):
            return evidence_kept(order, attempt)
        if isinstance(order, pt.EndLeftovers):
            return pt.LeftoversEnded(question=order.question, with_agent=order.with_agent)
        if isinstance(order, pt.AskCheckpoint):
            return pt.CheckpointWaited(attempt=attempt)
        if isinstance(order, pt.BeginOn):
            return pt.NodeRefused(node=order.node, attempt=order.attempt, error="internal error")
        return None

    async def _wait_for_restart(
        self, order: pt.WaitForRestart, attempt: int
    ) -> pt.RestartDue | None:
        """Wait for the next attempt; None if a later wait replaces this one."""
        if self._wait is not None:
            self._wait.set()
        replaced = self._wait = asyncio.Event()
        left_s = 0.0 if order.at_s is None else max(0.0, order.at_s - boottime_s())
        waits = [asyncio.ensure_future(event.wait()) for event in (self._skip, replaced)]
        await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if replaced.is_set():
            return None
        return pt.RestartDue(attempt=attempt)


def evidence_kept(order: pt.KeepEvidence, attempt: int) -> pt.EvidenceKept:
    """The evidence is on disk, or cannot be kept."""
    return pt.EvidenceKept(
        node=order.node, attempt=attempt, question=order.question, ranks=order.ranks
    )


async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; returns whether it holds."""
    deadline_s = boottime_s() + timeout_s
    while not condition() and boottime_s() < deadline_s:
        await asyncio.sleep(POLL_S)
    return condition()
