"""The invariants hold whatever happens to a job on several nodes, in any order."""

from __future__ import annotations

from tests.runner.machine_nodes import World, drive

LINKS = (World.link_breaks, World.link_returns, World.head_dies, World.node_tells)


def test_interleavings_of_several_nodes():
    for seed in range(100):
        try:
            drive(seed)
        except AssertionError as error:
            raise AssertionError(f"benchmarks/state_machine.py --nodes --seed {seed}") from error


def test_lost_link_or_head_restarts_nothing():
    for seed in range(10):
        world = drive(seed, LINKS, settles_first=True)
        kinds = [row.data["kind"] for row in world.rows.kept if row.data is not None]
        assert kinds.count("nodes_chosen") == 1, f"drive({seed}, LINKS, settles_first=True)"
        assert world.job.budget.used == 0 and world.job.phase == "stopped"
