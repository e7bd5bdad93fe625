"""The job screen as a user uses it, on run folders in the real formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.style import plain
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.compare import CompareScreen
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.screens.overview import OverviewScreen
from ddptop.tui.widgets.bars import KeyBar
from ddptop.tui.widgets.charts import LossChart
from ddptop.tui.widgets.job import JobHeader
from ddptop.tui.widgets.logs import LogPane
from tests.support import fake_home
from tests.support.driving import keys_shown, look, running, said, settle, shown, until
from tests.support.fake_home import NOW

from ddptop_runner.jobs.launch import archive
from ddptop_runner.model.snapshot import Alert, Cause, Pause

MakeApp = Callable[..., DdptopApp]


class TestJob:
    async def test_each_key_shows_its_page_and_escape_comes_back(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        async with running(make_app("mlp-cpu")) as (app, pilot):
            chart, log = app.screen.query_one(LossChart), app.screen.query_one(LogPane)
            for key, page in (("4", "log"), ("3", "events"), ("2", "devices")):
                await pilot.press(key)
                assert app.screen.page == page
                assert not chart.size.height
                assert bool(log.size.height) == (page == "log")
                await pilot.press("escape")
                assert app.screen.page == "main"
                await pilot.pause()
                assert chart.size.height

    async def test_the_chosen_rank_s_log_is_followed(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        async with running(make_app("mlp-cpu")) as (app, pilot):
            log = app.screen.log_view.lines
            assert log.lines[-1].startswith("epoch 3 step 395")
            with folder.log_file(0, 0).open("a") as file:
                file.write("\x1b[31m[bold]new[/bold]\x1b[2J line\n 50%|##\r100%|####")
            await look(pilot, 2)
            assert log.lines[-1] == "[bold]new[/bold] line"
            assert "100%|####" in shown(app)
            fake_home.write_log(folder, 0, 1, "only rank 1\n")
            await pilot.press("right_square_bracket")
            assert app.screen.ranks.rank == 1
            await look(pilot, 2)
            assert log.lines == ["only rank 1"]
            assert "log: rank 1" in shown(app)

    async def test_log_starts_over_for_a_new_viewer(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.two_cpu_ranks(frozen)
        async with running(make_app()) as (app, pilot):
            for _ in range(2):
                await pilot.press("enter")
                await until(pilot, lambda: isinstance(app.screen, JobScreen))
                await settle(pilot)
                assert len(app.screen.log_view.lines.lines) == 80
                await pilot.press("escape")
                await until(pilot, lambda: isinstance(app.screen, OverviewScreen))

    async def test_findings_follow_the_job_while_they_are_read(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        for job in ("mlp-cpu", None):
            fake_home.change(folder, alerts=[])
            async with running(make_app(job)) as (app, pilot):
                await pilot.press("f")
                await until(pilot, lambda: "no problems found" in said(app))
                for message in ("rank 1 is slow by 30%", "rank 1 is slow by 40%"):
                    slow = Alert(
                        id="straggler", severity="warning", message=message, since=NOW, ranks=[1]
                    )
                    fake_home.change(folder, alerts=[slow])
                    await look(pilot, 2)
                    assert message in said(app) and "worst first" in said(app)
                fake_home.change(folder, alerts=[])
                await look(pilot, 2)
                assert "is slow" not in said(app) and "no problems found" in said(app)

    async def test_the_log_is_that_of_the_guilty_rank_until_a_person_chooses(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        fake_home.write_log(folder, 0, 1, "RuntimeError: of attempt 0\n")
        async with running(make_app("mlp-cpu"), (160, 40)) as (app, pilot):
            log, ranks = app.screen.log_view.lines, app.screen.ranks
            assert "log: rank 0 ──" in shown(app)
            pause = Pause(state="hung", since=fake_home.ago(90), ranks=[1])
            fake_home.change(folder, state="hung", pause=pause)
            await look(pilot, 2)
            assert ranks.rank == 1 and "log: rank 1 (the other ranks wait for it) ──" in shown(app)
            cause = Cause(kind="signal", rank=1, signal="SIGKILL", summary="killed")
            fake_home.write_log(folder, 1, 1, "of attempt 1\n")
            fake_home.change(
                folder, state="restarting", attempt=1, previous_cause=cause, pause=None
            )
            await look(pilot, 2)
            assert "log: rank 1 (SIGKILL) ──" in shown(app)
            assert log.lines == ["RuntimeError: of attempt 0"], "not yet those of the next attempt"
            fake_home.change(folder, state="running", attempt=1)
            await look(pilot, 2)
            assert log.lines == ["of attempt 1"] and "log: rank 1 ──" in shown(app)
            await pilot.press("left_square_bracket")
            assert ranks.rank == 0
            fake_home.change(folder, state="hung", attempt=1, pause=pause)
            await look(pilot, 2)
            assert ranks.rank == 0, "the person's choice wins"

    async def test_the_keys_of_a_job_name_the_comparison_at_80_columns(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        async with running(make_app("mlp-cpu"), (80, 24)) as (app, pilot):
            assert keys_shown(app).endswith("  q Quit  ? Help ") and "C Compare" in keys_shown(app)
            await pilot.click(KeyBar, offset=(62, 0))  # where it is drawn
            await until(pilot, lambda: isinstance(app.screen, CompareScreen))

    async def test_a_job_that_is_removed_meanwhile(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        async with running(make_app("mlp-cpu")) as (app, pilot):
            header = app.screen.query_one(JobHeader)
            assert "● running" in plain(header._lines[0])
            assert "s Stop" in keys_shown(app)
            folder.spec_file.unlink()
            await look(pilot)
            assert "mlp-cpu no longer exists" in shown(app)
            assert not header.display, "its state is not known"
            assert "s Stop" not in keys_shown(app)
            for key in "Rtif":
                app.clear_notifications()
                await pilot.press(key)
                assert "mlp-cpu no longer exists" in said(app), key

    async def test_a_job_whose_name_is_taken_meanwhile(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.failed_job(frozen)
        async with running(make_app("vit-base")) as (app, pilot):
            assert "shape '[64, 3, 224]' is invalid" in shown(app)
            assert archive("vit-base") == "vit-base-1"
            spec = fake_home.spec_of("vit-base", 2, 1, job_id="vit-base@another")
            folder = fake_home.make_folder(frozen, spec)
            fake_home.write_snapshot(folder, fake_home.snapshot_of(spec, state="finished"))
            await look(pilot, 2)
            assert "shape '[64, 3, 224]' is invalid" not in shown(app)
            await pilot.press("o")
            await until(pilot, lambda: isinstance(app.screen, OverviewScreen))
            await look(pilot)
            assert "vit-base-1" in shown(app)

    async def test_a_job_without_snapshot_or_history(self, frozen: Path, make_app: MakeApp) -> None:
        fake_home.make_folder(frozen, fake_home.spec_of("young", 2, 3))
        async with running(make_app("young")) as (app, _):
            assert "◔ starting" in shown(app)
            assert "no loss yet" in shown(app)
            assert "no ranks have started yet" in shown(app)

    async def test_a_damaged_history_is_no_reason_to_fall(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.two_cpu_ranks(frozen)
        folder.history_db.write_bytes(b"not a database" * 100)
        async with running(make_app("mlp-cpu")) as (app, _):
            assert "step 2,261" in shown(app)
            assert "not a valid history" in shown(app)

    async def test_q_leaves_from_the_first_job_and_o_goes_to_all(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        async with running(make_app("mlp-cpu"), (80, 24)) as (app, pilot):
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
        async with running(make_app("mlp-cpu")) as (app, pilot):
            assert "1-14 of 64" in shown(app)
            assert app.screen.query_one(LossChart).size.height >= 6
            await pilot.press("G")
            assert app.screen.ranks.rank == 63
            assert "51-64 of 64" in shown(app)


async def test_a_failure_rings_the_bell_once(
    frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fake_home.two_cpu_ranks(frozen)
    written: list[str] = []
    async with running(make_app(folder.job)) as (app, pilot):
        monkeypatch.setattr(app._driver, "write", written.append)
        fake_home.change(folder, state="failed", guardian=None)
        await settle(pilot)
    rung = [text for text in written if "\x07" in text]
    assert len(rung) == 1 and f"]9;{folder.job} failed on " in rung[0]
