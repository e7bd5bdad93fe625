"""The app as a user uses it, on run folders in the real formats."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from ddptop.sources.past import StoryQuery
from ddptop.sources.query import Answered
from ddptop.tui import launching
from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens import base
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.launch import GpuChoice, LaunchScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.widgets.jobs import JobsTable
from ddptop.tui.widgets.lines import LinesView
from tests.support import fake_gpus, fake_home
from tests.support.driving import look, running, settle, shown, until
from textual import events
from textual.geometry import Size
from textual.widgets import Input, Static

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.devices import hardware
from ddptop_runner.model.snapshot import Cause

MakeApp = Callable[..., DdptopApp]


class TestOverview:
    def test_before_the_first_update_nothing_is_shown_about_jobs(self) -> None:
        assert JobsTable().empty.startswith("looking for jobs")

    async def test_the_cursor_stays_on_its_job(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.two_cpu_ranks(frozen)
        fake_home.finished_job(frozen)
        async with running(make_app(), (80, 24)) as (app, pilot):
            await pilot.press("j")
            assert app.screen.jobs.cursor_key == "resnet-a"
            fake_home.failed_job(frozen)  # comes in between
            await look(pilot)
            assert app.screen.jobs.cursor_key == "resnet-a"

    async def test_a_damaged_job_does_not_hide_the_others(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        broken = fake_home.finished_job(frozen)
        broken.spec_file.write_text("{")
        async with running(make_app(), (80, 24)) as (app, _):
            assert "mlp-cpu" in shown(app)
            assert "be read: resnet-a" in shown(app)
            assert app.screen.jobs.cursor_key == "mlp-cpu"


class TestLaunch:
    async def test_a_form_without_devices(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        launched: list[launching.LaunchForm] = []

        def launch(form: launching.LaunchForm, before: object) -> str:
            assert before is None
            launched.append(form)
            if len(launched) == 1:
                raise DdptopError("there is no script [nope].py in /", "check the path")
            return "mlp-cpu"

        monkeypatch.setattr(launching, "launch", launch)
        monkeypatch.setattr(hardware, "exists", lambda: True)
        async with running(make_app(), (80, 24)) as (app, pilot):
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
            await look(pilot, 2)
            form = app.screen
            command, error = form.query_one("#command", Static), form.query_one("#error", Static)
            assert "none found: " in str(form.query_one("#no-gpus", Static).content)
            await pilot.press(*"[nope].py")
            assert str(command.content) == "$ ddptop launch '[nope].py'"
            await pilot.press("ctrl+l")
            assert str(error.content) == "number of ranks is required when no GPUs are selected"
            assert form.focused is form.query_one("#nproc")
            assert launched == []
            form.query_one("#nproc", Input).value = "2"
            await pilot.pause()
            assert str(command.content) == "$ ddptop launch --nproc 2 '[nope].py'"
            await pilot.press("ctrl+l")
            await until(pilot, lambda: "no script" in str(error.content))
            assert str(error.content) == "there is no script [nope].py in /; check the path"
            await pilot.press("ctrl+l")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            assert app.screen.job == "mlp-cpu"

    async def test_free_devices_are_chosen_and_space_changes_that(
        self, eight_gpus: Path, make_app: MakeApp
    ) -> None:
        async with running(make_app()) as (app, pilot):
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
            choice = app.screen.query_one(GpuChoice)
            await look(pilot, 2)
            assert choice.selected == (4, 5, 6, 7)
            choice.focus()
            await pilot.press("G", "space", "k", "space")
            assert choice.selected == (4, 5)
            command = app.screen.query_one("#command", Static)
            assert str(command.content) == "$ ddptop launch --gpus 4-5 SCRIPT"
            await look(pilot, 2)
            assert choice.selected == (4, 5), "a new look must not undo the choice"


class TestDevices:
    async def test_they_are_sampled_only_while_they_are_seen(
        self, eight_gpus: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(eight_gpus)
        app = make_app()
        async with app.run_test(size=(120, 40)) as pilot:
            await look(pilot, 2)
            await until(pilot, lambda: fake_gpus.FrozenFeed.running == 1)
            assert "bob: python eval.py" in shown(app)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            await settle(pilot)
            await until(pilot, lambda: fake_gpus.FrozenFeed.running == 0)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
            await look(pilot, 2)
            await until(pilot, lambda: fake_gpus.FrozenFeed.running == 1)
        assert fake_gpus.FrozenFeed.running == 0

    async def test_a_job_s_fresh_snapshot_speaks_for_its_devices(
        self, eight_gpus: Path, make_app: MakeApp
    ) -> None:
        fake_gpus.eight_gpu_ranks(eight_gpus)
        app = make_app()
        async with app.run_test(size=(120, 40)) as pilot:
            await look(pilot, 6)
            assert "llama-ft rank 5" in shown(app)
            assert "bob" not in shown(app)
            await until(pilot, lambda: fake_gpus.FrozenFeed.running == 0)


class TestProgram:
    async def test_a_tick_keeps_no_widgets_and_draws_nothing_that_did_not_change(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with running(app) as (app, pilot):
            widgets = len(app.screen.query("*"))
            drawn: list[object] = []
            for view in app.screen.query(LinesView):
                view.refresh = lambda *regions, view=view, **_: drawn.append(view)  # type: ignore[method-assign]
            await look(pilot, 5)
            assert len(app.screen.query("*")) == widgets
            assert drawn == []

    async def test_a_defect_of_the_collector_ends_the_program_with_words(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running(make_app(), (80, 24)) as (app, pilot):
            monkeypatch.setattr(app.collector, "answer", lambda query: 1 / 0)
            app.collector.ask()
            await until(pilot, lambda: app._exit)
        assert app.return_code == 1

    async def test_an_older_size_of_the_terminal_does_not_stay(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ddptop.tui import app as module

        told = SimpleNamespace(get_terminal_size=lambda _: (100, 30))
        monkeypatch.setattr(module, "_is_terminal", lambda: True)
        monkeypatch.setattr(module, "CHECK_TERMINAL_S", 0.1)
        monkeypatch.setattr(module, "shutil", told)  # others call the real one too
        async with running(make_app(), (60, 18)) as (app, pilot):
            await until(pilot, lambda: app.screen.size == (100, 30))
            told.get_terminal_size = lambda unknown: unknown
            app.post_message(events.Resize(Size(70, 20), Size(70, 20)))
            await until(pilot, lambda: app.screen.size == (70, 20))
            await pilot.pause(0.5)
            assert app.screen.size == (70, 20), "a size that is not known was taken"

    async def test_continuing_job_shows_why_an_attempt_failed(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        now, before = (
            Cause(kind="signal", rank=rank, summary=f"Rank {rank} was killed.", evidence="ev")
            for rank in (1, 0)
        )

        def comes(state: str, started_s: float, cause: Cause | None = None) -> None:
            started = fake_home.ago(started_s)
            fake_home.change(
                folder,
                state=state,
                attempt=1,
                attempt_started_at=started,
                cause=cause,
                previous_cause=before,
            )

        comes("restarting", 900, now)
        app = make_app("mlp-cpu")
        async with running(app, (80, 24)) as (app, pilot):
            assert "attempt 1 failed: Rank 1 was killed.   i: evidence" in shown(app)
            for state, started_s in (("starting", 900), ("running", 299)):
                comes(state, started_s)
                await look(pilot, 2)
                assert "attempt 0 failed: Rank 0 was killed.   i: evidence" in shown(app)
            comes("running", 301)
            await look(pilot, 2)
            assert "failed" not in shown(app)

    async def test_an_answer_to_another_screen_is_not_shown(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.failed_job(frozen)
        app = make_app("vit-base")
        async with running(app, (80, 24)) as (app, _):
            shown_now = app.monitor.answer
            query = StoryQuery(job="vit-base", viewer=app.monitor.viewer + 1)
            app.on_answered(Answered(app.collector.answer(query)))
            assert app.monitor.answer is shown_now

    @pytest.mark.parametrize("is_slow", [False, True])
    async def test_the_first_frame_waits_for_an_answer_but_not_for_a_slow_one(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, is_slow: bool
    ) -> None:
        monkeypatch.setattr(base, "HELD_S", 0.01 if is_slow else 3600.0)
        fake_home.two_cpu_ranks(frozen)
        app, go = make_app(), threading.Event()
        drawn, display, answer = [], app._display, app.collector.answer

        def note(screen, renderable):
            if isinstance(screen, OverviewScreen):
                drawn.append(screen.answer is not None)
            display(screen, renderable)

        monkeypatch.setattr(app, "_display", note)
        if is_slow:
            monkeypatch.setattr(
                app.collector, "answer", lambda query: go.wait(60) and answer(query)
            )
        async with app.run_test() as pilot:
            await until(pilot, lambda: drawn)
            go.set()
            await until(pilot, lambda: drawn[-1])
        assert drawn[0] is not is_slow

    async def test_the_first_look_is_for_what_it_was_opened_on(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.failed_job(frozen)
        app = make_app(opening=ScreenWanted("story", "vit-base"))
        asked = []
        answer = app.collector.answer
        monkeypatch.setattr(
            app.collector, "answer", lambda query: asked.append(query) or answer(query)
        )
        async with app.run_test() as pilot:
            await until(pilot, lambda: asked)
        assert isinstance(asked[0], StoryQuery)


@pytest.mark.parametrize(
    ("keys", "screen"),
    [
        (("n",), "LaunchScreen"),
        (("s",), "ConfirmScreen"),
        (("ctrl+p", "x"), "Palette"),
    ],
)
async def test_ddptop_can_be_left_from_whatever_lies_on_top(
    frozen: Path, make_app: MakeApp, keys: tuple[str, ...], screen: str
) -> None:
    fake_home.two_cpu_ranks(frozen)
    app = make_app()
    async with running(app) as (app, pilot):
        await pilot.press(*keys)
        await until(pilot, lambda: type(app.screen).__name__ == screen)
        await pilot.press("ctrl+q")
        assert app._exit
