"""The overview as a user uses it: each key, the filter, and the mouse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.widgets.bars import FilterBar
from ddptop.tui.widgets.jobs import JobsTable
from msgspec.structs import replace
from tests.support import fake_foreign, fake_gpus, fake_home
from tests.support.driving import look, running, said, settle, shown, until
from textual.message import Message
from textual.pilot import Pilot

from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import commands, launch

MakeApp = Callable[..., DdptopApp]
FOUR_JOBS = (
    fake_home.two_cpu_ranks,
    fake_gpus.eight_gpu_ranks,
    fake_home.failed_job,
    fake_home.finished_job,
)


@pytest.fixture
def four_jobs(eight_gpus: Path) -> Path:
    for make in FOUR_JOBS:
        make(eight_gpus)
    return eight_gpus


@asynccontextmanager
async def overview(
    app: DdptopApp, size: tuple[int, int] = (120, 40)
) -> Iterator[tuple[Pilot[None], OverviewScreen, list[ScreenWanted]]]:
    """The screen once it has settled, and what it posts from then on."""
    async with running(app, size) as (app, pilot):
        screen = app.screen
        assert isinstance(screen, OverviewScreen)
        posted: list[ScreenWanted] = []
        post = screen.post_message

        def listen(message: Message) -> bool:
            if isinstance(message, ScreenWanted):
                posted.append(message)
                return True
            return post(message)

        screen.post_message = listen  # type: ignore[method-assign]
        yield pilot, screen, posted


def rows(screen: OverviewScreen) -> list[str]:
    """The jobs shown, in order."""
    return list(screen.jobs.keys)


async def test_a_failure_stands_on_top_until_it_was_looked_at(
    four_jobs: Path, make_app: MakeApp
) -> None:
    async with running(make_app()) as (app, pilot):
        screen = app.screen
        assert rows(screen) == ["vit-base", "llama-ft", "mlp-cpu", "resnet-a"]
        text = shown(app)
        assert "▌ rank 1: RuntimeError: shape '[64, 3, 224]' is invalid for input of size" in text
        assert "e: cause and evidence; l: logs; R: relaunch" in text
        assert "▲ GPU 5 is throttled: hardware" in text
        assert "no problems" in text
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        await settle(pilot)
        assert rows(screen) == ["llama-ft", "mlp-cpu", "vit-base", "resnet-a"]


async def test_keys_open_other_screens(four_jobs: Path, make_app: MakeApp) -> None:
    first, second, third = "vit-base", "llama-ft", "mlp-cpu"
    cases: list[tuple[str, str, object]] = [
        ("enter", "job", first),
        ("l", "logs", first),
        ("e", "story", first),
        ("p", "replay", first),
        ("v", "devices", None),
        ("C", "compare", (first,)),
        ("space C", "compare", (first,)),
        ("space j C", "compare", (first, second)),
        ("j space j space k C", "compare", (second, third)),
        ("space j space j space C", "compare", (first, second, third)),
        ("space space j C", "compare", (second,)),
    ]
    async with overview(make_app()) as (pilot, screen, posted):
        for keys, kind, what in cases:
            posted.clear()
            screen._seen.clear()
            screen.jobs.marked.clear()
            await look(pilot)
            await pilot.press("g", *keys.split())
            (one,) = posted
            assert (one.screen, one.subject[0]) == (kind, what), keys


async def test_foreign_job_explains_why_it_is_not_possible(
    held_gpus: Path, make_app: MakeApp
) -> None:
    fake_foreign.healthy()
    app = make_app()
    async with overview(app) as (pilot, screen, posted):
        await pilot.press("e", "p", "C", "space")
        assert posted == []
        assert screen.jobs.marked == []
        text = said(app)
        assert "has no story: ddptop did not start it" in text
        assert "has no history: ddptop did not start it" in text


async def test_without_a_job_keys_say_what_to_do(frozen: Path, make_app: MakeApp) -> None:
    app = make_app()
    async with overview(app) as (pilot, _, posted):
        await pilot.press("l", "e", "p", "C", "space")
        assert posted == []
        assert "no job selected; press n to launch one" in said(app)


class TestFilter:
    async def test_filter_shows_how_many_are_hidden_and_esc_clears_it(
        self, four_jobs: Path, make_app: MakeApp
    ) -> None:
        app = make_app()
        async with overview(app) as (pilot, screen, _):
            await pilot.press("slash")
            bar = screen.query_one(FilterBar)
            assert bar.is_typing
            await pilot.press(*"state:run l")
            await until(pilot, lambda: rows(screen) == ["llama-ft", "mlp-cpu"])
            assert "2 of 4   enter applies, esc clears" in shown(app)
            await pilot.press("enter")
            assert not bar.is_typing
            assert screen.jobs.has_focus
            await look(pilot)
            assert rows(screen) == ["llama-ft", "mlp-cpu"], "a later look must not undo it"
            assert "2 of 4 match" in shown(app)
            await pilot.press("escape")
            await until(pilot, lambda: len(rows(screen)) == 4)
            assert not bar.display
            assert app.screen is screen

    async def test_the_cursor_goes_to_the_first_match_so_that_space_marks_them_all(
        self, four_jobs: Path, make_app: MakeApp
    ) -> None:
        app = make_app()
        async with overview(app) as (pilot, screen, _):
            await pilot.press("G", "slash", *"!vit")
            await until(pilot, lambda: rows(screen) == ["llama-ft", "mlp-cpu", "resnet-a"])
            await pilot.press("enter", "space", "down", "space")
            assert screen.jobs.marked == ["llama-ft", "mlp-cpu"]

    async def test_invalid_one_is_explained_and_shows_everything(
        self, four_jobs: Path, make_app: MakeApp
    ) -> None:
        app = make_app()
        async with overview(app) as (pilot, screen, _):
            await pilot.press("slash", *"loss>two")
            await until(pilot, lambda: "▲ two is not a valid number; use loss>2" in shown(app))
            assert len(rows(screen)) == 4
            await pilot.press("escape")
            assert screen.jobs.has_focus
            assert "no number" not in shown(app)

    async def test_where_nothing_matches_it_says_how_to_go_on(
        self, four_jobs: Path, make_app: MakeApp
    ) -> None:
        app = make_app()
        async with overview(app) as (pilot, screen, _):
            await pilot.press("slash", *"nobody", "down")
            await until(pilot, lambda: rows(screen) == [])
            assert "no jobs match" in shown(app)
            assert "press esc to show all jobs" in shown(app)
            await pilot.press("slash")
            await until(pilot, lambda: screen.query_one(FilterBar).is_typing)
            assert screen.query_one(FilterBar).text == "nobody", "it is edited further"


async def test_sorting(four_jobs: Path, make_app: MakeApp) -> None:
    app = make_app()
    async with overview(app) as (pilot, screen, _):
        await pilot.press("S")
        assert rows(screen) == ["llama-ft", "mlp-cpu", "resnet-a", "vit-base"]
        assert "by name" in shown(app)
        await pilot.press("S")
        assert rows(screen)[0] == "mlp-cpu", "started last"
        await pilot.press("S")
        assert rows(screen)[0] == "vit-base"


async def test_mouse_and_help(four_jobs: Path, make_app: MakeApp) -> None:
    async with overview(make_app()) as (pilot, screen, posted):
        await pilot.click("#jobs", offset=(20, 3))
        assert screen.jobs.cursor_key == "llama-ft"
        assert "llama-ft: ● running" in [heading for heading, _ in screen.explain()]
        assert posted == []
        await pilot.click("#jobs", offset=(20, 3))
        assert [one.subject for one in posted] == [("llama-ft",)]
        await pilot.click("#devices", offset=(20, 7))
        screen._devices.focus()
        await pilot.pause()
        headings = [heading for heading, _ in screen.explain()]
        assert headings[0] == "GPU 5"
        assert "slowed: thermal, by hardware" in headings
        await pilot.press("enter")
        assert posted[-1].subject == (fake_home.uuid(5),)


async def test_the_cursor_is_on_the_first_job_until_it_is_moved(
    frozen: Path, make_app: MakeApp
) -> None:
    fake_home.two_cpu_ranks(frozen)
    fake_home.failed_job(frozen)
    app = make_app()
    async with running(app) as (app, pilot):
        screen = app.screen
        assert isinstance(screen, OverviewScreen) and screen.answer is not None
        jobs, everything = screen.query_one(JobsTable), screen.answer.look
        first = jobs.cursor_key
        rest = replace(everything, jobs=tuple(j for j in everything.jobs if j.name != first))
        jobs.show(rest, {}, ())
        assert jobs.cursor_key == "mlp-cpu"
        jobs.show(everything, {}, ())
        assert jobs.cursor_key == first, "it is more urgent, and was found later"
        await pilot.press("down")
        jobs.show(rest, {}, ())
        jobs.show(everything, {}, ())
        assert jobs.cursor_key == "mlp-cpu"


async def test_a_sweep_opens_and_keys_apply_to_all_its_jobs(
    frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_home.sweep(frozen)
    ended: list[str] = []
    monkeypatch.setattr(commands, "stop", lambda view, *_, **__: ended.append(view.job))
    app = make_app()
    async with overview(app) as (pilot, screen, posted):
        best_first = [
            *("bert-lr1e-4-seed2", "bert-lr1e-3-seed1", "bert-lr1e-3-seed2"),
            *("bert-lr1e-3-seed3", "bert-lr1e-4-seed1", "bert-lr1e-4-seed3"),
        ]
        assert rows(screen) == ["bert"]
        await pilot.press("l", "C")
        assert "bert is a sweep; press enter to show its jobs" in said(app)
        assert [(one.screen, one.subject[0]) for one in posted] == [("compare", (*best_first,))]
        await pilot.press("enter")
        assert rows(screen) == ["bert", *best_first]
        assert "▾ bert" in shown(app) and "  lr1e-4-seed2" in shown(app)
        await pilot.press("s")
        await until(pilot, lambda: "Stop 3 jobs of bert?" in said(app))
        assert "Removes 1 from the queue; the ranks of the other 2 get SIGTERM" in said(app)
        await pilot.press("y")
        await until(pilot, lambda: len(ended) == 3)
        assert ended[0] == "bert-lr1e-4-seed3"  # so that it does not start
        await pilot.press("enter")
        assert rows(screen) == ["bert"]
        await pilot.press("slash", *"seed3", "enter")
        assert set(rows(screen)) == {"bert-lr1e-3-seed3", "bert-lr1e-4-seed3"}


async def test_what_waits_is_shown_moved_and_queued_again(
    frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_home.sweep(frozen)
    done: list[tuple[str, object]] = []
    monkeypatch.setattr(
        commands, "move_in_queue", lambda view, other, *, last: done.append((view.job, last))
    )

    def restart(view: JobView, _: object, **given: bool) -> tuple[JobView, list[str], None]:
        done.append((view.job, given))
        return view, [], None

    monkeypatch.setattr(launch, "restart_ended", restart)
    app = make_app()
    async with overview(app) as (pilot, _screen, _posted):
        waits = "Queue 1  bert-lr1e-4-seed3"
        assert waits in shown(app)
        await pilot.press("enter", "end", "<")
        await until(pilot, lambda: "bert-lr1e-4-seed3 is first of your jobs that wait" in said(app))
        await pilot.press(">")
        await until(pilot, lambda: len(done) == 2)
        await pilot.press("Q")
        await until(pilot, lambda: "queued since" in said(app))
        assert "waiting for a job of its sweep to end" in said(app)
        await pilot.press("escape", *["up"] * 2, "U")
        await until(pilot, lambda: len(done) == 3)
    assert done == [
        ("bert-lr1e-4-seed3", False),
        ("bert-lr1e-4-seed3", True),
        ("bert-lr1e-3-seed3", {"wait_gpus": True}),
    ]
