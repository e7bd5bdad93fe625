"""What a decision asks for besides recording events: done by the group of `node`'s supervisor."""

from __future__ import annotations

from typing import TypeAlias

from ddptop_runner.job.state import WantedAgent
from ddptop_runner.model.words import Base


class EndRanks(Base, frozen=True, kw_only=True):
    """End all ranks and then the job: SIGTERM, and SIGKILL after the grace period."""

    grace_s: float


class RestartRanks(Base, frozen=True, kw_only=True):
    """End all ranks and start the next attempt."""


class SkipWait(Base, frozen=True, kw_only=True):
    """The next attempt does not wait for its time any more."""


class ReplaceAgent(Base, frozen=True, kw_only=True):
    """End the old agent and start the one that was requested."""

    wanted: WantedAgent


class FinishAttempt(Base, frozen=True, kw_only=True):
    """End the ranks of an attempt that was judged while they lived."""

    again: bool
    """Whether another one follows, once its time has come."""


class FollowAgent(Base, frozen=True, kw_only=True):
    """The agent ended while no supervisor was there to see it."""


Effect: TypeAlias = EndRanks | RestartRanks | SkipWait | ReplaceAgent | FinishAttempt | FollowAgent
