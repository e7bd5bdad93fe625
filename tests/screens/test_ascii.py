"""The interface in ASCII: every glyph has a substitute, and every cell stays where it is."""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Callable
from pathlib import Path

import ddptop
import pytest
from ddptop import terminal
from ddptop.tui.app import DdptopApp
from ddptop.tui.ascii import braille, glyph, harmless, translated
from rich.cells import cell_len
from tests.support import fake_gpus, fake_home
from tests.support.driving import look, running

MakeApp = Callable[..., DdptopApp]

NO_GLYPHS = {"glossary.py", "ascii.py"}
"""Modules whose letters are translated, or that define the translation."""


def drawn_in_code() -> set[str]:
    """Every glyph in a string of the interface's code, except docstrings and single letters."""
    found: set[str] = set()
    code = Path(ddptop.__path__[0])
    rooms = [code / room for room in ("job", "charts", "logs", "draw", "sources", "tui")]
    for file in (file for room in rooms for file in room.rglob("*.py")):
        if file.name in NO_GLYPHS:
            continue
        tree = ast.parse(file.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in told:
                found |= {letter for letter in str(node.value) if not letter.isascii()}
    return {letter for letter in found if unicodedata.category(letter)[0] in "SPN"}


def text_of(app: DdptopApp) -> list[str]:
    """The lines on the terminal."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def in_ascii(text: str, encoding: str) -> str:
    return "".join(translated(character, encoding) for character in text)


class TestGlyphs:
    def test_every_one_that_the_code_draws_has_a_character(self) -> None:
        drawn = drawn_in_code()
        assert {"●", "─", "━", "…", "▲"} <= drawn
        assert sorted(letter for letter in drawn if glyph(letter) is None) == []

    def test_each_becomes_one_ascii_character(self) -> None:
        blocks = [*range(0x2190, 0x2C00), *range(0x1FB00, 0x1FBFF)]
        for code in blocks:
            found = glyph(chr(code))
            if found is not None:
                assert len(found) == 1 and found.isascii() and found.isprintable(), hex(code)
        assert None not in {glyph(chr(code)) for code in range(0x2500, 0x2600)}

    def test_braille_keeps_its_height(self) -> None:
        assert braille(0) == " "
        assert braille(0b00001001) == "'"  # the upper row
        assert braille(0b11000000) == "."  # the lower row
        assert braille(0b01000111) == ":"  # the left column
        assert braille(0xFF) == "#" == glyph(chr(0x28FF))

    def test_columns_of_a_small_history_grow(self) -> None:
        heights = in_ascii("▁▂▃▄▅▆▇█", "ascii")
        assert len(set(heights)) >= 6 and heights[-1] == "#"
        assert len(set(in_ascii("↗→↘↑↓", "ascii"))) == 5

    @pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii", "koi8-r"])
    def test_no_cell_moves(self, encoding: str) -> None:
        text = "job é ── ⣿⡇ 日本語 ▲ │ 🚀 Ж e\u0301 ⏩ x"
        translated = in_ascii(text, encoding)
        assert cell_len(translated) == cell_len(text)
        translated.encode(encoding)

    def test_names_stay_where_they_can_be_written(self) -> None:
        assert in_ascii("für 日本 ✓", "utf-8") == "für 日本 +"
        assert in_ascii("für 日本", "latin-1") == "für ????"
        assert in_ascii("für", "ascii") == "f?r"

    def test_nothing_moves_the_cursor(self) -> None:
        assert harmless("a\x1b[2J\x07\x9b\u202e\udcff\u200bb") == "a[2J?b"
        assert harmless("für 日本\u00a0x") == "für 日本\u00a0x"


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.utf8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LANG": "de_DE@euro"}, True),
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, True),
        ({"LC_ALL": "", "LANG": "en_US.UTF-8"}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),  # that is what Python itself sets
        ({"LANG": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "xx_XX.nonsense"}, True),
        ({}, False),
        ({"TMUX": "/tmp/x"}, True),
        ({"STY": "1.x"}, True),
        ({"TMUX": "/tmp/x", "LANG": "en_US.UTF-8"}, False),
        ({"TERM": "linux", "LANG": "en_US.UTF-8"}, True),
        ({"TERM": "vt100", "LANG": "en_US.UTF-8"}, True),
        ({"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}, False),
    ],
)
def test_when_ascii_is_wanted(env: dict[str, str], wanted: bool) -> None:
    assert terminal.wants_ascii(env) is wanted


@pytest.mark.parametrize(
    ("env", "written", "letters"),
    [
        ({"LANG": "en_US.UTF-8"}, "utf-8", "utf-8"),
        ({}, "utf-8", "utf-8"),
        ({"LANG": "de_DE.ISO-8859-1"}, "iso-8859-1", "iso8859-1"),
        ({"LANG": "de_DE.ISO-8859-1"}, "utf-8", "ascii"),
        ({"LC_ALL": "C"}, "utf-8", "ascii"),
        ({"LANG": "en_US.UTF-8"}, None, "ascii"),
    ],
)
def test_which_letters_can_be_drawn(env: dict[str, str], written: str | None, letters: str) -> None:
    assert terminal.letters(env, written) == letters


KEYS = [
    (),
    ("ctrl+p",),
    ("n",),
    ("v",),
    ("x",),
    ("enter",),
    ("slash",),
    ("enter", "question_mark"),
    ("enter", "l"),
    ("enter", "e"),
    ("enter", "p"),
    ("enter", "C"),
    ("enter", "enter"),
    ("enter", "f"),
]
"""Keys typed from the overview on: every screen, including modal ones."""


async def test_no_cell_of_any_screen_is_anything_else(eight_gpus: Path, make_app: MakeApp) -> None:
    fake_gpus.eight_gpu_ranks(eight_gpus)
    fake_home.failed_job(eight_gpus)
    async with running(make_app(letters="ascii")) as (app, pilot):
        app.notify("a toast with a frame", title="title", timeout=60)
        overview = app.screen
        seen: set[str] = set()
        for keys in KEYS:
            await pilot.press(*keys)
            await look(pilot)
            await pilot.pause()
            seen.add(type(app.screen).__name__)
            lines = text_of(app)
            assert any(line.strip() for line in lines), keys
            assert [line for line in lines if not line.isascii()] == [], keys
            while app.screen is not overview:
                app.pop_screen()
                await pilot.pause()
    assert {"JobScreen", "LogsScreen", "ConfirmScreen", "HelpScreen", "Palette"} <= seen
