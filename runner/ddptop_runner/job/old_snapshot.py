"""The state of a job in a snapshot of a version that kept no `JobState` in it.

A supervisor of this version can take over such a job while it runs. Times are CLOCK_BOOTTIME.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ddptop_runner.base.clock import utc_from_boottime
from ddptop_runner.base.exit_status import status_of
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.job.state import (
    Budget,
    Ending,
    JobState,
    PendingRestart,
    PendingStop,
    RankLife,
    WantedAgent,
)
from ddptop_runner.model.events import END_STATES
from ddptop_runner.model.snapshot import Cause, NodeSnapshot
from ddptop_runner.model.words import Base


class _Ending(Base, frozen=True):
    state: str
    cause: Cause | None = None
    reason: str = ""
    requeue: bool | None = None


class _Decided(Base, frozen=True, kw_only=True):
    attempt: int
    restart: bool
    end_ranks: bool = False


class _Exit(Base, frozen=True, kw_only=True):
    rank: int
    pid: int
    returncode: int | None
    at_boottime_s: float
    ended_by_us: bool = False


class _Memory(Base, frozen=True, kw_only=True):
    """`memory["group"]`."""

    was_started: bool = True
    attempt_started_s: float | None = None
    first_step_after_s: float | None = None
    exits: list[_Exit] = []
    ending_ranks_at_s: float | None = None
    failed_by_themselves: list[int] = []
    decided: _Decided | None = None
    restart_at_s: float | None = None
    restart_asked: int | None = None
    wanted_agent: WantedAgent | None = None
    ending: _Ending | None = None
    kill_at_s: float | None = None


def state_of(snapshot: NodeSnapshot) -> JobState:
    """As far as the snapshot says."""
    memory = _read(snapshot.memory)
    exits = {one.rank: one for one in memory.exits}
    lives = {
        rank.rank: RankLife(pid=rank.pid)
        if rank.exit_code is None and rank.signal is None
        else RankLife(pid=rank.pid, exited=True, status=status_of(rank.exit_code, rank.signal))
        for rank in snapshot.ranks
        if rank.pid is not None
    }
    lives |= {rank: _life(one) for rank, one in exits.items() if rank != LAUNCHER}
    launcher = None if snapshot.launcher is None else RankLife(pid=snapshot.launcher.pid)
    if LAUNCHER in exits:
        launcher = _life(exits[LAUNCHER])
    return JobState(
        phase=snapshot.state,
        in_queue=not memory.was_started,
        attempt=snapshot.attempt,
        attempt_started_at=snapshot.attempt_started_at,
        attempt_started_s=memory.attempt_started_s,
        first_step_after_s=memory.first_step_after_s,
        ranks=lives,
        launcher=launcher,
        ending_ranks_at_s=memory.ending_ranks_at_s,
        failed_before=memory.failed_by_themselves,
        budget=Budget(used=snapshot.restarts_used),
        policy=snapshot.policy,
        restart=_restart(snapshot, memory),
        stop=PendingStop(kill_at_s=memory.kill_at_s) if snapshot.state == "stopping" else None,
        ending=_ending(memory),
        wanted_agent=memory.wanted_agent,
        cause=snapshot.cause,
        previous_cause=snapshot.previous_cause,
        checkpoint=snapshot.checkpoint,
        ended_at=snapshot.ended_at,
        exit_code=snapshot.exit_code,
        requeue=snapshot.requeue,
    )


def _life(one: _Exit) -> RankLife:
    return RankLife(
        pid=one.pid,
        exited=True,
        status=one.returncode,
        at_s=one.at_boottime_s,
        by_us=one.ended_by_us,
    )


def _restart(snapshot: NodeSnapshot, memory: _Memory) -> PendingRestart | None:
    decided, attempt = memory.decided, snapshot.attempt
    is_decided = decided is not None and decided.attempt == attempt and decided.restart
    was_asked = memory.restart_asked == attempt
    if attempt is None or snapshot.state != "restarting" or not (is_decided or was_asked):
        return None
    at_s = memory.restart_at_s
    return PendingRestart(
        attempt=attempt,
        at=snapshot.ts if at_s is None else utc_from_boottime(at_s),
        at_s=at_s,
        decided=is_decided,
        counted=is_decided,
        sent=was_asked,
        end_ranks=decided is not None and decided.end_ranks,
    )


def _ending(memory: _Memory) -> Ending | None:
    old = memory.ending
    if old is None or old.state not in END_STATES:
        return None
    return Ending(
        state=END_STATES[old.state],
        cause=old.cause,
        reason=old.reason or None,
        requeue=old.requeue,
        end_ranks=memory.decided is not None and memory.decided.end_ranks,
    )


def _read(memory: dict[str, Any]) -> _Memory:
    """Empty where it cannot be understood."""
    try:
        return msgspec.convert(memory.get("group") or {}, _Memory, str_keys=True)
    except msgspec.ValidationError:
        return _Memory()
