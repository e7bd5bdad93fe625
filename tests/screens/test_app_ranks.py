"""Ranks on the job screen: cards, table, and map, by keyboard and mouse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.compare import CompareScreen
from ddptop.tui.screens.devices import DevicesScreen
from ddptop.tui.screens.logs import LogsScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.replay import ReplayScreen
from ddptop.tui.screens.story import StoryScreen
from ddptop.tui.widgets.charts import LossChart
from ddptop.tui.widgets.ranks import HeatMap, RankCards, usual_shape
from tests.support import fake_foreign, fake_gpus, fake_ranks
from tests.support.driving import running, said, shown, until

MakeApp = Callable[..., DdptopApp]


@pytest.mark.parametrize(
    ("ranks", "shape"), [(0, "table"), (1, "cards"), (8, "cards"), (9, "table"), (64, "table"),
                         (65, "heat"), (1024, "heat")],
)  # fmt: skip
def test_what_suits_a_number_of_ranks(ranks: int, shape: str) -> None:
    assert usual_shape(ranks) == shape


async def test_cards_are_walked_in_two_directions(frozen: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    async with running(make_app("llama-ft")) as (app, pilot):
        ranks, cards = app.screen.ranks, app.screen.query_one(RankCards)
        assert ranks.shape == "cards" and ranks.rank == 5, "the one that alerts name"
        assert "5 ▲ slow" in shown(app)
        assert (
            not app.screen.query_one("#devices").display
            or not app.screen.query_one("#devices").size.height
        )
        for key, rank in (
            ("g", 0),
            ("right", 1),
            ("down", 5),
            ("down", 5),
            ("left", 4),
            ("left", 3),
            ("j", 7),
            ("k", 3),
            ("g", 0),
            ("G", 7),
            ("left_square_bracket", 6),
        ):
            await pilot.press(key)
            assert ranks.rank == rank, key
        await pilot.click(RankCards, offset=(35, 2))
        assert ranks.rank == 1
        assert cards.at(35, 10) == 5
        await pilot.click(RankCards, offset=(35, 2))
        await until(pilot, lambda: isinstance(app.screen, RankScreen))
        assert app.screen.rank == 1


async def test_user_can_choose_another_layout(frozen: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    async with running(make_app("llama-ft")) as (app, pilot):
        ranks = app.screen.ranks
        await pilot.press("g", "]", "]", "T")
        assert ranks.shape == "table" and ranks.rank == 2, "the rank stays chosen"
        assert not app.screen.query_one("#devices").display, "the ranks' rows show them"
        await pilot.press("S")
        assert "worst first" in shown(app)
        assert list(ranks.table.keys)[:2] == ["5", "0"]
        await pilot.press("T")
        assert ranks.shape == "heat" and ranks.rank == 2
        await pilot.press("m")
        assert "8 ranks by data wait per step" in shown(app)
        await pilot.press("T")
        assert ranks.shape == "cards"
        await pilot.press("m", "S")
        assert "only in the rank map" in said(app) and "only in the rank table" in said(app)
        assert app.screen.explain()[0][0] == "rank 2: ● running"


async def test_cards_that_do_not_fit_are_a_table(frozen: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    async with running(make_app("llama-ft"), (60, 18)) as (app, pilot):
        assert app.screen.ranks.shape == "table"
        assert app.screen.max_scroll_y == 0 and app.screen.ranks.size.width == 60
        assert app.screen.query_one(LossChart).region.bottom <= 17, "the keys' row is not covered"
        await pilot.press("T", "T")
        assert "not enough room for cards" in said(app)


async def test_a_thousand_ranks_are_a_map(frozen: Path, make_app: MakeApp) -> None:
    fake_ranks.many(frozen, 1024)
    async with running(make_app("llama-ft")) as (app, pilot):
        ranks, heat = app.screen.ranks, app.screen.query_one(HeatMap)
        text = shown(app)
        assert ranks.shape == "heat"
        assert "1,024 ranks by busy time vs others" in text
        assert "rank   517  +3" in text and "node-064" in text
        assert app.screen.query_one(LossChart).size.height >= 6
        await pilot.press("g", "down", "right", "right")
        assert ranks.rank == heat.per_row + 2
        assert f" rank {heat.per_row + 2} ● running" in shown(app)
        await pilot.press("pagedown", "G")
        assert ranks.rank == 1023
        await pilot.press("m")
        assert "1,024 ranks by data wait per step" in shown(app)
        await pilot.press("m")
        assert "1,024 ranks by sync per step" in shown(app)
        await pilot.press("m", "m", "m")
        assert "1,024 ranks by state" in shown(app)
        assert "‖ 1 hung" in shown(app)
        await pilot.click(HeatMap, offset=(heat._grid.label + 5, 3))
        assert ranks.rank == heat.per_row + 5
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen))
        assert app.screen.rank == heat.per_row + 5


async def test_only_ranks_that_match_what_is_typed(frozen: Path, make_app: MakeApp) -> None:
    fake_ranks.many(frozen, 1024)
    async with running(make_app("llama-ft")) as (app, pilot):
        ranks, screen = app.screen.ranks, app.screen
        await pilot.press("slash", *"rank:4-")
        await pilot.press(*"20")
        await until(pilot, lambda: ranks.shape == "table" and ranks.rank == 4)
        assert "17 of 1024" in shown(app)
        await pilot.press("enter", "j")
        assert ranks.rank == 5
        await pilot.press("T")
        assert ranks.shape == "table" and "the map cannot be filtered" in said(app)
        await pilot.press("slash", *"rank:4 state:hun")
        await until(pilot, lambda: ranks.rank is None, "nobody is shown")
        assert "no ranks match; press esc to show all" in shown(app)
        await pilot.press("escape")
        await until(pilot, lambda: ranks.shape == "heat")
        assert app.screen is screen
        await pilot.press("slash", *"rank:517", "enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen))
        assert app.screen.rank == 517
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        assert ranks.shape == "cards" and "1 of 1024" in shown(app)
        await pilot.press("escape")
        await until(pilot, lambda: ranks.shape == "heat" and app.screen is screen)


async def test_keys_open_pages(frozen: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(frozen)
    async with running(make_app("llama-ft")) as (app, pilot):
        screen = app.screen
        for key, kind in (
            ("l", LogsScreen),
            ("e", StoryScreen),
            ("v", DevicesScreen),
            ("p", ReplayScreen),
            ("C", CompareScreen),
        ):
            await pilot.press(key)
            await until(pilot, lambda kind=kind: isinstance(app.screen, kind), key)
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is screen, f"esc after {key}")


async def test_of_a_foreign_job_there_is_no_history(held_gpus: Path, make_app: MakeApp) -> None:
    view = fake_foreign.healthy()
    async with running(make_app(watched=view.foreign)) as (app, pilot):
        screen = app.screen
        for key, word in (("e", "story"), ("p", "history"), ("C", "history")):
            await pilot.press(key)
            assert app.screen is screen
            assert f"train.py:4711 has no {word}: ddptop did not start it" in said(app)


async def test_what_a_foreign_rank_s_state_means_stands_below_the_cards(
    held_gpus: Path, make_app: MakeApp
) -> None:
    view = fake_foreign.with_findings()
    async with running(make_app(watched=view.foreign)) as (app, pilot):
        await pilot.press("g", "right", "right")
        await pilot.pause()
        panel = app.screen.ranks
        assert " rank 2  exited, but not yet reaped" in shown(app)
        await pilot.press("T")
        await pilot.pause()
        assert panel.table.size.width == panel.size.width
