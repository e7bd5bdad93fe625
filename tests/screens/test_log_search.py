"""Searching logs, including hostile ones and those of jobs that ddptop did not start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.logs import file as log_file
from ddptop.logs import reader as log_source
from ddptop.tui.app import DdptopApp
from ddptop.tui.screens.logs import LogsScreen
from tests.support import fake_foreign, fake_home, fake_logs
from tests.support.driving import look, shown, until
from tests.support.driving_logs import cursor, log_of, press, search, title, view
from textual import events

MakeApp = Callable[..., DdptopApp]


pytestmark = pytest.mark.usefixtures("quick_logs")


class TestSearch:
    async def test_matches_are_found_marked_and_gone_through(
        self, frozen: Path, make_app: MakeApp
    ) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 0, size=(120, 30)) as (app, pilot, screen):
            await search(pilot, screen, "epoch")
            assert cursor(screen).startswith("epoch 5"), "from the end the last one is the nearest"
            assert "6 of 6   n: next, N: previous" in shown(app)
            styles = [span for line in screen.pager._lines for span in line if span[1] == "match"]
            assert set(styles) == {("epoch", "match")}
            # each continues from where the previous one ended
            for nearest in ("epoch 4", "epoch 3"):
                await pilot.press("N")
                await until(pilot, lambda nearest=nearest: cursor(screen).startswith(nearest))
            await pilot.press("n")
            await until(pilot, lambda: cursor(screen).startswith("epoch 4"))
            await pilot.press("n")
            await until(pilot, lambda: cursor(screen).startswith("epoch 5"))
            await pilot.press("n")
            await until(pilot, lambda: cursor(screen).startswith("epoch 0"))
            await until(pilot, lambda: "1 of 6   continued from the top" in shown(app))
            await pilot.press("N")
            await until(pilot, lambda: "6 of 6   continued from the end" in shown(app))
            await pilot.press("escape")
            await pilot.pause()
            assert screen.pager.pattern is None and isinstance(app.screen, LogsScreen)
            await pilot.press("g")
            await search(pilot, screen, "x [")
            assert "no matches" in shown(app)
            await pilot.press("escape", "escape")
            await until(pilot, lambda: not isinstance(app.screen, LogsScreen))

    async def test_patterns_case_and_levels(self, frozen: Path, make_app: MakeApp) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), 0, size=(120, 30)) as (app, pilot, screen):
            await pilot.press("g")
            await search(pilot, screen, r"step 1\d loss")
            assert "step 10 loss" in cursor(screen) and "regex" in shown(app)
            await pilot.press("slash", *"(", "enter")
            await pilot.pause()
            assert "invalid regex; matching literally" in shown(app)
            await pilot.press("escape")
            await press(pilot, screen, "right_square_bracket", "L")
            await search(pilot, screen, "Batch")
            assert "no match" in shown(app), "case matters"
            await pilot.press("escape")
            await search(pilot, screen, "batch")
            assert cursor(screen).startswith("  warnings.warn")

    async def test_all_ranks_are_searched(self, frozen: Path, make_app: MakeApp) -> None:
        fake_logs.eight_ranks(frozen)
        async with log_of(make_app(), None, size=(120, 30)) as (_, pilot, screen):
            await search(pilot, screen, "slow")
            assert "worker 2 is slow: 4.52 s" in cursor(screen)
            await pilot.press("N")
            await until(pilot, lambda: "worker 2 is slow: 4.32 s" in cursor(screen))
            await pilot.press("n")
            await until(pilot, lambda: "worker 2 is slow: 4.52 s" in cursor(screen))

    async def test_long_search_shows_progress_and_can_be_cancelled(
        self, frozen: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = fake_logs.eight_ranks(frozen)
        with folder.log_file(1, 0).open("a") as file:
            file.write("needle\n")
            file.writelines(f"step {n} of many\n" for n in range(60_000))
        monkeypatch.setattr(log_file, "SCAN_BYTES", 1 << 16)
        monkeypatch.setattr(log_source, "SLICE_S", 0.0)
        monkeypatch.setattr(log_source, "REPORT_S", -1.0)
        async with log_of(make_app(), 0, size=(120, 30)) as (app, pilot, screen):
            # the reader reads one part, reports its progress, and waits to continue
            parts = []
            ordinary = screen.pager.reader._search_on

            def one_part() -> None:
                if len(parts) < 2:
                    parts.append(1)
                    ordinary()

            monkeypatch.setattr(screen.pager.reader, "_search_on", one_part)
            await pilot.press("slash", *"needle", "enter")
            await until(pilot, lambda: "esc cancels" in shown(app))
            assert "searching 1.0 MiB" in shown(app) or "searching 1 MiB" in shown(app)
            await pilot.press("k")
            assert not screen.pager.following, "one can move while it runs"
            await pilot.press("escape")
            await until(pilot, lambda: "search canceled" in shown(app))
            await until(pilot, lambda: screen.pager.reader._search is None)
            monkeypatch.setattr(screen.pager.reader, "_search_on", ordinary)
            await pilot.press("N")
            await until(pilot, lambda: cursor(screen) == "needle")
            assert any("needle" in row for row in view(screen))


HOSTILE = b"".join(
    [
        b"begin\n",
        *(b"c0 %02x [" % c + bytes([c]) + b"] x\n" for c in range(32) if c not in (10, 13)),
        *(b"c1 %02x [" % c + chr(c).encode() + b"] x\n" for c in range(0x7F, 0xA0)),
        *(b"raw %02x [" % c + bytes([c]) + b"] x\n" for c in range(0x80, 0x100, 7)),
        b"clear \x1b[2J home \x1b[H\n",
        b"title \x1b]0;owned\x07 dcs \x1bP1;2q#0\x1b\\ apc \x1b_x\x1b\\ \n",
        b"reset \x1bc alt \x1b[?1049h mouse \x1b[?1000h paste \x1b]52;c;AAAA\x07 csi \xc2\x9b2J\n",
        b"unfinished \x1b[38;5;\n",
        b"unfinished \x1b]8;;http://x\n",
        b"surrogate \xed\xa0\x80\xed\xb0\x80 overlong \xc0\xaf cut \xe6\x97\n",
        b"rtl \xe2\x80\xae evil \xe2\x81\xa6 \xd7\xa9\n",
        b"zero \xe2\x80\x8b\xef\xbb\xbf width\n",
        b"markup [red]no[/red] [@click=app.quit]no[/] \\[x]\n",
        b"long " + b"y" * 100_000 + b" end\n",
        b"wide " + "日本".encode() * 60 + b"\n",
        b"marks " + "a\u0301\u0302\u0303\u0304\u0305".encode() * 30 + b"\n",
        b"tabs\t\t\tx\n",
        b"end\n",
    ]
)


class TestHostile:
    @pytest.mark.parametrize(
        ("size", "rank"), [((80, 24), 0), ((60, 18), None)], ids=["one", "all"]
    )
    async def test_no_byte_of_a_log_reaches_the_terminal_as_it_is(
        self, frozen: Path, make_app: MakeApp, size: tuple[int, int], rank: int | None
    ) -> None:
        folder = fake_home.make_folder(frozen, fake_home.spec_of("evil", 2, 60))
        for one in range(2):
            fake_home.write_log(folder, 0, one, "")
            folder.log_file(0, one).write_bytes(HOSTILE)
        async with log_of(make_app(), rank, "evil", size=size) as (_, pilot, screen):
            pager = screen.pager
            await pilot.press("g")
            seen = ""
            for step in (*[1] * 12, 0, *[-1] * 12):
                if step:
                    pager.action_page(step)
                else:
                    pager.set_wrap(True)
                for y in range(pager.size.height):
                    strip = pager.render_line(y)
                    assert strip.cell_length == pager.size.width
                    assert sum(segment.cell_length for segment in strip) == pager.size.width
                    text = strip.text
                    text.encode("utf-8")
                    assert all(char.isprintable() for char in text), ascii(text)
                    seen += text
            assert "[red]no[/red]" in seen and "owned" not in seen and "tabs" in seen


class TestForeign:
    async def test_its_output_is_what_can_be_read(self, held_gpus: Path, make_app: MakeApp) -> None:
        view_ = fake_foreign.healthy()
        async with log_of(make_app(), None, view_.job, foreign=True) as (app, pilot, screen):
            await until(pilot, lambda: "step 1841 loss 2.0159" in shown(app))
            assert "/home/root/run.log" in title(screen)
            await press(pilot, screen, "right_square_bracket")
            await look(pilot, 2)
            await until(pilot, lambda: "output: rank 0" in title(screen))
            await until(pilot, lambda: "step 1841 loss 2.0159" in shown(app))
            assert "printed by rank 0" in screen.explain()[0][1]

    async def test_where_nothing_can_be_read_it_says_why_and_what_to_do(
        self, held_gpus: Path, make_app: MakeApp
    ) -> None:
        view_ = fake_foreign.healthy()
        fake_foreign.FakeWorld.lines.clear()
        async with log_of(make_app(), None, view_.job, foreign=True) as (app, pilot, _):
            await until(pilot, lambda: "no output read yet" in shown(app))
            assert "ddptop launch saves a log for every rank" in shown(app)


async def test_the_reader_ends_with_its_screen(frozen: Path, make_app: MakeApp) -> None:
    fake_logs.eight_ranks(frozen)
    async with log_of(make_app(), 0) as (_, pilot, screen):
        thread = screen.pager.reader._thread
        assert thread.is_alive()
        await pilot.press("q")
        await until(pilot, lambda: not thread.is_alive())


async def test_what_is_typed_in_one_go_reaches_the_field(frozen: Path, make_app: MakeApp) -> None:
    fake_logs.eight_ranks(frozen)
    async with log_of(make_app(), 0) as (app, pilot, screen):
        for key in ("slash", *"epoch", "[", "0", "3", "]", "enter"):
            name = {"[": "left_square_bracket", "]": "right_square_bracket"}.get(key, key)
            app.post_message(events.Key(name, key if len(key) == 1 else None))
        await until(pilot, lambda: screen._search and not screen._is_searching)
        assert screen._bar.text == "epoch[03]"
        assert "no match" in shown(app)
