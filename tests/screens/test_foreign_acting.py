"""Signals to jobs that ddptop did not start, and a read-only viewer."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.draw.panels import stopping_words
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.dialogs import ConfirmScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.launch import LaunchScreen
from tests.support import fake_foreign, fake_home
from tests.support.driving import keys_shown, offered, running, said, shown, until
from tests.support.fake_signals import SENTENCE, Sent
from textual.pilot import Pilot

from ddptop_runner.base.errors import UsageError
from ddptop_runner.foreign.actions import SignalPlan
from ddptop_runner.jobs import commands

MakeApp = Callable[..., DdptopApp]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


class TestSignals:
    def test_what_is_sent_is_told_with_its_times(self) -> None:
        since = dt.datetime(2026, 3, 1, 12, 0, 50).astimezone()
        plan = SignalPlan("job", "stop", SENTENCE, (), (), os.geteuid())
        words = "SIGINT sent at 12:00:50; then SIGTERM at 12:01:05 and SIGKILL at 12:01:10"
        assert stopping_words(plan, since) == words
        assert len(words) < 79, "it fits the smallest screen"
        kill = dataclasses.replace(plan, action="kill")
        assert stopping_words(kill, since) == "SIGKILL sent at 12:00:50"

    @pytest.mark.parametrize(("key", "action"), [("s", "stop"), ("K", "kill")])
    async def test_nothing_is_sent_before_the_plan_is_confirmed(
        self, held_gpus: Path, make_app: MakeApp, sent: Sent, key: str, action: str
    ) -> None:
        view = fake_foreign.healthy()
        async with running(make_app(watched=view.foreign), (80, 24)) as (app, pilot):
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            assert SENTENCE in said(app)
            assert "ddptop did not start it" in said(app)
            await pilot.press("enter")  # the focused button is "no"
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            assert sent.sent == []
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("y")
            await until(pilot, lambda: "4 of 4 ranks are gone" in said(app))
        assert [plan.action for plan in sent.sent] == [action]

    async def test_another_users_job_is_refused_with_the_reason(
        self, held_gpus: Path, make_app: MakeApp, sent: Sent
    ) -> None:
        sent.refusal = UsageError("its processes are alice's", "ask her, or use sudo")
        view = fake_foreign.with_findings()
        async with running(make_app(watched=view.foreign), (80, 24)) as (app, pilot):
            await pilot.press("s")
            await until(pilot, lambda: "its processes are alice's" in said(app))
            assert isinstance(app.screen, JobScreen)


class TestReadonly:
    @pytest.fixture
    def refused(self, monkeypatch: pytest.MonkeyPatch, sent: Sent) -> Sent:
        def forbidden(*_: object, **__: object) -> None:
            raise AssertionError("a read-only viewer did something to a job")

        for name in ("stop", "restart_group", "remove", "stacks"):
            monkeypatch.setattr(commands, name, forbidden)
        return sent

    async def _refuses(self, pilot: Pilot[None], keys: str) -> None:
        app = pilot.app
        assert isinstance(app, DdptopApp)
        before = app.screen
        for key in keys:
            app._notifications.clear()
            await pilot.press(key, key)
            await until(pilot, lambda: "read-only: " in said(app), f"a refusal of {key}")
            await pilot.pause()
            assert len(app._notifications) == 1, "refusals do not pile up"
            assert app.screen is before
            assert not isinstance(app.screen, LaunchScreen)

    @pytest.mark.parametrize("foreign", [False, True])
    async def test_every_key_that_does_something_is_hidden_and_refused(
        self, held_gpus: Path, make_app: MakeApp, refused: Sent, foreign: bool
    ) -> None:
        if foreign:
            app = make_app(watched=fake_foreign.healthy().foreign, readonly=True)
        else:
            fake_home.two_cpu_ranks(held_gpus)
            app = make_app("mlp-cpu", readonly=True)
        async with running(app, (160, 40)) as (app, pilot):
            assert "read-only" in shown(app).splitlines()[0]
            for hidden in ("Stop", "Kill", "Restart", "Launch"):
                assert hidden not in keys_shown(app)
            await self._refuses(pilot, "sKrn" if foreign else "sKrnt")
        assert refused.plans == []

    async def test_the_overview_as_well(
        self, held_gpus: Path, make_app: MakeApp, refused: Sent
    ) -> None:
        fake_home.failed_job(held_gpus)
        async with running(make_app(readonly=True)) as (app, pilot):
            assert "Remove" not in keys_shown(app)
            await self._refuses(pilot, "nxR")
            titles = offered(app)
            assert "Open" in titles
            assert not titles & {"Stop", "Kill", "Launch", "Remove", "Launch again"}
