"""The log screen as a user uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.style import plain
from ddptop.tui.app import DdptopApp
from ddptop.tui.messages import ScreenWanted
from ddptop.tui.screens.logs import LogHead, LogsScreen
from tests.support import fake_commands, fake_home, fake_logs
from tests.support.driving import look, shown, until
from tests.support.driving_logs import cursor, log_of, press, settled, title, view

MakeApp = Callable[..., DdptopApp]


pytestmark = pytest.mark.usefixtures("quick_logs")


class TestOneRank:
    async def test_its_end_is_followed_until_one_scrolls_up(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 0) as (_, pilot, screen):
            assert "log: rank 0" in title(screen) and "following" in title(screen)
            assert "step 59 loss 2.0500" in view(screen)[-2]
            fake_logs.append(folder, 0, "one more\nand [bold]half")
            await until(pilot, lambda: view(screen)[-1] == "▸ and [bold]half")
            assert view(screen)[-2] == "  one more"
            await pilot.press("k")
            assert "not following (G: end)" in title(screen)
            fake_logs.append(folder, 0, " a line\nlater\n")
            await until(pilot, lambda: screen.pager.lines[-1] == "later")
            await pilot.pause()
            assert "  later" not in view(screen), "what one looks at stays where it is"
            await pilot.press("G")
            await pilot.pause()
            assert view(screen)[-2:] == ["  and [bold]half a line", "  later"]
            await pilot.press("F")
            assert "not following" in title(screen)
            fake_logs.append(folder, 0, "unseen\n")
            await until(pilot, lambda: screen.pager.lines[-1] == "unseen")
            assert "not following" in title(screen)
            await pilot.press("F")
            await pilot.pause()
            assert view(screen)[-1] == "  unseen" and "following" in title(screen)

    async def test_moving_in_it(self, frozen: Path, make_app: MakeApp) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 0, size=(80, 24)) as (_, pilot, screen):
            height = screen.pager.size.height
            await pilot.press("g")
            await pilot.pause()
            assert view(screen)[0] == "  loading 48 shards from /data/[shards]"
            assert cursor(screen).startswith("loading")
            await pilot.press("down", "j")
            assert cursor(screen).startswith("train.py:31")
            await pilot.press("pagedown")
            assert screen.pager._places[0][0] == height - 1
            await pilot.press("ctrl+d")
            assert screen.pager._places[0][0] == height - 1 + height // 2
            await pilot.press("ctrl+u", "pageup")
            assert screen.pager._places[0][0] == 0
            for _ in range(9):
                screen.pager.action_page(1)
            assert screen.pager.following, "the end is the end"
            await pilot.hover("#lines")
            screen.pager.scroll_lines(-3)
            assert not screen.pager.following
            await pilot.click("#lines", offset=(5, 4))
            assert cursor(screen) == screen.pager.rows[screen.pager._places[4][0]].text
            await pilot.click("#lines", offset=(79, 0))
            await until(pilot, lambda: view(screen)[0].startswith("  loading"))

    async def test_long_lines_are_cut_shifted_or_wrapped(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 5, size=(80, 24)) as (_, pilot, screen):
            assert (
                view(screen)[-1].startswith("✗ RuntimeError: CUDA") and view(screen)[-1][-1] == "…"
            )
            await pilot.press("right", "right")
            assert screen.pager.shift == 32
            assert view(screen)[-1].startswith("✗ egal memory access")
            screen.pager.action_across(20)
            assert view(screen)[-1].endswith("cut or wrapped")
            await pilot.press("left")
            screen.pager.action_across(-20)
            assert view(screen)[-1].startswith("✗ RuntimeError")
            await pilot.press("W")
            assert [row[:2] for row in view(screen)[-3:]] == ["✗ ", "┆ ", "┆ "]
            joined = "".join(row[2:] for row in view(screen)[-3:])
            assert joined.startswith("RuntimeError: CUDA error") and joined.endswith("wrapped")
            await pilot.press("k", "k", "k", "k", "g")
            await pilot.pause()
            assert cursor(screen).startswith("loading")

    async def test_levels_hide_what_is_less_grave(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 5) as (app, pilot, screen):
            await press(pilot, screen, "L")
            assert "warnings and errors only" in title(screen)
            assert view(screen)[0].startswith("▲ train.py:31: UserWarning")
            assert view(screen)[1].startswith("┆   warnings.warn")
            assert [row[:2] for row in view(screen)[2:6]] == ["✗ ", "┆ ", "┆ ", "✗ "]
            await press(pilot, screen, "L")
            assert "errors only" in title(screen)
            assert [row[2:] for row in view(screen)[:2]] == [
                "Traceback (most recent call last):",
                '  File "train.py", line 81, in step',
            ]
            fake_logs.append(folder, 5, "step 1\nERROR: again\n")
            await until(pilot, lambda: "✗ ERROR: again" in view(screen))
            await press(pilot, screen, "right_square_bracket")
            assert "no errors in this log" in shown(app) and "press L to show all lines" in shown(
                app
            )
            await press(pilot, screen, "L")
            assert "epoch 5" in view(screen)[-1]

    async def test_ranks_and_attempts_are_chosen_by_key_and_mouse(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 0) as (app, pilot, screen):
            assert "attempt 1 (latest)" in title(screen)
            await press(pilot, screen, "right_square_bracket", "right_square_bracket")
            assert "log: rank 2" in title(screen)
            await press(pilot, screen, "left_square_bracket")
            assert "log: rank 1" in title(screen)
            await press(pilot, screen, "less_than_sign")
            assert "attempt 0 (latest: 1)" in title(screen)
            assert view(screen)[:2] == ["  attempt 0 of rank 1", "✗ Killed"]
            await pilot.press("less_than_sign")
            assert [note.message for note in app._notifications] == ["no earlier attempt"]
            await press(pilot, screen, "greater_than_sign")
            assert "attempt 1 (latest)" in title(screen)
            row = plain(screen.query_one(LogHead)._lines[1])
            await pilot.click(LogHead, offset=(row.index(" 7 ") + 1, 1))
            await settled(pilot, screen)
            assert "log: rank 7" in title(screen)
            fake_home.write_log(folder, 2, 7, "third time\n")
            await until(pilot, lambda: view(screen)[:1] == ["  third time"], "the next attempt")
            assert "attempt 2 (latest)" in title(screen)

    async def test_who_reads_an_attempt_is_left_there_when_the_next_begins(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 0) as (_, pilot, screen):
            await pilot.press("k")
            fake_home.write_log(folder, 2, 0, "third time\n")
            await until(pilot, lambda: "attempt 1 (latest: 2)" in title(screen))
            assert "step 5" in cursor(screen)


class TestAllRanks:
    async def test_same_lines_are_one_and_say_whose(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), None) as (_, pilot, screen):
            assert "log: 8 ranks" in title(screen)
            assert "identical lines collapsed" in title(screen)
            rows = view(screen)
            assert any(row.startswith("  0-7 │ epoch 5: 100%") for row in rows)
            assert rows[-1].startswith("✗   5 │ RuntimeError: CUDA error")
            for rank in range(8):
                fake_logs.append(folder, rank, f"[rank{rank}]: saved\n")
            await until(pilot, lambda: view(screen)[-1] == "  0-7 │ saved")
            fake_logs.append(folder, 2, "ERROR: rank 2 alone\n")
            await until(pilot, lambda: view(screen)[-1] == "✗   2 │ ERROR: rank 2 alone")
            assert "printed by rank 2" in screen.explain()[0][1]
            await pilot.press("k")
            assert "printed by ranks 0-7" in screen.explain()[0][1]

    async def test_a_digit_chooses_a_rank_but_not_in_a_search(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), None, size=(80, 24)) as (_, pilot, screen):
            await press(pilot, screen, "3")
            assert screen.view.whose == 3 and "log: rank 3" in title(screen)
            await press(pilot, screen, "9")
            assert screen.view.whose == 3, "there is no rank 9"
            await pilot.press("slash", "5")
            await pilot.pause()
            assert screen.view.whose == 3, "it is searched for"
            await pilot.press("escape")
            await press(pilot, screen, "m", "L")
            assert "warnings and errors only" in title(screen)

    async def test_similar_lines_collapse_too(self, frozen: Path, make_app: MakeApp) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), None) as (_, pilot, screen):
            await pilot.press("g")
            await pilot.pause()
            assert view(screen)[1] == "    0 │ device cuda:0 is ready"
            await press(pilot, screen, "c")
            assert "similar lines collapsed" in title(screen)
            await pilot.press("g")
            await pilot.pause()
            assert "  0-7~ │ device cuda:0 is ready" in view(screen)
            await press(pilot, screen, "c")
            assert "identical lines collapsed" in title(screen)
            await press(pilot, screen, "L", "L")
            assert view(screen)[0] == "✗ 5 │ Traceback (most recent call last):"

    async def test_one_goes_to_one_rank_and_back(self, frozen: Path, make_app: MakeApp) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), None) as (app, pilot, screen):
            await press(pilot, screen, "enter")
            assert "log: rank 5" in title(screen)
            await pilot.press("c")
            assert "only the merged log can be collapsed" in [*app._notifications][-1].message
            await press(pilot, screen, "m")
            assert "log: 8 ranks" in title(screen)
            await press(pilot, screen, "m")
            assert "log: rank 5" in title(screen)

    async def test_a_single_rank_is_shown_as_it_is(self, frozen: Path, make_app: MakeApp) -> None:
        folder = fake_home.make_folder(frozen, fake_home.spec_of("solo", 1, 60))
        fake_home.write_log(folder, 0, 0, "alone\n")
        async with log_of(make_app(), None, "solo") as (_, pilot, screen):
            await until(pilot, lambda: view(screen)[:1] == ["  alone"])
            assert "log: rank 0" in title(screen)


class TestCommands:
    async def test_launcher_and_ranks_share_one_log(self, frozen: Path, make_app: MakeApp) -> None:
        fake_commands.mpirun(frozen)
        async with log_of(make_app(), None, "gan") as (_, pilot, screen):
            assert "everything mpirun printed" in title(screen)
            assert any("from mpirun itself" in row for row in screen.pager.lines)
            await press(pilot, screen, "right_square_bracket")
            assert "everything mpirun printed" in title(screen)


class TestNothing:
    async def test_nothing_printed_yet_and_then_something(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_home.make_folder(frozen, fake_home.spec_of("young", 2, 3))
        app = make_app()
        async with app.run_test(size=(80, 24)) as pilot:
            await look(pilot)
            app.post_message(ScreenWanted("logs", "young"))
            await until(pilot, lambda: "no output yet" in shown(app))
            for rank in range(2):
                fake_home.write_log(folder, 0, rank, "hello\n")
            # one line for both, unless the first was read before the second was written
            await until(pilot, lambda: "hello" in shown(app))

    async def test_truncated_or_replaced_log_is_read_again(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 2, size=(80, 24)) as (_, pilot, screen):
            path = folder.log_file(1, 2)
            path.write_text("cut short\n")
            await until(pilot, lambda: view(screen) == ["  cut short"])
            other = path.with_suffix(".new")
            other.write_text("of another job\n" * 10)
            other.replace(path)
            await until(pilot, lambda: view(screen) == ["  of another job"] * 10)

    async def test_a_job_that_is_gone(self, frozen: Path, make_app: MakeApp) -> None:
        app = make_app()
        async with app.run_test(size=(80, 24)) as pilot:
            await look(pilot)
            app.post_message(ScreenWanted("logs", "nobody", 0))
            await until(pilot, lambda: "this job no longer exists" in shown(app))
            await pilot.press("G", "g", "j", "L", "W", "enter", "right", "F", "c")
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, LogsScreen))

    async def test_a_rank_without_a_log_and_an_empty_one(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        folder = fake_logs.eight_ranks(frozen)
        fake_home.write_log(folder, 1, 1, "")
        async with log_of(make_app(), 1, size=(80, 24)) as (app, pilot, screen):
            assert "no output yet" in shown(app)
            folder.log_file(0, 1).unlink()
            await pilot.press("less_than_sign")
            await until(pilot, lambda: "rank 1 has no log for attempt 0" in shown(app))
            assert screen.explain() == []
