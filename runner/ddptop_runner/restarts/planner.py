"""Keeps the history that the restart policy decides on, and prepares the next attempt."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ddptop_runner.model import GpuSample
from ddptop_runner.restarts import policy
from ddptop_runner.spec import Device, JobSpec


@dataclass(frozen=True)
class NextAttempt:
    """On what the next attempt runs."""

    spec: JobSpec
    """The job's, with the devices and the number of ranks of the next attempt."""
    refused: str | None = None
    """Why there can be no next attempt, in words."""
    notes: tuple[str, ...] = ()
    """What a person should know about it."""


class RestartPlanner:
    """One job's restarts.

    Args:
        spec: the job, as it was asked for.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._outcomes: list[policy.AttemptOutcome] = []
        self.used = 0
        """Restarts of the budget used since it was last filled."""
        self.set_aside: list[Device] = []
        """Devices that attempts go on without."""

    @property
    def left(self) -> int:
        """What the budget still has."""
        return max(0, self._spec.max_restarts - self.used)

    def failed(self, outcome: policy.AttemptOutcome) -> None:
        """An attempt ended badly."""
        self._outcomes.append(outcome)

    def decide(self) -> policy.Decision:
        """What to do after the last failure; a restart is taken off the budget."""
        decision = policy.decide(self._outcomes, self.left, random.random(), self.used)
        if decision.restart:
            self.used += 1
        return decision

    async def prepare(self, devices: Callable[[], Sequence[GpuSample] | None]) -> NextAttempt:
        """Wait until the job's devices have their memory back, and look at their health.

        Args:
            devices: the job's devices as last sampled; None where nothing samples them.
        """
        del devices
        return NextAttempt(self._spec)

    def remember(self) -> dict[str, Any]:
        """What the planner of a supervisor that is started again has to know."""
        return {}

    def recall(self, memory: dict[str, Any]) -> None:
        """Go on with what `remember` gave; anything malformed is left out."""
