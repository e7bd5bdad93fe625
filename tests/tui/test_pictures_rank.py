"""What the screen of one rank looks like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import RankPicked
from ddptop.tui.screens.rank import RankScreen
from tests.tui import fake_foreign, fake_ranks
from tests.tui.driving import look, settle, until
from tests.tui.test_pictures_job import LOOKS, SIZES, name_of
from textual.pilot import Pilot

MakeApp = Callable[..., DdptopApp]
Compare = Callable[..., bool]


def opened(theme: str, *keys: str) -> Callable[[Pilot[None]], object]:
    async def prepare(pilot: Pilot[None]) -> None:
        pilot.app.theme = theme
        await until(pilot, lambda: isinstance(pilot.app.screen, RankScreen))
        await settle(pilot)
        await pilot.press(*keys)
        await look(pilot, 2)
        await pilot.pause()

    return prepare


@pytest.mark.parametrize(("size", "theme"), [*LOOKS, ((60, 18), "ddptop")], ids=name_of)
def test_a_rank_that_holds_up_the_others(
    frozen: Path, make_app: MakeApp, snap_compare: Compare, size: object, theme: str
) -> None:
    fake_ranks.in_parts(frozen)
    app = make_app(opening=RankPicked("llama-ft", fake_ranks.SLOW))
    assert snap_compare(app, terminal_size=size, run_before=opened(theme))


def test_its_step_time_alone(frozen: Path, make_app: MakeApp, snap_compare: Compare) -> None:
    fake_ranks.in_parts(frozen)
    app = make_app(opening=RankPicked("llama-ft", fake_ranks.SLOW))
    assert snap_compare(app, terminal_size=SIZES[0], run_before=opened("ddptop", "2"))


@pytest.mark.parametrize("size", SIZES[:2], ids=name_of)
def test_a_foreign_rank(
    held_gpus: Path, make_app: MakeApp, snap_compare: Compare, size: object
) -> None:
    view = fake_foreign.with_findings()
    app = make_app(opening=RankPicked(view.job, 2, foreign=True))
    assert snap_compare(app, terminal_size=size, run_before=opened("ddptop"))
