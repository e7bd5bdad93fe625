"""The app as a person uses it, on run folders of the real formats."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddptop.tui import launching
from ddptop.tui.app import DdptopApp
from ddptop.tui.render.text import plain
from ddptop.tui.screens.confirm import ConfirmScreen
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.launch import LaunchScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.screens.sections import SectionsScreen
from ddptop.tui.widgets.gpu_choice import GpuChoice
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.log_view import LogView
from ddptop.tui.widgets.loss_chart import LossChart
from tests.tui import fake_home
from tests.tui.driving import look, settle, until
from textual.widgets import Input, Static

from ddptop_runner import commands
from ddptop_runner.errors import ControlError, DdptopError
from ddptop_runner.model import Cause, Checkpoint
from ddptop_runner.registry import JobView
from ddptop_runner.saves import wanted

MakeApp = Callable[..., DdptopApp]


def shown(app: DdptopApp) -> str:
    """The text of every line widget of the screen."""
    views = app.screen.query(LinesView)
    return "\n".join(plain(line) for view in views if view.display for line in view._lines)


class Calls:
    """Stands at the seam between interface and engine, and remembers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        self.error: DdptopError | None = None
        for name in ("stop", "kill", "restart_group", "remove"):
            monkeypatch.setattr(commands, name, self._stand_in(name))

    def _stand_in(self, name: str) -> Callable[..., None]:
        def call(view: JobView, **_: Any) -> None:
            self.made.append((name, view.job))
            if self.error is not None:
                raise self.error

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


class TestOverview:
    async def test_live_jobs_come_first_and_enter_opens_one(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.finished_job(frozen)
        fake_home.two_cpu_ranks(frozen)
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            overview = app.screen
            assert isinstance(overview, OverviewScreen)
            assert overview.jobs.cursor_key == "mlp-cpu"
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            await settle(pilot)
            assert "step 2,261" in shown(app)
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is overview)

    async def test_without_jobs_it_says_what_to_do(self, frozen: Path, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            assert "no jobs yet" in shown(app)
            assert "ddptop launch --gpus all train.py" in shown(app)
            assert "libnvidia-ml.so.1 was not found" in shown(app)

    async def test_the_cursor_stays_on_its_job(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.two_cpu_ranks(frozen)
        fake_home.finished_job(frozen)
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
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
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            assert "mlp-cpu" in shown(app)
            assert "resnet-a" not in shown(app)

    async def test_q_leaves(self, frozen: Path, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            await pilot.press("q")
        assert app.return_code == 0


class TestOperations:
    KEYS = [
        ("s", "stop", "SIGTERM to all 2 ranks"),
        ("K", "kill", "SIGKILL to all 2 ranks"),
        ("r", "restart_group", "A group restart"),
    ]

    @pytest.mark.parametrize(("key", "command", "effect"), KEYS)
    async def test_nothing_happens_before_the_answer(
        self,
        frozen: Path,
        make_app: MakeApp,
        calls: Calls,
        key: str,
        command: str,
        effect: str,
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            await settle(pilot)
            for answer in ("enter", "n", "escape"):  # enter is on the button that says no
                await pilot.press(key)
                await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
                assert effect in str(app.screen.query_one(".effect", Static).content)
                await pilot.press(answer)
                await until(pilot, lambda: isinstance(app.screen, JobScreen))
            assert calls.made == []
            await pilot.press(key)
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("y")
            await until(pilot, lambda: calls.made)
            assert calls.made == [(command, "mlp-cpu")]

    async def test_saving_is_asked_for_at_once_and_its_end_is_told(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        answered: list[Callable[[], bool]] = []
        saved = Checkpoint(path="/run/[a].pt", at=fake_home.NOW, step=120)

        def wait(view: JobView, asked: object, *, is_left: Callable[[], bool]) -> Checkpoint:
            answered.append(is_left)
            while len(answered) < 2 and not is_left():
                time.sleep(0.01)
            return saved

        monkeypatch.setattr(wanted, "ask", lambda view: view.job)
        monkeypatch.setattr(wanted, "wait", wait)
        app = make_app("mlp-cpu")
        async with app.run_test(notifications=True) as pilot:
            await settle(pilot)
            await pilot.press("c")
            await until(pilot, lambda: answered)
            assert isinstance(app.screen, JobScreen)
            (toast,) = app._notifications
            assert toast.message == "mlp-cpu is asked to save; a checkpoint is waited for"
            answered.append(lambda: True)
            await until(pilot, lambda: len(app._notifications) > 1)
            assert [toast.message for toast in app._notifications][1:] == [
                "mlp-cpu saved at step 120: /run/[a].pt"
            ]
            answered.clear()
            await pilot.press("c")
            await until(pilot, lambda: answered)
        assert answered[0](), "whoever leaves waits for nothing"

    async def test_a_refusal_is_shown_with_its_hint(
        self, frozen: Path, make_app: MakeApp, calls: Calls
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        calls.error = ControlError("the supervisor [x] did not answer", "see supervisor.log")
        app = make_app("mlp-cpu")
        async with app.run_test(notifications=True) as pilot:
            await settle(pilot)
            await pilot.press("s")
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            await pilot.press("y")
            await until(pilot, lambda: len(app._notifications))
            (toast,) = app._notifications
            assert toast.message == "the supervisor [x] did not answer\nsee supervisor.log"
            assert toast.severity == "error"

    async def test_an_ended_job_is_not_stopped_but_started_again(
        self,
        frozen: Path,
        make_app: MakeApp,
        calls: Calls,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        fake_home.failed_job(frozen)
        started: list[str] = []
        monkeypatch.setattr(launching, "restart_ended", started.append)
        app = make_app("vit-base")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("s")
            await pilot.pause()
            assert isinstance(app.screen, JobScreen)
            await pilot.press("R")
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            assert started == []
            await pilot.press("y")
            await until(pilot, lambda: started)
        assert (started, calls.made) == (["vit-base"], [])

    async def test_removing_asks_and_names_the_folder(
        self, frozen: Path, make_app: MakeApp, calls: Calls
    ) -> None:
        folder = fake_home.finished_job(frozen)
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
            assert str(folder.path) in str(app.screen.query_one(".effect", Static).content)
            assert calls.made == []
            await pilot.press("y")
            await until(pilot, lambda: calls.made == [("remove", "resnet-a")])

    async def test_leaving_touches_nothing(
        self, frozen: Path, make_app: MakeApp, calls: Calls
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("d")
        assert app.return_code == 0
        after = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
        assert calls.made == []
        assert {p for p in before if before[p] != after.get(p)} == set()


class TestJob:
    async def test_each_key_shows_its_page_and_escape_comes_back(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            chart, log = app.screen.query_one(LossChart), app.screen.query_one(LogView)
            for key, page in (("l", "log"), ("e", "events"), ("v", "devices")):
                await pilot.press(key)
                assert app.screen.page == page
                assert not chart.size.height
                assert bool(log.size.height) == (page == "log")
                await pilot.press("escape")
                assert app.screen.page == "main"
                await pilot.pause()
                assert chart.size.height

    async def test_a_small_terminal_shows_pages(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(pilot)
            assert "ranks and loss" in shown(app)
            assert not app.screen.query_one(LogView).size.height
            await pilot.press("l")
            await pilot.pause()
            assert app.screen.query_one(LogView).size.height > 10

    async def test_the_chosen_rank_s_log_is_followed(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            log = app.screen.log_view.lines
            assert log.lines[log.line_count - 1].startswith("epoch 3 step 395")
            with folder.log_file(0, 0).open("a") as file:
                file.write("\x1b[31m[bold]new[/bold]\x1b[2J line\n 50%|##\r100%|####")
            await look(pilot, 2)
            assert log.lines[log.line_count - 1] == "[bold]new[/bold] line"
            assert "100%|####" in shown(app)
            fake_home.write_log(folder, 0, 1, "only rank 1\n")
            await pilot.press("right_square_bracket")
            assert app.screen.ranks.rank == 1
            await look(pilot, 2)
            assert list(log.lines)[: log.line_count] == ["only rank 1"]
            assert "log of rank 1" in shown(app)

    async def test_a_log_begins_anew_for_a_new_viewer(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app()
        async with app.run_test(size=(120, 40)) as pilot:
            await look(pilot)
            for _ in range(2):
                await pilot.press("enter")
                await until(pilot, lambda: isinstance(app.screen, JobScreen))
                await settle(pilot)
                assert app.screen.log_view.lines.line_count == 80
                await pilot.press("escape")
                await until(pilot, lambda: isinstance(app.screen, OverviewScreen))

    async def test_a_failure_is_prominent_and_its_rank_chosen(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.failed_job(frozen)
        app = make_app("vit-base")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            assert app.screen.ranks.rank == 1
            assert "rank 1 failed first (exit 1)" in shown(app)
            assert "│ RuntimeError: shape '[64, 3, 224]' is invalid" in shown(app)
            await pilot.press("k")
            await look(pilot)
            assert app.screen.ranks.rank == 0, "the person's choice is not taken back"

    async def test_chart_keys(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            assert "loss, whole run" in shown(app)
            await pilot.press("a")
            assert "━ others" in shown(app)
            await pilot.press("y")
            assert "log axis" in shown(app)
            for _ in range(9):
                await pilot.press("plus")
            await look(pilot, 2)
            assert "loss, last 5m" in shown(app)
            await pilot.press("minus")
            await look(pilot, 2)
            assert "loss, whole run" in shown(app)

    async def test_old_figures_are_said(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        fake_home.change(folder, ts=fake_home.ago(42))
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            assert "figures are 42 s old" in shown(app)

    async def test_a_job_whose_processes_are_gone_is_lost(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        fake_home.change(folder, guardian=None)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            assert "? lost" in shown(app)

    async def test_a_job_that_is_removed_meanwhile(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_home.finished_job(frozen)
        app = make_app("resnet-a")
        async with app.run_test() as pilot:
            await settle(pilot)
            folder.spec_file.unlink()
            await look(pilot)
            assert "resnet-a is not there any more" in shown(app)

    async def test_a_job_without_snapshot_or_history(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.make_folder(frozen, fake_home.spec_of("young", 2, 3))
        app = make_app("young")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            assert "◔ starting" in shown(app)
            assert "no loss seen yet" in shown(app)
            assert "no rank has started" in shown(app)

    async def test_a_damaged_history_is_no_reason_to_fall(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        folder.history_db.write_bytes(b"not a database" * 100)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            assert "step 2,261" in shown(app)
            assert "not a readable history" in shown(app)

    async def test_q_leaves_from_the_first_job_and_o_goes_to_all(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("o")
            await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
            await look(pilot)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            await pilot.press("q")
            await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
        first = make_app("mlp-cpu")
        async with first.run_test() as pilot:
            await settle(pilot)
            await pilot.press("q")
        assert first.return_code == 0

    async def test_sixty_four_ranks_scroll(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        ranks = [
            fake_home.RankSample(rank=r, local_rank=r, host=fake_home.HOST, state="running")
            for r in range(64)
        ]
        fake_home.change(folder, ranks=ranks, world_size=64)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            assert "1-14 of 64" in shown(app)
            assert app.screen.query_one(LossChart).size.height >= 6
            await pilot.press("G")
            assert app.screen.ranks.rank == 63
            assert "51-64 of 64" in shown(app)


class TestStacks:
    async def test_of_a_live_job_they_are_asked_for(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        entries = [
            {"rank": 0, "pid": 4100, "text": "File [x]\x1b[2J, line 3", "note": None},
            {"rank": 1, "pid": None, "text": None, "note": "the rank has ended"},
        ]
        monkeypatch.setattr(commands, "stacks", lambda view: {"stacks": entries})
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("t")
            await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
            await until(pilot, lambda: len(app.screen.query(".text")) == 2)
            texts = [str(static.content) for static in app.screen.query(Static)]
            assert "File [x], line 3" in texts
            assert "no stacks: the rank has ended" in texts

    async def test_of_an_ended_job_the_evidence_is_read(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.failed_job(frozen)
        app = make_app("vit-base")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("t")
            await until(pilot, lambda: len(app.screen.query(".text")) == 4)
            texts = [str(static.content) for static in app.screen.query(Static)]
            assert any('File "train.py", line 81 in step' in text for text in texts)

    async def test_everything_kept_at_the_failure_is_one_key_away(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.failed_job(frozen)
        kept = folder.evidence_dir / "attempt-2-failure"
        (kept / "tail-rank-3.txt").write_text("loss \x1b[31mred\n")
        (folder.evidence_dir / "attempt-0-hang").mkdir()
        os.utime(folder.evidence_dir / "attempt-0-hang", (1, 1))
        app = make_app("vit-base")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("i")
            await until(pilot, lambda: len(app.screen.query(".text")) == 7)
            heads = [str(static.content) for static in app.screen.query(".head").results(Static)]
            assert heads[0].startswith("attempt-2-failure, in ")
            assert heads[1] == "stacks-rank-0.txt"
            assert heads[-2:] == ["tail-rank-3.txt", "kept before"]
            texts = [str(static.content) for static in app.screen.query(".text").results(Static)]
            assert texts[-2:] == ["loss red", str(folder.evidence_dir / "attempt-0-hang")]
            await pilot.press("i")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))

    async def test_none_is_said(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.finished_job(frozen)
        app = make_app("resnet-a")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("t")
            await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
            await until(pilot, lambda: app.screen.query(".text"))
            texts = [str(static.content) for static in app.screen.query(Static)]
            assert "resnet-a left no stacks" in texts


class TestLaunch:
    async def test_a_form_without_devices(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        launched: list[launching.LaunchForm] = []

        def launch(form: launching.LaunchForm) -> str:
            launched.append(form)
            if len(launched) == 1:
                raise DdptopError("there is no script [nope].py in /", "check the path")
            return "mlp-cpu"

        monkeypatch.setattr(launching, "launch", launch)
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
            await look(pilot, 2)
            form = app.screen
            command, error = form.query_one("#command", Static), form.query_one("#error", Static)
            assert "none known: " in str(form.query_one("#no-gpus", Static).content)
            await pilot.press(*"[nope].py")
            assert str(command.content) == "$ ddptop launch '[nope].py'"
            await pilot.press("ctrl+l")
            assert str(error.content) == "how many ranks? (no GPU is chosen)"
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
        app = make_app()
        async with app.run_test(size=(120, 40)) as pilot:
            await look(pilot)
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
            choice = app.screen.query_one(GpuChoice)
            await look(pilot, 2)
            assert choice.chosen == (4, 5, 6, 7)
            choice.focus()
            await pilot.press("G", "space", "k", "space")
            assert choice.chosen == (4, 5)
            command = app.screen.query_one("#command", Static)
            assert str(command.content) == "$ ddptop launch --gpus 4-5 SCRIPT"
            await look(pilot, 2)
            assert choice.chosen == (4, 5), "a new look must not undo the choice"

    async def test_tab_completes_a_path(
        self, frozen: Path, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "train.py").touch()
        monkeypatch.chdir(tmp_path)
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            await pilot.press("n")
            await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
            script = app.screen.query_one("#script", Input)
            await pilot.press("t", "r")
            await until(pilot, lambda: script._suggestion == "train.py")
            await pilot.press("tab")
            assert script.value == "train.py"
            assert app.focused is script
            await pilot.press("tab")
            assert app.focused is app.screen.query_one("#arguments")


class TestDevices:
    async def test_they_are_sampled_only_while_they_are_seen(
        self, eight_gpus: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(eight_gpus)
        app = make_app()
        async with app.run_test(size=(120, 40)) as pilot:
            await look(pilot, 2)
            await until(pilot, lambda: fake_home.FrozenFeed.running == 1)
            assert "bob: python eval.py" in shown(app)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            await settle(pilot)
            await until(pilot, lambda: fake_home.FrozenFeed.running == 0)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
            await look(pilot, 2)
            await until(pilot, lambda: fake_home.FrozenFeed.running == 1)
        assert fake_home.FrozenFeed.running == 0

    async def test_a_job_s_fresh_snapshot_speaks_for_its_devices(
        self, eight_gpus: Path, make_app: MakeApp
    ) -> None:
        fake_home.eight_gpu_ranks(eight_gpus)
        app = make_app()
        async with app.run_test(size=(120, 40)) as pilot:
            await look(pilot, 6)
            assert "llama-ft rank 5" in shown(app)
            assert "bob" not in shown(app)
            await until(pilot, lambda: fake_home.FrozenFeed.running == 0)


class TestProgram:
    async def test_help_and_palette(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))
            assert "group restart" in shown(app)
            await pilot.press("q")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            titles = {command.title for command in app.get_system_commands(app.screen)}
            assert {"Stop", "Kill", "Restart", "Stacks", "Theme", "Quit"} <= titles

    async def test_a_tick_keeps_no_widgets_and_draws_nothing_that_did_not_change(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
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
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            monkeypatch.setattr(app.collector, "look", lambda wish: 1 / 0)
            app.collector.ask()
            await until(pilot, lambda: app._exit)
        assert app.return_code == 1

    async def test_a_terminal_that_is_gone_ends_it(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ddptop.tui import app as module

        monkeypatch.setattr(module, "_is_terminal", lambda: True)
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            monkeypatch.setattr(module, "_is_terminal", lambda: False)
            await until(pilot, lambda: app._exit)
        assert app.return_code == 1

    async def test_without_a_terminal_at_the_start_there_is_none_to_lose(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        app = make_app()
        async with app.run_test() as pilot:
            await look(pilot)
            await pilot.pause(1.2)
            assert not app._exit

    @pytest.mark.parametrize("theme", ["ddptop", "ddptop-light", "nord", "ansi-dark"])
    async def test_any_theme_can_be_used(self, frozen: Path, make_app: MakeApp, theme: str) -> None:
        fake_home.two_cpu_ranks(frozen)
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            app.theme = theme
            await settle(pilot)
            assert "mlp-cpu" in shown(app)

    @pytest.mark.parametrize(
        ("state", "started_s", "words"),
        [
            ("restarting", 900, "attempt 1 failed: Rank 1 was killed."),
            ("starting", 900, "attempt 0 failed: Rank 0 was killed."),
            ("running", 299, "attempt 0 failed: Rank 0 was killed."),
            ("running", 301, None),
        ],
    )
    async def test_a_job_that_goes_on_says_why_an_attempt_failed(
        self, frozen: Path, make_app: MakeApp, state: str, started_s: float, words: str | None
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        now, before = (
            Cause(kind="signal", rank=rank, summary=f"Rank {rank} was killed.", evidence="ev")
            for rank in (1, 0)
        )
        fake_home.change(
            folder,
            state=state,
            attempt=1,
            attempt_started_at=fake_home.ago(started_s),
            cause=now if state == "restarting" else None,
            previous_cause=before,
        )
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            await settle(pilot)
            assert words is None or f"{words}   press i" in shown(app)
            assert words is not None or "failed" not in shown(app)

    def test_signals_are_left_alone(self) -> None:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
