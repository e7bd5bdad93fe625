"""What a restarted supervisor needs to know about its group, besides the snapshot's fields.

It is stored in the snapshot (`memory["group"]`). Times are CLOCK_BOOTTIME: a supervisor continues
from another one's memory within one boot only, and the wall clock may be set in between.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.words import Base, JobState


class Ending(Base, frozen=True):
    """Why the job ends, once its ranks have exited."""

    state: JobState
    cause: Cause | None = None
    reason: str = ""
    requeue: bool | None = None


class Decided(Base, frozen=True, kw_only=True):
    """The decision after a failed attempt; it is neither reported nor counted twice."""

    attempt: int
    restart: bool
    end_ranks: bool = False
    """Its ranks live and have to be ended (a hang, a loss gone bad)."""


class WantedAgent(Base, frozen=True, kw_only=True):
    """An agent that was requested and has not started yet."""

    attempt: int
    restarts_left: int
    replaces: int | None = None
    """Pid of the agent that makes room for it; None where there was none."""


class KnownExit(Base, frozen=True, kw_only=True):
    """How a rank ended, and when."""

    rank: int
    pid: int
    returncode: int | None
    at_boottime_s: float
    ended_by_us: bool = False

    def as_exit(self) -> RankExit:
        """As the rank's record keeps it."""
        return RankExit(
            self.rank,
            self.pid,
            self.returncode,
            self.at_boottime_s,
            ended_by_us=self.ended_by_us,
        )


class RanksMet(Base, frozen=True, kw_only=True):
    """What a command's ranks said of their numbers."""

    numbered: list[int] = []
    """Pids of ranks that know no rank themselves."""
    told_size: int | None = None
    """The world size, as the ranks say."""
    former_steps: int | None = None
    """The most steps of any process that is no rank any more."""


class GroupMemory(Base, frozen=True, kw_only=True):
    """One group, as its next supervisor finds it."""

    was_started: bool = True
    attempt_started_s: float | None = None
    first_step_after_s: float | None = None
    exits: list[KnownExit] = []
    last_step_s: dict[int, float] = {}
    """By rank."""
    ending_ranks_at_s: float | None = None
    failed_by_themselves: list[int] = []
    suspected: bool = False
    decided: Decided | None = None
    restart_at_s: float | None = None
    restart_asked: int | None = None
    """The attempt that the agent was told to end and to start anew."""
    wanted_agent: WantedAgent | None = None
    ending: Ending | None = None
    kill_at_s: float | None = None
    """When a stop sends SIGKILL."""
    ranks_met: RanksMet | None = None
    """None of a job that is no command."""


def read(memory: dict[str, Any]) -> GroupMemory:
    """What an earlier supervisor's snapshot remembers; empty where that cannot be understood."""
    try:
        return msgspec.convert(memory.get("group") or {}, GroupMemory, str_keys=True)
    except msgspec.ValidationError:
        return GroupMemory()


def write(memory: GroupMemory) -> dict[str, Any]:
    """JSON-serialisable."""
    plain: dict[str, Any] = msgspec.to_builtins(memory, str_keys=True)
    return plain
