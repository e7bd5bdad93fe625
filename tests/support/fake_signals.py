"""Signals that are requested but never sent."""

from __future__ import annotations

import os

import pytest

from ddptop_runner.base.errors import UsageError
from ddptop_runner.foreign import actions
from ddptop_runner.foreign.actions import SignalOutcome, SignalPlan
from ddptop_runner.foreign.types import ForeignView

SENTENCE = "SIGINT to pid 4711 and its group, 15 s later, SIGTERM, then SIGKILL to what is left"


class Sent:
    """Replaces the function that sends signals, and records calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[tuple[str, str]] = []
        self.sent: list[SignalPlan] = []
        self.refusal: UsageError | None = None
        monkeypatch.setattr(actions, "plan", self._plan)
        monkeypatch.setattr(actions, "send", self._send)

    def _plan(self, view: ForeignView, action: actions.Action) -> SignalPlan:
        self.plans.append((view.job, action))
        if self.refusal is not None:
            raise self.refusal
        return SignalPlan(view.job, action, SENTENCE, (), (), os.geteuid())

    def _send(self, plan: SignalPlan) -> SignalOutcome:
        self.sent.append(plan)
        return SignalOutcome("4 of 4 ranks are gone")
