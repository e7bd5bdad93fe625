"""Ends a foreign job, only by a plan that a person has seen and confirmed.

`plan` decides and says in one sentence what will be done; `send` does just that. Each process is
named by pid and start time, and that is checked right before each signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.model import ProcessId

Action = Literal["stop", "kill"]
STOP_GRACE_S = 15.0


@dataclass(frozen=True)
class SignalPlan:
    """Who is to get which signals, in which order."""

    job: str
    action: Action
    sentence: str
    """What will be done, for the person who is to confirm it."""
    launchers: tuple[ProcessId, ...]
    """Get SIGINT first when stopping, with their process groups."""
    processes: tuple[ProcessId, ...]
    """Every process of the job, launchers included."""
    grace_s: float = STOP_GRACE_S
    """Seconds from SIGINT to SIGTERM."""


@dataclass(frozen=True)
class SignalOutcome:
    """How it went."""

    sentence: str
    """In words, for the person."""
    left: tuple[int, ...] = ()
    """Pids that are still there."""


def plan(
    view: ForeignView, action: Action, *, grace_s: float = STOP_GRACE_S, readonly: bool = False
) -> SignalPlan:
    """What stopping (SIGINT, later SIGTERM, then SIGKILL) or killing (SIGKILL) would do.

    Sends nothing.

    Raises:
        UsageError: when ddptop runs read-only, when the job has ended, or when its processes are
            another user's.
    """
    raise NotImplementedError


def send(confirmed: SignalPlan, *, readonly: bool = False) -> SignalOutcome:
    """Carry out a plan that a person confirmed; blocks until the job is gone, or all was tried.

    Takes up to the plan's grace and some seconds: call it in a thread of its own.

    Raises:
        UsageError: when ddptop runs read-only.
    """
    raise NotImplementedError
