"""Carries out the orders of a job's decisions; the resulting facts lead to the next decisions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.job.decide import Decision
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.trouble import TroubleWatch, plain_cause
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.node.last_resort import LastResort

POLL_S = 0.02


class Orders:
    """The orders of one job; the same order is never carried out twice at a time.

    Args:
        log: records the events of decisions.
        defects: catches errors that should never be raised.
        spawn: runs work concurrently with the loop.
        trouble: holds the trouble for which an attempt is ended.
        follow: called with each recorded event.
        take: receives the fact that results from an order.
        fact_of: carries out an order of an attempt and returns the resulting fact.
        otherwise: returns the fact for an order that failed because of a bug in ddptop.
    """

    def __init__(
        self,
        log: EventLog,
        defects: LastResort,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        trouble: TroubleWatch,
        *,
        follow: Callable[[ev.JobEvent], None],
        take: Callable[[pt.Fact], None],
        fact_of: Callable[[pt.Order, int], Awaitable[pt.Fact | None]],
        otherwise: Callable[[pt.Order, int], pt.Fact | None],
    ) -> None:
        self._log, self._defects, self._spawn, self._trouble = log, defects, spawn, trouble
        self._follow, self._take = follow, take
        self._fact_of, self._otherwise = fact_of, otherwise
        self._under_way: list[tuple[pt.Order, int]] = []
        """The current orders, with their attempts."""
        self.skip = asyncio.Event()
        """Ends each wait for the next attempt."""
        self._wait: asyncio.Event | None = None
        """Ends the latest wait for the next attempt when another replaces it."""

    @property
    def under_way(self) -> list[pt.Order]:
        """The orders being carried out."""
        return [order for order, _ in self._under_way]

    def record(self, decision: Decision) -> list[pt.Order]:
        """Record the events of a decision; returns its orders."""
        for event in decision:
            if isinstance(event, ev.EventBase):
                self._log.emit(event)
                self._follow(event)
        attempt = self._log.state.attempt or 0
        return [
            one
            for one in decision
            if isinstance(one, pt.Message) and (one, attempt) not in self._under_way
        ]

    def begin(self, order: pt.Order) -> None:
        """Carry out an order concurrently with the loop."""
        if isinstance(order, pt.SkipWait):
            self.skip.set()
            return
        work = (order, self._log.state.attempt or 0)
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
            self._take(fact)
        except Exception as error:
            self._defects.report(error)
            if isinstance(fact, pt.AttemptJudged | pt.TroubleJudged):  # decided only by the budget
                self._take(replace(fact, outcome=None))

    def _fact_in_any_case(self, order: pt.Order, attempt: int) -> pt.Fact | None:
        if isinstance(order, pt.JudgeAttempt):
            return judged(order, attempt, None, None)
        if isinstance(order, pt.JudgeTrouble):  # the ranks are ended regardless
            found = self._trouble.found
            if found is None:
                return None
            return trouble_judged(order, attempt, plain_cause(found), None)
        if isinstance(order, pt.EndRanks):
            return pt.RanksEnded()
        if isinstance(order, pt.Conclude):
            return pt.NothingLeft()
        return self._otherwise(order, attempt)

    async def _wait_for_restart(
        self, order: pt.WaitForRestart, attempt: int
    ) -> pt.RestartDue | None:
        """Wait for the next attempt; None if a later wait replaces this one."""
        if self._wait is not None:
            self._wait.set()
        replaced = self._wait = asyncio.Event()
        left_s = 0.0 if order.at_s is None else max(0.0, order.at_s - boottime_s())
        waits = [asyncio.ensure_future(event.wait()) for event in (self.skip, replaced)]
        await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if replaced.is_set():
            return None
        return pt.RestartDue(attempt=attempt, question=order.question)


def judged(
    order: pt.JudgeAttempt, attempt: int, cause: Cause | None, outcome: AttemptOutcome | None
) -> pt.AttemptJudged:
    """The verdict on an attempt."""
    return pt.AttemptJudged(
        attempt=attempt,
        question=order.question,
        cause=cause,
        outcome=outcome,
        jitter=random.random(),
    )


def trouble_judged(
    order: pt.JudgeTrouble, attempt: int, cause: Cause, outcome: AttemptOutcome | None
) -> pt.TroubleJudged:
    """The verdict on ranks that hang or train on invalid losses."""
    return pt.TroubleJudged(
        attempt=attempt, reason=order.reason, cause=cause, outcome=outcome, jitter=random.random()
    )


async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; returns whether it holds."""
    deadline_s = boottime_s() + timeout_s
    while not condition() and boottime_s() < deadline_s:
        await asyncio.sleep(POLL_S)
    return condition()
