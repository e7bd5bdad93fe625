"""Replicas with different weights are named, and nothing that could have another reason."""

from __future__ import annotations

import pytest

from ddptop_runner.judge.training.replicas import Replicas, diverged
from ddptop_runner.model.snapshot import RankSample, WeightHashes

GROUPS = ["conv1", "layer3.bn1.weight"]


def sample(rank: int, step: int, *groups: int, **more: object) -> RankSample:
    fields = {"layout": 7, "world": 3, "began": 0, **more}
    return RankSample(
        rank=rank, local_rank=rank, host="h", step=step + 3, steps_per_s=20.0,
        run_step=step + 3 + int(str(fields["began"])),
        ddp_world_size=int(str(fields["world"])),
        weight_hashes=WeightHashes(step, int(str(fields["layout"])), list(groups)),
        weight_groups=GROUPS if rank == 0 else [],
    )  # fmt: skip


def seen(*looks: list[RankSample]) -> list[tuple[str, tuple[int, ...]]]:
    replicas = Replicas()
    for ranks in looks:
        replicas.add(ranks)
    return [(one.message.partition(",")[0], one.ranks) for one in diverged(replicas, looks[-1])]


def equal(step: int) -> list[RankSample]:
    return [sample(rank, step, 1, 2) for rank in range(3)]


def odd(step: int, **more: object) -> list[RankSample]:
    return [sample(rank, step, 1, 9 if rank == 2 else 2, **more) for rank in range(3)]


def test_the_rank_with_other_weights_is_named_until_they_are_equal_again() -> None:
    (found,) = seen(equal(4), odd(8), odd(16))
    text = "the weights on rank 2 differ from the others' since step 8 (first in layer3.bn1.weight)"
    assert found == (text, (2,))
    assert seen(equal(4), odd(8), equal(16)) == []
    (resumed,) = seen(odd(8, began=600))
    assert "since step 608 " in resumed[0]


def test_without_a_majority_all_are_named() -> None:
    (found,) = seen([sample(rank, 8, 1, rank) for rank in range(3)])
    assert found == (
        "the ranks' weights differ since step 8 (first in layer3.bn1.weight)",
        (0, 1, 2),
    )


def test_ranks_that_look_apart_in_time_are_compared_at_equal_steps() -> None:
    ahead = [sample(0, 16, 5, 5), *equal(8)[1:]]
    assert seen(equal(8), ahead) == []
    assert len(seen(equal(8), ahead, [sample(0, 16, 5, 5), *equal(16)[1:]])) == 1
    uneven = [sample(0, 800, 5, 5), *equal(8)[1:]]  # as with `model.join()`
    assert seen(equal(8), uneven, [sample(0, 800, 5, 5), *equal(800)[1:]]) == []


@pytest.mark.parametrize(
    "ranks",
    [
        equal(8),
        [*equal(8)[:2], sample(2, 8, 9, 9, layout=8)],  # another model, or called more often
        [*equal(8)[:2], sample(2, 9, 9, 9)],  # after another step
        odd(8, world=2),  # the ranks hold different parts
        [*equal(8)[:2], RankSample(rank=2, local_rank=2, host="h", ddp_world_size=3)],
    ],
)
def test_what_cannot_be_compared_is_silent(ranks: list[RankSample]) -> None:
    assert seen(ranks) == []
