"""The rank screen as a user uses it, on run folders in the real formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.devices import DevicesScreen
from ddptop.tui.screens.dialogs import SectionsScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.logs import LogsScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.screens.rank import RankScreen
from tests.support import fake_foreign, fake_home, fake_ranks
from tests.support.driving import look, running, settle, shown, until
from textual.screen import Screen

from ddptop_runner.jobs import commands

MakeApp = Callable[..., DdptopApp]


def opened(rank: int) -> ScreenWanted:
    return ScreenWanted("rank", "llama-ft", rank)


async def test_what_it_says_of_a_slow_rank_and_where_its_keys_lead(
    frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "stacks", lambda view, rank: [])  # nobody would answer for 20 s
    fake_ranks.in_parts(frozen)
    async with running(make_app("llama-ft"), (200, 60)) as (app, pilot):
        assert "5 ▲ slow" in shown(app), "its steps take no longer than the others'"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen))
        await settle(pilot)
        assert shown(app).count("rank 5 is holding up the others: it waits 139 ms") == 1
        assert app.screen.log_view.lines.lines[-1].startswith("[5] step 12339")
        await pilot.press("]")
        assert "llama-ft  rank 6" in shown(app)
        await settle(pilot)
        assert "rank 6 waits 33% of a step for the others; rank 5 is the slowest" in shown(app)
        assert app.screen.log_view.lines.lines[-1].startswith("[6] step 12339")
        await pilot.press("]", "]", "[")
        assert app.screen.rank == 6, "rank 7 is the last one"
        for key, kind in (("l", LogsScreen), ("v", DevicesScreen), ("t", SectionsScreen)):
            await pilot.press(key)
            await until(pilot, lambda kind=kind: isinstance(app.screen, kind))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, RankScreen))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))


async def test_a_small_terminal_shows_pages(frozen: Path, make_app: MakeApp) -> None:
    fake_ranks.in_parts(frozen)
    async with running(make_app(opening=opened(5)), (80, 24)) as (app, pilot):
        screen = app.screen
        for key, kind in (("2", "#split"), ("4", "#log"), ("1", "#chart")):
            await pilot.press(key)
            await pilot.pause()
            assert screen.query_one(kind).size.height > 8
            others = {"#split", "#log", "#chart"} - {kind}
            assert not any(screen.query_one(other).size.height for other in others)
        await pilot.press("3", "escape")
        assert screen.page == "main"
        assert screen.explain()[0][0].startswith("rank 5: ")


@pytest.mark.parametrize(("key", "screen"), [("enter", RankScreen), ("v", DevicesScreen)])
async def test_o_goes_past_the_job_to_all_jobs(
    key: str, screen: type[Screen[None]], frozen: Path, make_app: MakeApp
) -> None:
    fake_ranks.in_parts(frozen)
    async with running(make_app("llama-ft")) as (app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, screen))
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))


async def test_a_rank_that_is_not_there_and_a_job_that_goes(
    frozen: Path, make_app: MakeApp
) -> None:
    folder = fake_home.two_cpu_ranks(frozen)
    async with running(make_app(opening=ScreenWanted("rank", "mlp-cpu", 7))) as (app, pilot):
        assert "no rank 7" in shown(app)
        await pilot.press("[")
        assert app.screen.rank == 1
        await look(pilot, 2)
        assert "rank 1 is training" in shown(app)
        assert "none (on CPU)" in shown(app)
        folder.history_db.write_bytes(b"no database" * 99)
        await look(pilot, 2)
        folder.spec_file.unlink()
        await look(pilot, 2)
        assert "mlp-cpu no longer exists" in shown(app)


async def test_a_rank_of_a_job_that_ddptop_did_not_start(
    held_gpus: Path, make_app: MakeApp
) -> None:
    view = fake_foreign.with_findings()
    async with running(make_app(watched=view.foreign)) as (app, pilot):
        await pilot.press("g", "right", "right", "enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen))
        await settle(pilot)
        text = shown(app)
        assert "rank 2" in text and "exited, but not yet reaped" in text
        assert "n/a: ddptop did not start this job, so step times" in text
        assert "GPU 6" in text and "118/700 W" in text
        assert "GPU 6 is lost" in text
