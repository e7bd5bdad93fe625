"""What follows from a fact, given the state of the job: events to record, and effects. Pure.

No IO, no clock, no waiting: the caller says what time it is, records the events in order, and then
carries out the effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ddptop_runner.base.errors import ControlError
from ddptop_runner.job.effects import (
    Effect,
    EndRanks,
    FinishAttempt,
    FollowAgent,
    ReplaceAgent,
    RestartRanks,
    SkipWait,
)
from ddptop_runner.job.state import Ending, JobState
from ddptop_runner.model import events as ev
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import HAS_ENDED

RESUMED_GRACE_S = 10.0
"""For a stop whose supervisor died, where it is not known what was left of its grace."""

Decision: TypeAlias = "list[ev.JobEvent | Effect]"


def stop(state: JobState, grace_s: float, now_s: float) -> Decision:
    """Someone stops the job; 0 kills at once.

    Raises:
        ControlError: when it has ended.
    """
    if state.is_over:
        raise ControlError(HAS_ENDED)
    asked = ev.StopRequested(attempt=state.attempt, grace_s=grace_s, kill_at_s=now_s + grace_s)
    return [asked, EndRanks(grace_s=grace_s)]


def restart(
    state: JobState, now_s: float, *, used: int, limit: int, back: Sequence[Device] = ()
) -> Decision:
    """Someone restarts all ranks, which costs nothing; a pending attempt begins at once.

    Args:
        state: the job, for which `require_restartable` holds.
        now_s: CLOCK_BOOTTIME.
        used: of the budget.
        limit: the whole budget.
        back: devices that were set aside and are used again.
    """
    if is_waiting(state):
        pending = state.restart
        used = max(0, used - (pending is not None and pending.counted))
        hurried = ev.RestartHurried(
            attempt=state.attempt, at_s=now_s, used=used, limit=limit, devices_back=list(back)
        )
        return [hurried, SkipWait()]
    asked = ev.RestartRequested(
        attempt=state.attempt, used=used, limit=limit, devices_back=list(back)
    )
    return [asked, RestartRanks()]


def is_waiting(state: JobState) -> bool:
    """Whether the next attempt is decided on and waits for its time."""
    pending = state.restart
    return state.phase == "restarting" and pending is not None and pending.at_s is not None


def require_restartable(state: JobState, *, has_ranks: bool) -> None:
    """Whether `restart` can be asked for.

    Raises:
        ControlError: when it cannot.
    """
    if is_waiting(state):
        return
    if state.phase not in ("starting", "running", "hung"):
        raise ControlError(f"the job is {state.phase}", "wait until it is running")
    if not has_ranks:
        raise ControlError("the ranks have not started yet", "try again in a moment")


def rank_exited(
    state: JobState, attempt: int, rank: int, pid: int | None, status: int | None, at_s: float
) -> list[ev.RankExited]:
    """The event of a rank that ended at that time (CLOCK_BOOTTIME); none of another attempt."""
    if state.is_over or attempt != state.attempt:
        return []
    by_us = was_ended(state, rank, at_s)
    return [
        ev.RankExited(attempt=attempt, rank=rank, pid=pid, status=status, at_s=at_s, by_us=by_us)
    ]


def was_ended(state: JobState, rank: int, at_s: float) -> bool:
    """Whether ddptop or torch's agent had begun to end the rank by then.

    The agent may find a rank dead before the time of its death is known.
    """
    since_s = state.ending_ranks_at_s
    return since_s is not None and at_s >= since_s and rank not in state.failed_before


def resume(
    state: JobState, now_s: float, *, agent_pid: int | None, agent_end_seen: bool = False
) -> Decision:
    """A new supervisor goes on with what the last one had begun.

    Args:
        state: as restored.
        now_s: CLOCK_BOOTTIME.
        agent_pid: of the agent, if there is one.
        agent_end_seen: whether its end is followed already.
    """
    if state.is_over or (state.in_queue and state.phase != "stopping"):
        return []
    if state.phase == "stopping":
        return _resume_stop(state, now_s)
    wanted, pending = state.wanted_agent, state.restart
    if wanted is not None and agent_pid in (None, wanted.replaces):
        return [ReplaceAgent(wanted=wanted)]
    if pending is not None and pending.end_ranks:
        return [FinishAttempt(again=True)]
    if state.ending is not None and state.ending.end_ranks:
        return [FinishAttempt(again=False)]
    if agent_pid is None and not agent_end_seen:
        return [FollowAgent()]
    if state.phase == "hung":  # the evidence was still being taken
        return [ev.TroubleDropped(attempt=state.attempt)]
    return []


def _resume_stop(state: JobState, now_s: float) -> Decision:
    left_s = RESUMED_GRACE_S
    if state.stop is not None and state.stop.kill_at_s is not None:
        left_s = max(0.0, state.stop.kill_at_s - now_s)
    ends = EndRanks(grace_s=left_s)
    if state.ending is not None:
        return [ends]
    judged = ev.EndDecided(  # its loss went bad, and that was still to be judged
        attempt=state.attempt,
        state="failed",
        cause=state.cause,
        reason="the loss was not finite (--on-nan stop)",
        requeue=False,
    )
    return [judged, ends]


def end(state: JobState, *, is_command: bool) -> ev.JobEnded:
    """The ranks are gone, and none follows."""
    ending = state.ending or Ending(state="finished")
    return ev.JobEnded(
        attempt=state.attempt,
        state=ending.state,
        in_queue=state.in_queue,
        is_command=is_command,
        cause=ending.cause,
        reason=ending.reason,
        requeue=ending.requeue,
    )
