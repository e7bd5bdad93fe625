"""The text of a log as cells, and searching it."""

from __future__ import annotations

import random

import pytest
from ddptop.logs.drawing import label_width, marked, row_line, safe, shape_of, thumb, wrapped
from ddptop.logs.messages import LogRow
from ddptop.logs.search import pattern_of
from ddptop.style import plain, width
from rich.cells import cell_len

ODD = [
    "plain",
    "tab\tand\ttab",
    "日本語 wide テスト",
    "e\u0301 combining n\u0303",
    "zalgo " + "x" + "\u0300\u0301\u0302\u0303" * 40,
    "\u0301leading mark",
    "\u202eRTL override\u202c עברית العربية",
    "zero\u200b\u200d\u200c\ufeff width\u00ad\u2060",
    "emoji 👩\u200d👩\u200d👧 ❤\ufe0f 🇩🇪",
    "surrogate \udc80\ud83d half",
    "nul \x00 bell \x07 esc \x1b[2J csi \x9b2J del \x7f line \u2028 sep \x85",
    "tags \U000e0041\U000e007f \U0001d173 \ufff9",
    "\t日\t",
]


@pytest.mark.parametrize("text", ODD)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    made = safe(text)
    made.encode("utf-8")
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in made)
    assert not set(made) & set("\u200b\u200c\u200d\u200e\u200f\u2028\u202e\u2066\ufeff\ufe0f\u00ad")
    assert cell_len(made) == sum(map(cell_len, made)), "each character has its own width"
    assert safe(made) == made


def test_tabs_go_to_the_next_stop_and_marks_stay_on_their_letter() -> None:
    assert safe("a\tb") == "a       b"
    assert safe("日\tb") == "日      b"
    assert safe("e\u0301x") == "e\u0301x"
    assert safe("\u0301x") == "x"
    assert safe("x" + "\u0301" * 50) == "x" + "\u0301" * 3


def test_wrapping_loses_nothing_and_never_is_too_wide() -> None:
    chance = random.Random(1)
    for _ in range(300):
        text = safe("".join(chance.choice("ab日\u0301 é👧") for _ in range(chance.randrange(40))))
        cells = chance.randrange(2, 12)
        parts = wrapped(text, cells)
        assert "".join(text[a:b] for a, b in parts) == text
        assert all(cell_len(text[a:b]) <= cells for a, b in parts)


def test_a_shifted_line_starts_at_its_cell_and_a_wide_character_is_not_halved() -> None:
    for text, shift, shown in (("日本語", 2, "本語"), ("日本語", 3, "本語"), ("abc", 5, "")):
        row = LogRow(0, 9, text)
        drawn = row_line(row, shape_of(row, 9, wrap=False), 0, 11, 0, shift=shift)
        assert plain(drawn) == f"  {shown}"


def test_marks_stand_only_in_their_part() -> None:
    assert marked("abcdef", 1, 5, "x", [(0, 2), (3, 9)]) == (
        ("b", "match"),
        ("c", "x"),
        ("de", "match"),
    )


def test_a_line_s_rows_fit() -> None:
    row = LogRow(0, 9, "日本語 " * 9 + "end", "error", label="0-7,9")
    shape = shape_of(row, 10, wrap=True)
    lines = [row_line(row, shape, part, 20, 5) for part in range(len(shape.parts))]
    assert plain(lines[0]).startswith("✗ 0-7,9 │ 日本語")
    assert plain(lines[1]).startswith("┆       │ ")
    assert all(width(line) <= 20 for line in lines)
    cut = row_line(row, shape_of(row, 10, wrap=False), 0, 20, 5, shift=3)
    assert plain(cut).endswith("…") and width(cut) <= 20
    assert label_width([row, LogRow(0, 0, "", label="x" * 99)]) == 16


def test_what_was_found_is_marked_in_a_shifted_line() -> None:
    row = LogRow(0, 9, "x" * 50 + "needle" + "y" * 50)
    drawn = row_line(
        row, shape_of(row, 30, wrap=False), 0, 32, 0, shift=40, pattern=pattern_of("needle")
    )
    assert ("needle", "match") in drawn


def test_the_scroll_bar_s_handle() -> None:
    assert thumb(10, 0.0, 0.1) == (0, 1)
    assert thumb(10, 0.9, 0.1) == (9, 10)
    assert thumb(10, 0.0, 1.0) == (0, 10)
    assert thumb(10, 0.5, 1e-9) == (5, 6)
