"""The invariants hold whatever happens to a job, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.machine import Machine, drive


class Interleavings(RuleBasedStateMachine):
    """Found by hypothesis, which shortens failing cases."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(0)

    @invariant()
    def holds(self) -> None:
        self.machine.check()

    def teardown(self) -> None:
        self.machine.settle()


def _rule_of(step: Callable[[Machine], None]) -> object:
    @rule(chance=st.integers(0, 15))
    def happen(self: Interleavings, chance: int) -> None:
        self.machine.random = random.Random(chance)
        step(self.machine)

    happen.__name__ = step.__name__
    return happen


for _step in set(Machine.STEPS):
    setattr(Interleavings, _step.__name__, _rule_of(_step))

TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=100, stateful_step_count=20, deadline=None, derandomize=True
)


@pytest.mark.parametrize("first", [0, 500, 1000, 1500])
def test_two_thousand_interleavings(first):
    for seed in range(first, first + 500):
        try:
            drive(seed)
        except AssertionError as error:
            raise AssertionError(f"python benchmarks/state_machine.py --seed {seed}") from error
