"""What the process tree of a command reveals about its ranks."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ddptop_runner.foreign.types import ForeignRank
from ddptop_runner.host import procs
from ddptop_runner.job.command_look import Sight

OWN = os.getpid()
RANK = ForeignRank(0, 0, 4711, 1, "environment")
ITSELF = ForeignRank(0, 0, OWN, procs.start_ticks(OWN) or 0, "single")


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        (Sight(), Sight(ranks=(ITSELF,))),
        (Sight("mpirun"), Sight("mpirun", ranks=(ITSELF,))),
        (Sight("torchrun", 1, (RANK,)), Sight("torchrun", 1, (RANK,))),
        (Sight(is_of_several=True), Sight(is_of_several=True)),
    ],
    ids=["any program", "under a launcher", "ranks are seen", "several trainings"],
)
def test_a_program_that_prints_losses_is_a_rank_where_none_is_seen(sight: Any, expected: Any):
    assert sight.or_printing(OWN) == expected
