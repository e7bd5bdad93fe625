"""The screens of a job that runs a command: its launcher, ranks that come and go, and one log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from ddptop.draw import panels
from ddptop.job.figures.jobs import columns_for
from ddptop.job.ranks import common_parts, launcher_name, loss_text
from ddptop.job.status import waiting_text
from ddptop.sources.job import JobAnswer
from ddptop.style import plain
from ddptop.tui import operations
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.job import JobScreen
from ddptop.tui.widgets.ranks import RankTable
from tests.support import fake_commands, fake_home
from tests.support.driving import look, running, settle, shown
from tests.support.fake_commands import launcher_of, rank_of
from tests.support.fake_home import ago, change
from tests.support.own_views import read, row_of
from tests.support.pictures import Picture
from textual.pilot import Pilot

from ddptop_runner.model.snapshot import Cause, LauncherSample, RankSample

MakeApp = Callable[..., DdptopApp]
LAUNCHER_OF_FOUR = LauncherSample(name="DataParallel", pid=7)


@pytest.mark.parametrize(
    ("make", "keys", "size"),
    [("mpirun", ("down", "down"), (120, 40)), ("waiting", (), (80, 24))],
    ids=["ranks", "waiting"],
)
def test_a_command(
    frozen: Path, picture: Picture, make: str, keys: tuple[str, ...], size: object
) -> None:
    folder = getattr(fake_commands, make)(frozen)

    async def prepare(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press(*keys)
        await look(pilot, 2)

    picture(size, prepare, folder.path.name)


class TestWords:
    @pytest.mark.parametrize(
        ("parts", "of", "text"),
        [
            (4, "sum", "0.5320 Σ4"),
            (16, "mean", "0.5320 μ16"),
            (1, None, "0.5320"),
            (4, None, "0.5320"),
            (None, None, "0.5320"),
        ],
    )
    def test_loss_shows_how_many_parts_it_combines(self, parts, of, text) -> None:
        assert loss_text(rank_of(0, loss_parts=parts, loss_is=of)) == text

    def test_an_unknown_loss_has_no_parts(self) -> None:
        assert loss_text(rank_of(0, loss=None, loss_parts=4, loss_is="sum")) == "n/a"

    def test_the_jobs_loss_is_labeled_where_all_ranks_agree(self) -> None:
        four = [rank_of(number, loss_parts=4, loss_is="sum") for number in range(2)]
        assert common_parts(four) == " Σ4"
        assert common_parts([*four, rank_of(2)]) == ""
        assert common_parts([*four, rank_of(2, loss=None)]) == " Σ4"
        assert common_parts([]) == ""

    @pytest.mark.parametrize(
        ("rank", "launcher", "said"),
        [
            (
                rank_of(0, losses={"Adam 1": 0.31, "Adam 2": None}),
                None,
                "Adam 1 0.3100   Adam 2 n/a",
            ),
            (rank_of(0, losses={"Adam": 0.31}), None, ""),
            (rank_of(1, rank_source="start order"), None, "rank inferred from start order"),
            (rank_of(1, rank_source="a later word"), None, "rank inferred from a later word"),
            (rank_of(0, frameworks=["lightning", "torch"]), None, "imports lightning, torch"),
            (rank_of(0), LAUNCHER_OF_FOUR, "pid 4711"),
            (
                rank_of(0, pid=None, replicas=4, gpus=["a"]),
                LAUNCHER_OF_FOUR,
                "1 process, 4 GPUs (DataParallel): no per-device loss",
            ),
            (
                rank_of(0, replicas=2, loss_parts=2, loss_is="mean"),
                None,
                "1 process, 2 devices: no per-device loss   loss: mean of 2 backward passes",
            ),
        ],
    )
    def test_what_no_column_tells_of_a_rank(self, rank: RankSample, launcher, said: str) -> None:
        text = plain(panels.rank_detail(rank, launcher, 200))
        assert text == (f" rank {rank.rank}  {said}" if said else "")

    def test_what_a_command_without_ranks_is_waited_for(self, frozen: Path) -> None:
        view = read(fake_commands.waiting(frozen))
        assert view.snapshot is not None

        def said(**fields: object) -> str:
            assert view.snapshot is not None
            changed = msgspec.structs.replace(view.snapshot, **fields)
            return waiting_text(msgspec.structs.replace(view, snapshot=changed))

        assert said() == "waiting for ranks; each appears once it is training; l: logs"
        assert said(attempt_started_at=ago(125)).startswith("no ranks discovered in 2m: ")
        assert said(ranks=[rank_of(0)]) == ""
        assert said(launcher=None) == ""
        view = msgspec.structs.replace(view, state="finished")
        assert said() == "no ranks discovered; l: logs"

    def test_what_stopping_a_command_sends_to_whom(self, frozen: Path) -> None:
        folder = fake_commands.mpirun(frozen)
        change(folder, ranks=[rank_of(0), rank_of(1, frameworks=["lightning"])])
        effect = operations.stop(read(folder)).effect
        assert effect.startswith("Sends SIGINT/SIGTERM to both ranks, so that")
        assert (
            "then SIGTERM to mpirun and the rest of its processes; after 30 s, sends SIGKILL"
            in effect
        )
        effect = operations.kill(read(folder)).effect
        assert effect.startswith("Sends SIGKILL to mpirun and all processes it started now.")
        waiting = read(fake_commands.waiting(frozen))
        effect = operations.stop(waiting).effect
        assert effect.startswith(
            "Sends SIGTERM to accelerate and all processes it started; after 30 s,"
        )
        own = read(fake_home.two_cpu_ranks(frozen))
        assert operations.stop(own).effect.startswith(
            "Sends SIGTERM to both ranks, so that the script"
        )

    def test_the_overview_names_who_starts_the_ranks(self, frozen: Path) -> None:
        (width,) = [
            column.width for column in columns_for(120, by=["↳ accelerate"]) if column.key == "by"
        ]
        row = row_of(read(fake_commands.mpirun(frozen)))
        assert row["by"] == ("↳ mpirun", "dim")
        assert len("↳ accelerate") <= width
        script = fake_home.spec_of("sh", 0, 9, kind="command", target="./run.sh")
        assert launcher_name(read(fake_home.make_folder(frozen, script))) == "run.sh"
        unknown = row_of(read(fake_commands.waiting(frozen)))
        assert (unknown["ranks"][0], unknown["step"][0]) == ("n/a", "n/a")
        own = row_of(read(fake_home.two_cpu_ranks(frozen)))
        assert own["by"] == ("ddptop", "dim")


def table_of(app: DdptopApp) -> RankTable:
    return app.screen.query_one(RankTable)


def text_of(table: RankTable) -> list[str]:
    return [plain(line).rstrip() for line in table.build(*table.size)]


async def test_ranks_come_and_go_below_their_launcher(frozen: Path, make_app: MakeApp) -> None:
    folder = fake_commands.waiting(frozen)
    app = make_app("sft")
    async with running(app) as (app, pilot):
        launcher = "accelerate   ● running   whole tree CPU 96%   RSS 240 MiB   pid 4700"
        assert launcher in shown(app)
        assert text_of(table_of(app))[-1].startswith(" waiting for ranks")
        ranks = app.screen.ranks
        assert ranks.rank is None
        change(folder, ranks=[rank_of(0), rank_of(1)], world_size=2, state="running")
        await look(pilot, 2)
        assert ranks.shape == "cards"
        assert launcher in shown(app)
        assert "▸0 ● running" in shown(app) and " 1 ● running" in shown(app)
        assert ranks.rank == 0
        assert " rank 0  pid 4711" in shown(app)
        change(folder, ranks=[], world_size=None, state="restarting")
        await look(pilot, 2)
        assert ranks.rank is None


async def test_a_process_that_is_its_own_launcher_has_one_row(
    frozen: Path, make_app: MakeApp
) -> None:
    fake_commands.replicas(frozen)
    async with running(make_app("dp")) as (app, _):
        assert app.screen.ranks.rank == 0
        assert " rank 0  1 process, 4 GPUs (DataParallel): no per-device loss" in shown(app)
        assert "whole tree" not in shown(app)


async def test_a_rank_shows_the_one_log(frozen: Path, make_app: MakeApp) -> None:
    fake_commands.mpirun(frozen)
    async with running(make_app("gan")) as (app, _):
        screen = app.screen
        assert isinstance(screen, JobScreen)
        assert "─ log: mpirun, all ranks ─" in shown(app)
        assert list(screen.log_view.lines.lines)[:2] == [
            "from mpirun itself",
            "[1,0]<stdout>:step 0 d_loss 0.530 g_loss 1.200",
        ]


async def test_the_last_words_of_a_failed_command_come_from_its_log(
    frozen: Path, make_app: MakeApp
) -> None:
    folder = fake_commands.mpirun(frozen)
    cause = Cause(kind="exception", rank=1, exit_code=1, summary="ValueError: no")
    change(
        folder,
        state="failed",
        ended_at=ago(5),
        cause=cause,
        launcher=launcher_of(read(folder).spec, state="failed", exit_code=1, pid=None),
    )
    async with running(make_app("gan")) as (app, _):
        assert app.screen.ranks.rank == 1
        assert isinstance(app.latest, JobAnswer) and app.latest.detail is not None
        tail = app.latest.detail.cause_tail
        assert len(tail) == 12
        assert all(line.startswith("[1,") for line in tail)
        assert " mpirun   ✗ exit 1   whole tree CPU 208%   RSS 2.0 GiB   pid n/a" in shown(app)
