"""The replay screen: every panel at a past moment, and moving to another one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from ddptop.job.keys import SCREENS
from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens import replay as replay_screen
from ddptop.tui.screens.replay import ReplayScreen
from ddptop.tui.widgets.charts import LossChart
from tests.support import fake_home
from tests.support.driving import keys_shown, look, running, said, shown, until
from tests.support.replay_home import AGAIN, HANG, JOB, SECONDS, begin, recorded_job
from textual import events
from textual.pilot import Pilot

DOTS = {chr(0x2800 + bits) for bits in range(1, 256)}
MakeApp = Callable[..., DdptopApp]


def opened(make_app: MakeApp, second: float | None = None, job: str = JOB) -> DdptopApp:
    """An app that opens the replay of a job at a given second."""
    return make_app(
        opening=ScreenWanted("replay", job, None if second is None else begin() + second)
    )


def screen_of(pilot: Pilot[None]) -> ReplayScreen:
    screen = pilot.app.screen
    assert isinstance(screen, ReplayScreen)
    return screen


async def arrive(pilot: Pilot[None]) -> ReplayScreen:
    """Wait until the requested moment is shown."""
    await until(pilot, lambda: isinstance(pilot.app.screen, ReplayScreen), "the screen")
    screen = screen_of(pilot)
    await until(pilot, lambda: is_there(screen), "the moment")
    await pilot.pause()
    return screen


@contextlib.asynccontextmanager
async def replaying(
    app: DdptopApp, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[DdptopApp, Pilot[None], ReplayScreen]]:
    async with app.run_test(size=size) as pilot:
        yield app, pilot, await arrive(pilot)


def is_there(screen: ReplayScreen) -> bool:
    replay = screen.replay
    return replay is not None and replay.at is not None and replay.at == screen.at


def second_of(screen: ReplayScreen) -> float:
    assert screen.at is not None
    return round(screen.at - begin(), 3)


async def press(pilot: Pilot[None], *keys: str) -> float:
    """The second of the job that these keys lead to."""
    for key in keys:
        await pilot.press(key)
    return second_of(await arrive(pilot))


async def test_everything_is_shown_as_it_was(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, 200), size=(160, 48)) as (app, pilot, screen):
        await until(pilot, lambda: "step   400 rank 0" in log_text(screen), "the log of then")
        text = shown(app)
        assert "REPLAY: gpt-a" in text and "state at 11:55:20" in text
        assert "running" in text and "attempt 0" in text
        assert "restarting all ranks" not in text, "that came later"
        assert "/ck/a.pt" in text and "/ck/b.pt" not in text
        assert "step   410" not in log_text(screen) and "paused" in text
        detail = screen.detail
        assert detail is not None and detail.view.snapshot is not None
        rank = detail.view.snapshot.ranks[5]
        assert (rank.step, rank.compute_s, rank.sync_s, rank.pid) == (400, 0.47, 0.01, 5105)
        assert detail.view.is_live and detail.view.guarded is None
        assert screen._chart.view.cursor == screen.at


def log_text(screen: ReplayScreen) -> str:
    return "\n".join(screen.log_view.lines.lines)


@pytest.mark.parametrize("axis", ["time", "step"])
async def test_the_cursor_of_the_chart_is_at_the_moment(
    frozen: Path, make_app: MakeApp, axis: str
) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, 200)) as (app, pilot, screen):
        chart, drawn = screen._chart, screen.detail and screen.detail.chart
        if axis == "step":
            await press(pilot, "b")
            await look(pilot, 2)
            assert "step 400" in shown(app)
            return
        assert chart.view.cursor == begin() + 200
        assert chart.area is not None
        assert chart.area.last >= begin() + SECONDS - 1, "a click on the rest goes there"
        await look(pilot, 2)
        assert screen.detail is not None and screen.detail.chart is drawn, "nothing to redraw"


async def test_it_opens_before_what_went_wrong_last(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app)) as (app, _, screen):
        assert second_of(screen) == HANG - 6
        assert "next: hang in" in shown(app)


async def test_keys_go_through_the_history(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, 200)) as (app, pilot, _):
        assert await press(pilot, "right", "right", "left") == 201
        assert await press(pilot, "shift+right") == 261
        assert await press(pilot, "shift+left", "shift+left") == 141
        assert await press(pilot, "right_square_bracket") == 240
        assert await press(pilot, "right_square_bracket") == HANG - 1
        assert "rank 5 did not enter" in said(app)
        assert len(app._notifications) == 1, "of the mark before nothing covers the charts"
        assert await press(pilot, "left_square_bracket", "left_square_bracket") == 120
        assert await press(pilot, "end") == SECONDS - 1
        assert "next:" not in shown(app)
        assert await press(pilot, "left_square_bracket") < SECONDS - 1
        assert await press(pilot, "home") == 0
        assert await press(pilot, "left") == 0, "there is nothing before the first moment"
        await pilot.press("left_square_bracket")
        assert "no earlier event" in said(app)


async def test_states_follow_the_moment(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, HANG - 0.5), size=(160, 48)) as (app, pilot, screen):
        assert state_of(screen) == "hung"
        await press(pilot, "shift+right", "shift+left")
        screen.go(begin() + HANG + 10)
        await arrive(pilot)
        assert state_of(screen) == "restarting"
        assert "no data recorded at that time" in shown(app)
        assert "rank 5 did not enter" in shown(app)
        screen.go(begin() + AGAIN + 20)
        await arrive(pilot)
        assert state_of(screen) == "running" and "attempt 1" in shown(app)
        await press(pilot, "end")
        assert state_of(screen) == "finished"


def state_of(screen: ReplayScreen) -> str | None:
    detail = screen.detail
    return None if detail is None else detail.view.state


async def test_it_plays_faster_and_slower_and_stops_at_the_end(
    frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(replay_screen, "monotonic", lambda: clock[0])
    monkeypatch.setattr(replay_screen, "FRAME_S", 1e6)
    recorded_job(frozen)
    async with replaying(opened(make_app, 200)) as (app, pilot, screen):
        await pilot.press("minus", "space")
        assert screen.playing and "playing 1×" in shown(app)  # noqa: RUF001
        clock[0] += 3
        screen._play_on()
        assert second_of(await arrive(pilot)) == 203
        await pilot.press("plus", "plus", "plus", "plus")
        assert screen.speed == 600
        await pilot.press("minus")
        clock[0] += 2
        screen._play_on()
        assert second_of(await arrive(pilot)) == 203 + 120
        await pilot.press("space")
        assert not screen.playing and "paused" in shown(app)
        await pilot.press("space")
        clock[0] += 100
        screen._play_on()
        assert second_of(await arrive(pilot)) == SECONDS - 1 and not screen.playing
        await pilot.press("space")
        assert second_of(await arrive(pilot)) == 0 and screen.playing, "it begins anew"


async def test_a_click_on_the_time_line_or_the_chart_goes_there(
    frozen: Path, make_app: MakeApp
) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, 200)) as (_, pilot, screen):
        await pilot.click("#timeline", offset=(60, 2))
        assert abs(second_of(await arrive(pilot)) - SECONDS / 2) < 6
        await pilot.click("#timeline", offset=(119, 2))
        assert second_of(await arrive(pilot)) == SECONDS - 1
        drag = ((events.MouseDown, 60), (events.MouseMove, 90), (events.MouseUp, 90))
        for event, cell in (*drag, (events.MouseMove, 20)):
            await pilot._post_mouse_events([event], "#timeline", offset=(cell, 2), button=1)
        assert abs(second_of(await arrive(pilot)) - 3 * SECONDS / 4) < 6, "let go"
        area = screen._chart.area
        assert area is not None
        await pilot.click("#chart", offset=(area.left + area.cells // 4, 5))
        assert abs(second_of(await arrive(pilot)) - SECONDS / 4) < 10


async def test_ranks_and_pages_work_as_on_the_job_screen(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, 200)) as (app, pilot, screen):
        await pilot.press("down", "j")
        assert screen.ranks.rank == 2
        await until(pilot, lambda: "rank 2" in log_text(screen), "its log")
        await pilot.press("k")
        assert screen.ranks.rank == 1
        for key, page in (("4", "log"), ("3", "events"), ("2", "devices")):
            await pilot.press(key)
            assert screen.page == page
        await pilot.press("escape")
        assert screen.page == "main" and screen.timeline.has_focus
        screen.ranks.shown.focus()
        await pilot.press("enter")
        assert screen.page == "log" and app.screen is screen, "a rank's screen tells of now"


async def test_charts_have_their_keys(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, 200)) as (_, pilot, screen):
        chart = screen._chart
        await pilot.press("a", "y", "w")
        assert chart.options.mode != "median" and chart.options.logarithmic
        assert chart.options.smoothing
        await pilot.press("b")
        assert chart.view.axis == "step"
        assert await press(pilot, "right") == 201
        assert chart.view.cursor == 402, "the step of that moment"


async def test_nothing_is_done_to_a_job_here(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with replaying(opened(make_app, 200)) as (app, pilot, screen):
        assert not any(action.changes for action in SCREENS["replay"])
        for key in ("s", "K", "r", "R", "c", "n", "x"):
            await pilot.press(key)
        assert app.screen is screen and not app._notifications
        assert "Stop" not in keys_shown(app) and "Play/pause" in keys_shown(app)


async def test_the_cursor_of_a_chart_is_the_moment(frozen: Path, make_app: MakeApp) -> None:
    recorded_job(frozen)
    async with running(make_app(JOB)) as (app, pilot):
        app.screen.query_one(LossChart).put_cursor(begin() + 100.5)
        await pilot.press("p")
        assert second_of(await arrive(pilot)) == 100.5


async def test_without_a_history_it_says_so(frozen: Path, make_app: MakeApp) -> None:
    fake_home.finished_job(frozen)
    app = opened(make_app, job="resnet-a")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "resnet-a has no history" in shown(app))
        for key in ("space", "right", "end", "right_square_bracket", "plus"):
            await pilot.press(key)
        assert screen_of(pilot).at is None


async def test_missing_job_is_reported(frozen: Path, make_app: MakeApp) -> None:
    app = opened(make_app, job="nobody")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "nobody no longer exists" in shown(app))


async def test_a_log_whose_size_was_not_recorded_is_not_guessed(
    frozen: Path, make_app: MakeApp
) -> None:
    recorded_job(frozen, log_sizes=False)
    async with replaying(opened(make_app, 200)) as (app, pilot, _):
        await until(pilot, lambda: "was not recorded" in shown(app))


async def test_a_live_job_is_replayed_up_to_its_newest_moment(
    frozen: Path, make_app: MakeApp
) -> None:
    fake_home.two_cpu_ranks(frozen)
    async with replaying(opened(make_app, job="mlp-cpu")) as (app, pilot, screen):
        assert "latest sample" in shown(app)
        await pilot.press("space")
        assert screen.playing, "more is to come"
