"""Pictures of the rank screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.themes import DARK
from tests.support import fake_foreign, fake_ranks
from tests.support.pictures import SIZES, SMALL, Picture, after, name_of


@pytest.mark.parametrize("size", [*SIZES, SMALL], ids=name_of)
def test_a_rank_that_holds_up_the_others(frozen: Path, picture: Picture, size: object) -> None:
    fake_ranks.in_parts(frozen)
    picture(
        size,
        after(DARK.name, on=RankScreen),
        opening=ScreenWanted("rank", "llama-ft", fake_ranks.SLOW),
    )


def test_only_its_step_time(frozen: Path, picture: Picture) -> None:
    fake_ranks.in_parts(frozen)
    picture(
        SIZES[0],
        after(DARK.name, "2", on=RankScreen),
        opening=ScreenWanted("rank", "llama-ft", fake_ranks.SLOW),
    )


def test_a_foreign_rank(held_gpus: Path, picture: Picture) -> None:
    view = fake_foreign.with_findings()
    picture(
        SIZES[1],
        after(DARK.name, on=RankScreen),
        opening=ScreenWanted("rank", view.job, 2, foreign=True),
    )
