"""The palette offers what is possible now, and every job by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from ddptop.job.keys import SCREENS
from ddptop.style import plain, width
from ddptop.tui.app import DdptopApp
from ddptop.tui.palette import Command, Commands
from ddptop.tui.screens.dialogs import ConfirmScreen
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.widgets.bars import KeyBar
from tests.support import fake_gpus, fake_home, fake_story
from tests.support.driving import look, offered, running, shown, until
from textual.app import App, ComposeResult
from textual.content import Content

MakeApp = Callable[..., DdptopApp]


def commands(app: DdptopApp, query: str = "") -> dict[str, Command]:
    return {command.name: command for command in Commands(app.screen).commands(query)}


async def test_a_live_job_has_what_can_be_done_to_one(frozen: Path, make_app: MakeApp) -> None:
    fake_home.two_cpu_ranks(frozen)
    async with running(make_app("mlp-cpu")) as (app, _):
        names = offered(app)
        expected = {
            a.name for a in SCREENS["a job"] if a.is_offered(True, foreign=False, readonly=False)
        }
        assert expected - {"Cancel", "Back"} <= names and not {"Cancel", "Back"} & names
        assert "Stop" in names and "Relaunch" not in names
        assert commands(app)["Stop"].key == "s"


async def test_an_ended_job_has_what_can_be_done_to_that(frozen: Path, make_app: MakeApp) -> None:
    fake_home.failed_job(frozen)
    async with running(make_app()) as (app, _):
        names = offered(app)
        assert {"Relaunch", "Remove"} <= names
        assert not names & {"Stop", "Kill"}


async def test_jobs_and_ranks_are_found_by_name(eight_gpus: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    fake_home.failed_job(eight_gpus)
    async with running(make_app()) as (app, pilot):
        listed = commands(app)
        assert {"go to llama-ft", "go to vit-base", "Theme"} <= set(listed)
        assert not any("rank" in name for name in listed)
        found = commands(app, "llama 5")
        assert "rank 5 of llama-ft" in found and "rank 4 of llama-ft" not in found
        for name, screen in (("go to llama-ft", JobScreen), ("rank 5 of llama-ft", RankScreen)):
            found[name].run()
            await until(pilot, lambda screen=screen: isinstance(app.screen, screen))


async def test_what_is_chosen_is_done(frozen: Path, make_app: MakeApp) -> None:
    fake_home.two_cpu_ranks(frozen)
    async with running(make_app()) as (app, pilot):
        await pilot.press("ctrl+p", *"go to mlp", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await look(pilot, 2)
        await pilot.press("ctrl+p", *"stop", "enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))


@pytest.mark.parametrize("job", [None, "gpt-a"])
async def test_metrics_are_found_on_the_overview_too(
    frozen: Path, make_app: MakeApp, job: str | None
) -> None:
    fake_story.learner(frozen, "gpt-a", "1e-3", scalars_from=0.0)
    app = make_app(job)
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, lambda: "chart val_loss" in commands(app, "val"))
        await pilot.press("ctrl+p", *"val", "enter")
        await until(pilot, lambda: "val_loss for gpt-a" in shown(app) or "val_loss," in shown(app))


async def test_a_name_with_markup_is_shown_as_it_is(frozen: Path, make_app: MakeApp) -> None:
    names = ["[red]x[/]", "a[0", "[link=x]y"]
    app = make_app()
    async with app.run_test(size=(120, 40)):
        provider = Commands(app.screen)
        provider.commands = lambda query: (  # type: ignore[method-assign]
            Command(name, name, lambda: None, "[x]") for name in names
        )
        hits = [hit async for hit in provider.discover()]
        assert [str(hit.display).split()[:2] for hit in hits] == [[name, "[x]"] for name in names]
        assert all(isinstance(hit.display, Content) for hit in hits)


class TestKeyBar:
    async def test_click_acts_as_the_key_and_hovering_explains_it(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        async with running(make_app()) as (app, pilot):
            bar = app.screen.query_one(KeyBar)
            text = "".join(part for part, _ in bar._lines[0])
            await pilot.hover(bar, offset=(text.index("Stop"), 0))
            await pilot.pause()
            assert "SIGTERM" in str(bar.tooltip)
            await pilot.click(bar, offset=(text.index("Help"), 0))
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))

    async def test_every_screen_names_the_way_out(self) -> None:
        class Bars(App[None]):
            def compose(self) -> ComposeResult:
                yield from map(KeyBar, SCREENS.values())

        async with Bars().run_test() as pilot:
            bars = pilot.app.query(KeyBar)
            for bar, live, cells in itertools.product(bars, (True, False), (60, 80)):
                bar.show(SimpleNamespace(is_live=live, is_foreign=False))  # type: ignore[arg-type]
                (row,) = bar.build(cells, 1)
                assert re.search(r"  q (Back|Quit)  \? Help $", plain(row)), plain(row)
                assert width(row) == cells
