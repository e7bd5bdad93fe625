"""The invariants hold whatever happens to a job on several nodes, in any order."""

from __future__ import annotations

from tests.support.machine_nodes import World, drive

LINKS = (
    *(World.link_breaks, World.links_return, World.link_is_made, World.head_dies),
    *(World.break_is_reported, World.node_tells, World.order_is_done, World.time_passes),
)


def test_interleavings_of_several_nodes():
    for seed in range(500):
        try:
            drive(seed)
        except AssertionError as error:
            raise AssertionError(f"benchmarks/state_machine.py --nodes --seed {seed}") from error


def test_lost_link_or_head_restarts_nothing():
    for seed in range(50):
        world = drive(seed, LINKS, settles_first=True)
        kinds = [row.data["kind"] for row in world.rows.kept if row.data is not None]
        assert kinds.count("nodes_chosen") == 1, f"drive({seed}, LINKS, settles_first=True)"
        assert world.state.budget.used == 0 and world.state.phase == "stopped"
