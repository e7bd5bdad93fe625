"""What a user can do to a job from the screens: dialogs, commands, and stacks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ddptop.tui import launching
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.dialogs import ConfirmScreen, SectionsScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.launch import LaunchScreen
from tests.support import fake_home
from tests.support.driving import running, said, settle, until
from textual.screen import Screen
from textual.widgets import Static

from ddptop_runner.base.errors import ControlError, DdptopError
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import checkpoint as wanted
from ddptop_runner.jobs import commands, profile
from ddptop_runner.model.snapshot import Checkpoint, RankStacks

MakeApp = Callable[..., DdptopApp]


def command_shown(form: Screen[object]) -> str:
    return str(form.query_one("#command", Static).content)


class Calls:
    """Replaces the engine's operations, and records calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str]] = []
        self.error: DdptopError | None = None
        for name in ("stop", "restart_group", "remove"):
            monkeypatch.setattr(commands, name, self._stand_in(name))

    def _stand_in(self, name: str) -> Callable[..., None]:
        def call(view: JobView, grace_s: float = 30.0, **_: Any) -> None:
            self.made.append((name if grace_s else "kill", view.job))
            if self.error is not None:
                raise self.error

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


class TestOperations:
    KEYS = [
        ("s", "stop", "SIGTERM to both ranks"),
        ("K", "kill", "SIGKILL to both ranks"),
        ("r", "restart_group", "A group restart"),
    ]

    async def test_nothing_happens_before_the_answer(
        self, frozen: Path, make_app: MakeApp, calls: Calls
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        async with running(make_app("mlp-cpu"), (80, 24)) as (app, pilot):
            for key, command, effect in self.KEYS:
                for answer in ("enter", "n", "escape"):  # the focus is on the button that says no
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
                await until(pilot, lambda: isinstance(app.screen, JobScreen))
                calls.made.clear()

    async def test_saving_is_asked_for_at_once_and_its_end_is_told(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        answered: list[Callable[[], bool]] = []
        saved = wanted.Saved(Checkpoint(path="/run/[a].pt", at=fake_home.NOW, step=120), True)

        def wait(view: JobView, asked: object, *, is_cancelled: Callable[[], bool]) -> wanted.Saved:
            answered.append(is_cancelled)
            while len(answered) < 2 and not is_cancelled():
                time.sleep(0.01)
            return saved

        monkeypatch.setattr(wanted, "ask", lambda view: view.job)
        monkeypatch.setattr(wanted, "wait", wait)
        async with running(make_app("mlp-cpu"), (80, 24), notifications=True) as (app, pilot):
            await pilot.press("c")
            await until(pilot, lambda: answered)
            assert isinstance(app.screen, JobScreen)
            (toast,) = app._notifications
            assert toast.message == "asked mlp-cpu to save a checkpoint; waiting for it to finish"
            answered.append(lambda: True)
            await until(pilot, lambda: len(app._notifications) > 1)
            assert [toast.message for toast in app._notifications][1:] == [
                "mlp-cpu saved a checkpoint at step 120: /run/[a].pt"
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
        async with running(make_app("mlp-cpu"), (80, 24), notifications=True) as (app, pilot):
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
        started: list[list[str]] = []

        def run_cli(argv: list[str]) -> str:
            started.append(argv)
            return "vit-base\n"

        monkeypatch.setattr(launching, "run_cli", run_cli)
        async with running(make_app("vit-base"), (80, 24)) as (app, pilot):
            await pilot.press("s")
            await pilot.pause()
            assert isinstance(app.screen, JobScreen)
            await pilot.press("R")
            await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
            form = app.screen
            assert "unchanged: a new attempt of vit-base" in command_shown(form)
            await pilot.press("ctrl+l")
            await until(pilot, lambda: started and app.screen is not form)
            assert started.pop() == ["restart", "vit-base"]
            await pilot.press("R")
            await until(pilot, lambda: isinstance(app.screen, LaunchScreen))
            await pilot.press("end", *" --lr 1")
            form = app.screen
            await until(pilot, lambda: "vit-base keeps its logs" in command_shown(form))
            await pilot.press("ctrl+l")
            await until(pilot, lambda: started)
        (argv,) = started
        assert argv[:2] == ["launch", "-d"] and argv[argv.index("--name") + 1] == "vit-base"
        assert argv[-5:] == ["train.py", "--data", "/data/imagenet", "--lr", "1"]
        assert calls.made == []

    async def test_removing_asks_and_names_the_folder(
        self, frozen: Path, make_app: MakeApp, calls: Calls
    ) -> None:
        folder = fake_home.finished_job(frozen)
        async with running(make_app(), (80, 24)) as (app, pilot):
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
        async with running(make_app("mlp-cpu"), (80, 24)) as (app, pilot):
            await pilot.press("d")
        assert app.return_code == 0
        after = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
        assert calls.made == []
        assert {p for p in before if before[p] != after.get(p)} == set()


class TestStacks:
    async def test_of_a_live_job_they_are_asked_for(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        entries = [
            RankStacks(rank=0, pid=4100, text="File [x]\x1b[2J, line 3"),
            RankStacks(rank=1, note="the rank has ended"),
        ]
        monkeypatch.setattr(commands, "stacks", lambda view, rank: entries)
        async with running(make_app("mlp-cpu"), (80, 24)) as (app, pilot):
            await pilot.press("t")
            await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
            await until(pilot, lambda: len(app.screen.query(".text")) == 2)
            texts = [str(static.content) for static in app.screen.query(Static)]
            assert "File [x], line 3" in texts
            assert "no stacks: the rank has ended" in texts

    async def test_a_profile_is_asked_for(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        asked: list[tuple[int, ...]] = []

        def take(view: JobView, ranks: tuple[int, ...], *_: object) -> dict[int, Path]:
            asked.append(ranks)
            raise ControlError("rank 1 was not profiled: no counters")

        monkeypatch.setattr(profile, "take", take)
        app = make_app("mlp-cpu")
        async with app.run_test() as pilot:
            await settle(pilot)
            await pilot.press("P")
            await until(pilot, lambda: len(app.screen.query(".head")) == 1)
            texts = [str(static.content) for static in app.screen.query(Static)]
            assert "rank 1 was not profiled: no counters" in texts
            await pilot.press("P", "enter")
            await settle(pilot)
            await pilot.press("P")
            await until(pilot, lambda: asked == [(), (0,)])

    async def test_who_left_before_they_came_goes_on(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        may_answer = threading.Event()

        def stacks(view: JobView, rank: int | None) -> list[RankStacks]:
            may_answer.wait(20.0)
            return [RankStacks(rank=0, pid=4100, text="File x")]

        monkeypatch.setattr(commands, "stacks", stacks)
        async with running(make_app("mlp-cpu"), (80, 24)) as (app, pilot):
            await pilot.press("t")
            await until(pilot, lambda: isinstance(app.screen, SectionsScreen))
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
            may_answer.set()
            await until(pilot, lambda: all(worker.is_finished for worker in app.workers))
            await settle(pilot)
            assert isinstance(app.screen, JobScreen)

    async def test_of_an_ended_job_the_evidence_is_read(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.failed_job(frozen)
        async with running(make_app("vit-base"), (80, 24)) as (app, pilot):
            await pilot.press("t")
            await until(pilot, lambda: len(app.screen.query(".text")) == 4)
            texts = [str(static.content) for static in app.screen.query(Static)]
            assert any(text.startswith("at      train.py:81 in step") for text in texts)

    async def test_everything_kept_at_the_failure_is_one_key_away(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.failed_job(frozen)
        kept = folder.evidence_dir / "attempt-2-failure"
        (kept / "tail-rank-3.txt").write_text("loss \x1b[31mred\n")
        (folder.evidence_dir / "attempt-0-hang").mkdir()
        os.utime(folder.evidence_dir / "attempt-0-hang", (1, 1))
        async with running(make_app("vit-base"), (80, 24)) as (app, pilot):
            await pilot.press("i")
            await until(pilot, lambda: len(app.screen.query(".text")) == 7)
            heads = [str(static.content) for static in app.screen.query(".head").results(Static)]
            assert heads[0] == "stacks-rank-0.txt", "what there is to read comes first"
            assert heads[-3] == "tail-rank-3.txt"
            assert heads[-2].startswith("files in ")
            assert heads[-1] == "earlier evidence"
            texts = [str(static.content) for static in app.screen.query(".text").results(Static)]
            assert texts[-3] == "loss red"
            assert texts[-1] == str(folder.evidence_dir / "attempt-0-hang")
            await until(pilot, lambda: "esc closes; j and k scroll" in said(app))
            await pilot.press("i")
            await until(pilot, lambda: isinstance(app.screen, JobScreen))
