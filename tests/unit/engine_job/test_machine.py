"""The invariants hold whatever happens to a job, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.machine import Machine, drive
from tests.support.machine_nodes import World
from tests.support.machine_nodes import drive as drive_nodes


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


LINKS = (
    *(World.link_breaks, World.links_return, World.link_is_made, World.head_dies),
    *(World.break_is_reported, World.node_tells, World.order_is_done, World.time_passes),
)


def test_interleavings_of_several_nodes():
    for seed in range(500):
        try:
            drive_nodes(seed)
        except AssertionError as error:
            raise AssertionError(f"benchmarks/state_machine.py --nodes --seed {seed}") from error


def test_lost_link_or_head_restarts_nothing():
    for seed in range(50):
        world = drive_nodes(seed, LINKS, settles_first=True)
        kinds = [row.data["kind"] for row in world.rows.kept if row.data is not None]
        assert kinds.count("nodes_chosen") == 1, f"drive_nodes({seed}, LINKS, settles_first=True)"
        assert world.state.budget.used == 0 and world.state.phase == "stopped"
