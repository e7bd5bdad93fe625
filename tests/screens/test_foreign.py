"""Jobs that ddptop did not start, on the screens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from ddptop.job.record import foreign_job
from ddptop.sources import foreign as foreign_source
from ddptop.sources.foreign import ForeignSource
from ddptop.sources.history import ChartQuery
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.dialogs import SectionsScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.overview import OverviewScreen
from tests.support import fake_foreign, fake_home
from tests.support.driving import keys_shown, look, running, said, settle, shown, until
from tests.support.fake_foreign import FakeWorld
from tests.support.fake_home import NOW
from tests.support.fake_signals import Sent

from ddptop_runner.foreign import actions
from ddptop_runner.foreign.actions import SignalOutcome, SignalPlan
from ddptop_runner.model.snapshot import RankStacks
from ddptop_runner.store.history_reader import Series

MakeApp = Callable[..., DdptopApp]


class TestOverview:
    async def test_they_stand_among_ddptops_own_and_say_who_started_them(
        self, held_gpus: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(held_gpus)
        fake_foreign.healthy()
        fake_foreign.with_findings()
        async with running(make_app()) as (app, _):
            text = shown(app)
            rows = [text.index(f"{job} ") for job in ("mlp-cpu", "finetune.py:5100")]
            assert rows == sorted(rows), "own jobs come first"
            assert "alice: mp.spawn" in text
            assert "torchrun" in text
            assert "✗ 1 zombie" in text
            assert "2 not started by ddptop" in text
            assert "train.py:4711 rank 3" in text, "the holder of a sampled device"

    async def test_processes_that_cannot_be_inspected_are_listed_with_the_reason(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_foreign.unreadable()
        async with running(make_app()) as (app, pilot):
            assert "2 processes owned by bob cannot be inspected" in shown(app)
            assert "ddptop launch" in shown(app), "the way to start a job stays"
            await pilot.press("u")
            await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
            await pilot.pause()
            assert "pid 7001" in said(app)
            assert "run ddptop as bob or as root" in said(app)

    async def test_enter_opens_one_and_it_is_followed(
        self, held_gpus: Path, make_app: MakeApp
    ) -> None:
        view = fake_foreign.healthy()
        async with running(make_app()) as (app, pilot):
            assert FakeWorld.followed[-1] is None
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            await settle(pilot)
            assert FakeWorld.followed[-1] == view.job
            assert "not started by ddptop: torchrun, user root, pid 4711" in shown(app)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
            await settle(pilot)
            assert FakeWorld.followed[-1] is None

    async def test_the_screen_of_an_own_job_looks_for_none(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        async with running(make_app("mlp-cpu"), (80, 24)) as (_, pilot):
            FakeWorld.followed.clear()
            await look(pilot, 2)
            assert FakeWorld.followed == []


class TestJobScreen:
    async def test_ranks_output_losses_and_events_are_there(
        self, held_gpus: Path, make_app: MakeApp
    ) -> None:
        view = fake_foreign.healthy()
        async with running(make_app(watched=view.foreign)) as (app, pilot):
            text = shown(app)
            assert "/home/root/run.log" in text
            assert "2.1843 from the log" in text
            assert "torchrun --nproc-per-node 4 train.py" in text
            assert "first seen" in text, "the chart begins where watching began"
            assert "rank 3 is seen" in text
            assert "cuda:3" not in text, "it is GPU 3 of the machine as well"
            lines = app.screen.log_view.lines.lines
            assert lines[-1] == "step 1841 loss 2.0159"
            await pilot.press("]", "[")
            await settle(pilot)
            assert app.screen.log_view.lines.lines[-1] == "step 1841 loss 2.0159"

    async def test_what_else_it_prints_is_charted(self, held_gpus: Path, make_app: MakeApp) -> None:
        view = fake_foreign.healthy()
        losses = fake_foreign.falling_losses()[0]
        FakeWorld.scalars[view.job] = {"learning rate": losses, "validation loss": losses}
        async with running(make_app(watched=view.foreign), (160, 40)) as (app, pilot):
            assert "━ validation loss" in shown(app)
            await pilot.press("M", "M")
            await settle(pilot)
            assert "── learning rate, since first observed" in shown(app)

    async def test_one_that_goes_away_keeps_its_last_figures(
        self, held_gpus: Path, make_app: MakeApp
    ) -> None:
        view = fake_foreign.healthy()
        async with running(make_app(watched=view.foreign)) as (app, pilot):
            FakeWorld.views.clear()
            fake_foreign.gone()
            await settle(pilot)
            text = shown(app)
            assert "■ gone" in text
            assert "last known values" in text
            assert "2.1843 from the log" in text
            assert "exit status unknown (not started by ddptop)" in text
            assert "61.2 GiB" in text
            assert "Stop" not in keys_shown(app)
            await pilot.press("s")
            await until(pilot, lambda: "has ended" in said(app))
            assert "R starts it again" not in said(app)

    async def test_job_stopped_from_here_says_so(
        self, held_gpus: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def send(plan: SignalPlan) -> SignalOutcome:
            FakeWorld.views.clear()
            fake_foreign.gone()
            return SignalOutcome("gone", ended_by="SIGINT")

        Sent(monkeypatch)
        monkeypatch.setattr(actions, "send", send)
        view = fake_foreign.healthy()
        async with running(make_app(watched=view.foreign)) as (app, pilot):
            await pilot.press("s", "y")
            await until(pilot, lambda: "exited after ddptop sent SIGINT" in shown(app))
            assert "nobody saw how" not in shown(app)

    async def test_signals_that_are_under_way_are_said_until_they_are_over(
        self, held_gpus: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        over = threading.Event()

        def send(plan: SignalPlan) -> SignalOutcome:
            assert over.wait(30)
            return SignalOutcome("pid 7 survived SIGKILL", (7,))

        Sent(monkeypatch)
        monkeypatch.setattr(actions, "send", send)
        async with running(make_app(watched=fake_foreign.healthy().foreign), (80, 24)) as (
            app,
            pilot,
        ):
            assert "● running" in shown(app)
            await pilot.press("s", "y")
            try:
                await until(pilot, lambda: "◌ stopping" in shown(app))
                assert "SIGINT sent at " in shown(app)
            finally:
                over.set()
            await until(pilot, lambda: "◌ stopping" not in shown(app))
            assert "SIGINT sent at " not in shown(app)
            assert "survived SIGKILL" in said(app)

    async def test_only_stop_and_kill_are_offered(self, held_gpus: Path, make_app: MakeApp) -> None:
        view = fake_foreign.healthy()
        async with running(make_app(watched=view.foreign), (160, 40)) as (app, pilot):
            assert "s Stop" in keys_shown(app)
            assert "K Kill" in keys_shown(app)
            for absent in ("Restart", "Launch again", "Remove"):
                assert absent not in keys_shown(app)
            await pilot.press("r")
            await until(pilot, lambda: "ddptop did not start" in said(app))

    async def test_stacks_come_from_outside(
        self, held_gpus: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            actions,
            "read_stacks",
            lambda ranks: [
                RankStacks(rank=r.rank, pid=r.pid, text="train.py:8 in step") for r in ranks
            ],
        )
        view = fake_foreign.healthy()
        async with running(make_app(watched=view.foreign, readonly=True), (80, 24)) as (app, pilot):
            await pilot.press("t")
            await until(pilot, lambda: "train.py:8 in step" in said(app))
            assert "ranks 0-3" in said(app)
            assert "py-spy" in said(app)


class TestSource:
    def test_processes_are_scanned_less_often_than_known_ones_are_polled(
        self, frozen: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [100.0]
        monkeypatch.setattr(foreign_source, "boottime_s", lambda: clock[0])
        source = ForeignSource()
        for _ in range(5):
            source.read([], NOW, None)
            clock[0] += 1.0
        assert FakeWorld.takes == 2
        assert len(FakeWorld.followed) == 5

    def test_a_new_viewer_gets_the_output_from_its_first_lines(self, frozen: Path) -> None:
        view = fake_foreign.healthy()
        source = ForeignSource()
        first = source.log(foreign_job(view), 0, viewer=1)
        assert first is not None
        assert first.restarted
        assert source.log(foreign_job(view), 0, viewer=1) is None
        again = source.log(foreign_job(view), 0, viewer=2)
        assert again is not None
        assert again.restarted
        assert again.lines == first.lines

    def test_a_chart_that_looks_the_same_is_the_same_object(self, frozen: Path) -> None:
        view = fake_foreign.healthy()
        source = ForeignSource()
        query = ChartQuery()
        first = source.chart(foreign_job(view), query, NOW.timestamp())
        assert first.watched
        assert source.chart(foreign_job(view), query, NOW.timestamp() + 0.5) is first
        wider = msgspec.structs.replace(query, span=300.0)
        assert source.chart(foreign_job(view), wider, NOW.timestamp() + 0.5) is not first

    def test_the_trend_is_that_of_the_last_tenth_of_the_run(self, frozen: Path) -> None:
        view = fake_foreign.healthy()
        FakeWorld.losses[view.job] = rising(int(NOW.timestamp()) - 30, 1)
        FakeWorld.by_step[view.job] = {0: series(range(0, 4001, 10), lambda at: 5.2 - at / 1000)}
        trend = ForeignSource().recent(foreign_job(view), NOW.timestamp()).trend
        assert trend is not None
        assert (trend.way, trend.span) == ("falling", "400 steps")

    def test_seconds_of_a_run_of_an_hour_are_no_trend(self, frozen: Path) -> None:
        view = fake_foreign.healthy()
        FakeWorld.losses[view.job] = rising(int(NOW.timestamp()) - 30, 1)
        assert ForeignSource().recent(foreign_job(view), NOW.timestamp()).trend is None
        FakeWorld.losses[view.job] = rising(int(NOW.timestamp()) - 600, 20)
        trend = ForeignSource().recent(foreign_job(view), NOW.timestamp()).trend
        assert trend is not None and trend.way == "rising"


class TestLossesOfBefore:
    async def test_the_chart_shows_them_by_step(self, frozen: Path, make_app: MakeApp) -> None:
        view = fake_foreign.healthy()
        FakeWorld.by_step[view.job] = {0: series(range(10, 4001, 10), lambda at: 5.2 - at / 1000)}
        async with running(make_app(watched=view.foreign)) as (app, pilot):
            assert "loss, whole run, by step" in shown(app)
            assert " 500  " in shown(app)
            await pilot.press("b")
            await settle(pilot)
            assert "loss, since first observed" in shown(app)
            await pilot.press("b", "plus")
            await settle(pilot)
            assert "loss, 2,000 steps, by step" in shown(app)
            assert " 500  " not in shown(app)


def series(places: range, loss: Callable[[int], float]) -> Series:
    values = [loss(at) for at in places]
    return Series(
        t=list(places), min=values, mean=values, max=values, last=values, bucket_s=places.step
    )


def rising(since: int, every_s: int) -> dict[int, Series]:
    return {0: series(range(since, since + 30 * every_s, every_s), lambda at: 1 + at % 10_000)}
