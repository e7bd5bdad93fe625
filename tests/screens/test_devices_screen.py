"""The devices screen as a user uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddptop.tui import messages
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.devices import DevicesScreen
from ddptop.tui.screens.dialogs import SectionsScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.logs import LogsScreen
from ddptop.tui.screens.overview import OverviewScreen
from tests.support import fake_foreign, fake_gpus
from tests.support.driving import look, running, said, settle, shown, until
from tests.support.fake_device_history import write_gpu_history
from tests.support.fake_home import uuid

MakeApp = Callable[..., DdptopApp]


def screen_of(app: DdptopApp) -> DevicesScreen:
    assert isinstance(app.screen, DevicesScreen)
    return app.screen


async def test_it_opens_on_the_wanted_device_with_its_history_and_processes(
    eight_gpus: Path, make_app: MakeApp
) -> None:
    write_gpu_history(fake_gpus.eight_gpu_ranks(eight_gpus), 600)
    async with running(make_app(opening=messages.ScreenWanted("devices", uuid(5)))) as (app, pilot):
        screen = screen_of(app)
        assert screen.devices.cursor_key == uuid(5)
        text = shown(app)
        assert "GPU 5, last 15m" in text
        assert "GPU mem 61.2 GiB" in text and "power 388 W" in text
        assert "▼ thermal, by hardware" in text
        assert "the device is too hot and runs much slower" in text
        assert "52345 llama-ft" in text
        assert "⠉" in text, "the small curves"
        await pilot.press("up")
        await until(pilot, lambda: "GPU 4, last 15m" in shown(app))
        assert "processes on GPU 4" in shown(app)
        assert "52344 llama-ft" in shown(app)


async def test_enter_explains_a_device_and_opens_a_process_s_job(
    eight_gpus: Path, make_app: MakeApp
) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    async with running(make_app(opening=messages.ScreenWanted("devices", uuid(5)))) as (app, pilot):
        screen = screen_of(app)
        assert dict(screen.explain())["slowed: thermal, by hardware"].startswith(
            "The device is too hot"
        )
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
        await pilot.pause()
        assert "the device is too hot" in said(app).lower()
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        screen.processes.focus()
        await look(pilot)
        assert ("process 52345", "python") in screen.explain()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        assert app.screen.job == "llama-ft"


async def test_ways_in_a_circle_lead_back_to_the_screen_that_is_there(
    eight_gpus: Path, make_app: MakeApp
) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    async with running(make_app("llama-ft")) as (app, pilot):
        job = app.screen
        for message in (
            messages.ScreenWanted("rank", "llama-ft", 5),
            messages.ScreenWanted("logs", "llama-ft", 5),
            messages.ScreenWanted("devices", uuid(5)),
        ):
            app.post_message(message)
        await until(pilot, lambda: isinstance(app.screen, DevicesScreen))
        await settle(pilot)
        assert len(app.screen_stack) == 5
        app.post_message(messages.ScreenWanted("logs", "llama-ft", 4))  # another one is on top
        await until(pilot, lambda: isinstance(app.screen, LogsScreen))
        app.post_message(messages.ScreenWanted("logs", "llama-ft", 5))
        await until(pilot, lambda: len(app.screen_stack) == 4, "the log that is there already")
        app.post_message(messages.ScreenWanted("job", "llama-ft"))
        await until(pilot, lambda: app.screen is job, "the job that is there already")
        await settle(pilot)
        assert "llama-ft" in shown(app) and len(app.screen_stack) == 2
        app.post_message(messages.ScreenWanted("job", "llama-ft"))  # it is already visible
        app.post_message(messages.ScreenWanted("job", "llama-ft", foreign=True))
        await until(pilot, lambda: app.screen is not job, "another job of that name")
        assert len(app.screen_stack) == 3


async def test_a_process_of_a_foreign_job_and_one_of_none(
    held_gpus: Path, make_app: MakeApp
) -> None:
    fake_foreign.healthy()
    async with running(make_app(opening=messages.ScreenWanted("devices"))) as (app, pilot):
        screen = screen_of(app)
        screen.processes.focus()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        assert app.screen.foreign
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        screen.devices.focus()
        await pilot.press("G")
        await look(pilot)
        assert "no processes; the device is free" in shown(app)
        screen.processes.focus()
        await pilot.pause()
        screen.action_open()
        await pilot.pause()
        assert "does not belong to a known job" in said(app)


async def test_the_chart_zooms_and_begins_with_another_figure(
    eight_gpus: Path, make_app: MakeApp
) -> None:
    write_gpu_history(fake_gpus.eight_gpu_ranks(eight_gpus), 1000)
    async with running(make_app(opening=messages.ScreenWanted("devices")), (80, 24)) as (
        app,
        pilot,
    ):
        screen = screen_of(app)
        assert "temperature" not in shown(app)
        await pilot.press("a", "a")
        await until(pilot, lambda: "temperature" in shown(app))
        await pilot.press("plus")
        await until(pilot, lambda: "last 10m" in shown(app).split("GPU 0,")[1])
        await pilot.press("0")
        await until(pilot, lambda: "whole run" in shown(app) or "-16m" in shown(app))
        await pilot.press("left")
        await pilot.press("escape")
        assert app.screen is screen, "esc takes the cursor away first"
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, OverviewScreen))


async def test_a_device_whose_processes_are_unknown_is_not_called_free(
    ill_gpus: Path, make_app: MakeApp
) -> None:
    opening = messages.ScreenWanted("devices", uuid(5))
    async with running(make_app(opening=opening), (160, 50)) as (app, _):
        assert "the driver does not report its processes" in shown(app)
        assert "the device is free" not in shown(app)
