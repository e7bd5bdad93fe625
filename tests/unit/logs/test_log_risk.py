"""Which patterns are matched against logs, and against how much of a line."""

from __future__ import annotations

import time

import pytest
from ddptop.logs.search import REFUSED, max_chars, pattern_of

HOSTILE = ("a" * 32_000, "=" * 32_000, "1" * 32_000, "ab" * 16_000, "abc\n" * 8_000)


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("nan|inf", None),
        (r"^rank \d: (loss|step)$", None),
        (r"x{2}y?", None),
        ("foo{", None),
        (r"step\s\d+", 4000),
        ("[]x]+", 4000),
        (r"\(x\)+", 4000),
        ("(?i)rank.*", 1000),
        (r"step\s+\d+", 1000),
        ("loss.*nan", 1000),
        ("[^q]{3,}y", 1000),
        ("loss.*rank.*nan", 300),
        (r"\d+/\d+ .*loss: \d+\.\d+", 300),
        (r"(?P<which>\d+)\s", 4000),
    ],
)
def test_ordinary_patterns_are_tried_on_much_of_a_line(text: str, characters: int | None) -> None:
    assert max_chars(text) == characters


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+$",
        "(.*)*x",
        "(?:x+x+)+y",
        "(a|aa)*b",
        "((a|b)c)+",
        "(a?){30}a{30}",
        "((a{2,5}){2,5}){2,5}",
        "a?" * 9 + "a" * 9,
        ".*.*=",
        r"\s*x*\s*y",
        ".*a.*b.*c",
        r"(\w+) \1",
        "(a)(?(1)b|c)",
    ],
)
def test_what_could_take_for_ever_is_searched_as_it_is_written(text: str) -> None:
    assert max_chars(text) == REFUSED
    pattern = pattern_of(text)
    assert "regex is too slow; matching literally" in pattern.note
    assert pattern.finds(f"before {text} behind") and not pattern.finds("a" * 40 + "b")


@pytest.mark.parametrize("text", [".*x", "[^q]*y", r"\d+\s*x", "a*b*q", ".*=.*=x"])
def test_no_line_holds_a_pattern_up(text: str) -> None:
    pattern, began_s = pattern_of(text), time.thread_time()
    for log in HOSTILE:
        assert not pattern.may_be_in(log.encode())
        assert not pattern.places(log)
    assert time.thread_time() - began_s < 5.0


def test_the_bar_says_how_far_into_a_line_is_looked() -> None:
    pattern = pattern_of("loss.*nan")
    assert pattern.note == "regex, only the first 1000 characters of each line"
    line = "loss is nan" + " " * 1000
    assert pattern.finds(line) and pattern.places(line) == [(0, 11)]
    assert not pattern.finds(" " * 1000 + line)
    assert pattern.may_be_in(b"\n".join([b" " * 2000, line.encode()]))
