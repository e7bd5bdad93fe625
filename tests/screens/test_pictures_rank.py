"""Pictures of the rank screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.themes import DARK
from tests.support import fake_foreign, fake_ranks
from tests.support.pictures import LOOKS, SIZES, SMALL, Compare, MakeApp, after, name_of


@pytest.mark.parametrize(("size", "theme"), [*LOOKS, (SMALL, DARK.name)], ids=name_of)
def test_a_rank_that_holds_up_the_others(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    fake_ranks.in_parts(frozen)
    app = make_app(opening=ScreenWanted("rank", "llama-ft", fake_ranks.SLOW))
    assert snap_compare(app, terminal_size=size, run_before=after(theme, on=RankScreen))


def test_only_its_step_time(frozen: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    fake_ranks.in_parts(frozen)
    app = make_app(opening=ScreenWanted("rank", "llama-ft", fake_ranks.SLOW))
    assert snap_compare(
        app, terminal_size=SIZES[0], run_before=after(DARK.name, "2", on=RankScreen)
    )


def test_a_foreign_rank(held_gpus: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    view = fake_foreign.with_findings()
    app = make_app(opening=ScreenWanted("rank", view.job, 2, foreign=True))
    assert snap_compare(app, terminal_size=SIZES[1], run_before=after(DARK.name, on=RankScreen))
