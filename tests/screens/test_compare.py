"""The screen that compares jobs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.tui import messages
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.compare import CompareScreen
from ddptop.tui.screens.job import JobScreen
from tests.support import fake_home, fake_story
from tests.support.driving import keys_shown, look, running, said, settle, shown, until
from tests.support.terminal import Terminal
from textual.pilot import Pilot

MakeApp = Callable[..., DdptopApp]
SIZE = (120, 40)


def opened(make_app: MakeApp, *jobs: str) -> DdptopApp:
    return make_app(opening=messages.ScreenWanted("compare", jobs))


def three(home: Path) -> None:
    """Two jobs of one script, the slower one older, and one of another script."""
    fake_story.learner(home, "gpt-a", "3e-4")
    fake_story.learner(home, "gpt-b", "1e-3", falls=60, ago_s=7000)
    fake_story.learner(home, "vit", "5e-4", ago_s=5000, target="fit.py")


async def press(pilot: Pilot[None], *keys: str) -> str:
    await pilot.press(*keys)
    await settle(pilot)
    assert isinstance(pilot.app, DdptopApp)
    return shown(pilot.app)


async def test_two_jobs_say_who_learns_better_and_what_was_given_differently(
    frozen: Path, make_app: MakeApp
) -> None:
    three(frozen)
    async with running(opened(make_app, "gpt-a", "gpt-b")) as (app, pilot):
        text = shown(app)
        assert "B's training loss is 13% lower at step 600" in text
        assert "loss by step" in text
        assert "≠ --lr" in text
        assert "3e-4" in text
        assert "--epochs" not in text  # both had 3
        assert "compare with" not in text  # nothing to choose
        assert "Keep" not in keys_shown(app)
        assert "time per step" in text
        assert "500 ms" in text
        # the item under the cursor is explained, with its full values
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        words = dict(screen.explain())
        assert words["A gpt-a"] == "0.4639"
        assert "single batches are noisy" in words["loss at step 600"]
        await press(pilot, "space")
        assert "the jobs in this chart are fixed" in said(app)


async def test_what_the_jobs_report_is_compared_too(frozen: Path, make_app: MakeApp) -> None:
    fake_story.learner(frozen, "gpt-a", "1e-3", scalars_from=0.0)
    fake_story.learner(frozen, "gpt-b", "1e-3", scalars_from=0.5)
    async with running(opened(make_app, "gpt-a", "gpt-b")) as (app, pilot):
        assert re.search(r"val_loss +-1.0000, best -1.0000 at step 482 +-0.5000, best", shown(app))
        assert "lr by step" in await press(pilot, "M")
        text = await press(pilot, "M")
        assert "val_loss by step" in text
        assert "━ A gpt-a -1.0000  ╍ B gpt-b -0.5000" in text
        assert "val_loss since each job's start" in await press(pilot, "b")
        assert "loss since each job's start" in await press(pilot, "M")
        await press(pilot, "ctrl+p", *"chart lr", "enter")
        assert "lr since each job's start" in shown(app)


async def test_the_companion_changes_with_the_cursor_and_others_can_be_kept(
    frozen: Path, make_app: MakeApp
) -> None:
    three(frozen)
    async with running(opened(make_app, "gpt-a")) as (app, pilot):
        text = shown(app)
        assert text.index("gpt-b") < text.index("vit")  # the same script first
        assert "A gpt-a  B gpt-b" in text
        assert "--lr 1e-3" in text  # only what differs
        text = await press(pilot, "down")
        assert "A gpt-a  B vit" in text
        assert "≠ script" in text
        text = await press(pilot, "up", "space")
        assert "A gpt-a  B gpt-b  C vit" in text
        assert "C vit" in text
        text = await press(pilot, "up", "space")  # unmarked again
        assert "A gpt-a  B gpt-b   " in text
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))


async def test_no_more_than_eight_fit(frozen: Path, make_app: MakeApp) -> None:
    for number in range(9):
        fake_story.learner(frozen, f"gpt-{number}", f"{number}e-4", steps=40, ago_s=7000 - number)
    async with running(opened(make_app, "gpt-0")) as (app, pilot):
        text = await press(pilot, *["space"] * 8)
        assert "A gpt-0  B gpt-8  C gpt-7  D gpt-6" in text
        assert "the chart can show at most 8 jobs" in said(app)


async def test_the_chart_goes_by_time_is_read_and_is_left_before_the_screen(
    frozen: Path, make_app: MakeApp
) -> None:
    three(frozen)
    async with running(opened(make_app, "gpt-a", "gpt-b")) as (app, pilot):
        text = await press(pilot, "right", "right", "right", "right")
        assert re.search(r"step \d+  A gpt-a \d\.\d+ \(raw \d\.\d+\)  B gpt-b \d", text)
        text = await press(pilot, "b")
        assert "loss since each job's start" in text
        text = await press(pilot, "y", "w")
        assert "log scale, smoothing 0.9" in text
        text = await press(pilot, "right", "escape")
        assert isinstance(app.screen, CompareScreen)
        text = await press(pilot, "plus")
        assert isinstance(app.screen, CompareScreen)
        # the chosen axis is kept in the next update
        assert "loss since each job's start" in text


async def test_a_job_without_steps_is_compared_by_time(frozen: Path, make_app: MakeApp) -> None:
    three(frozen)
    folder = fake_story.learner(frozen, "printed", "2e-4")
    import sqlite3

    with contextlib.closing(sqlite3.connect(folder.history_db)) as db, db:
        for tier in ("1s", "10s", "60s", "600s"):
            db.execute(f"UPDATE job_{tier} SET step = NULL")
    async with running(opened(make_app, "gpt-a", "printed")) as (app, pilot):
        text = shown(app)
        assert "loss since each job's start" in text
        assert "loss after 5m 04s" in text
        await press(pilot, "b")
        assert "by step: n/a (steps are unknown for B printed" in said(app)


async def test_nan_and_restarts_are_seen(frozen: Path, make_app: MakeApp) -> None:
    three(frozen)
    fake_story.learner(frozen, "bad", "1", restart_at=100, bad_from=400)
    async with running(opened(make_app, "gpt-a", "bad")) as (app, _):
        text = shown(app)
        assert "loss is no longer finite for B" in text
        assert "✕" in text
        assert "B↻1" in text
        assert "not finite since step 402" in text


async def test_jobs_without_losses_and_jobs_that_are_gone_say_so(
    frozen: Path, make_app: MakeApp
) -> None:
    fake_story.without_history(fake_story.learner(frozen, "silent", "1"))
    async with running(opened(make_app, "silent"), (80, 24)) as (app, _):
        text = shown(app)
        assert "no other jobs to compare with;" in text
        assert "no loss found for silent" in text
        assert "pick a job to compare with" in text
    async with running(opened(make_app, "silent", "never-was"), (80, 24)) as (app, _):
        assert "never-was no longer exists" in shown(app)


async def test_a_filter_leaves_the_companions_that_it_names(
    frozen: Path, make_app: MakeApp
) -> None:
    three(frozen)
    async with running(opened(make_app, "gpt-a")) as (app, pilot):
        text = await press(pilot, "slash", *"vit")
        assert "A gpt-a  B vit" in text
        text = await press(pilot, "z", "enter")
        assert "no jobs match" in text
        text = await press(pilot, "escape")
        assert "gpt-b" in text
        assert isinstance(app.screen, CompareScreen)


async def test_a_live_job_is_read_again(
    frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_home.two_cpu_ranks(frozen)
    three(frozen)
    async with running(opened(make_app, "mlp-cpu", "gpt-a"), (200, 60)) as (app, pilot):
        assert "● running" in shown(app)
        assert "Step/time" in keys_shown(app)
        kept = False
        for _ in range(4):  # the first read of a history may still change its files
            before = app.latest
            await look(pilot)
            curves = [one.comparison.runs[0].curve for one in (app.latest, before)]
            kept = kept or curves[0] is curves[1]
        assert kept, "nothing new: the very same curves, which are not drawn again"


def test_on_a_terminal_it_opens_the_screen_and_leaving_that_leaves_it(
    ddptop_home: Path, terminal: Callable[..., Terminal], wait_until: Callable[..., object]
) -> None:
    fake_story.learner(ddptop_home, "gpt-a", "3e-4", steps=40)
    fake_story.learner(ddptop_home, "gpt-b", "1e-3", steps=40, ago_s=7000)
    one = terminal("compare", "gpt-a", "gpt-b")
    wait_until(lambda: one.draws(b"loss at step 40"), what="the comparison")
    one.type("q")
    wait_until(one.ended, what="its end")
    assert one.process.returncode == 0
