"""What a search pattern matches, and that none can freeze the viewer."""

from __future__ import annotations

import itertools
import time

import pytest
from ddptop.logs import search
from ddptop.logs.search import MAX_MARKS, pattern_of

HOSTILE = ("a" * 32_000, "=" * 32_000, "1" * 32_000, "ab" * 16_000, "abc\n" * 8_000)


def test_small_letters_find_capitals_and_capitals_only_themselves() -> None:
    assert pattern_of("error").finds("An ERROR")
    assert not pattern_of("Error").finds("an error")
    assert pattern_of("Error").note == "case-sensitive"
    assert pattern_of("größe").finds("GRÖSSE") is False
    assert pattern_of("größe").finds("GRÖßE")


def test_regexes_and_what_is_none() -> None:
    one = pattern_of(r"step \d+0\b")
    assert one.note.startswith("regex") and one.finds("STEP 40 x") and not one.finds("step 41")
    assert one.places("step 40 STEP 50") == [(0, 7), (8, 15)]
    bad = pattern_of("loss [")
    assert "invalid regex" in bad.note
    assert bad.finds("the LOSS [0]") and bad.places("the loss [0]") == [(4, 10)]
    assert not pattern_of(r"\S+x").note.endswith("case-sensitive")
    assert pattern_of("x*").places("aaa") == []
    assert len(pattern_of("a").places("a" * 999)) == MAX_MARKS


def test_what_may_be_in_bytes_is_never_missed() -> None:
    colored = b"step \x1b[31mER\x1b[0mROR\r\nbar 1%\rbar 100%\n"
    for text in ("error", r"^step error$", "100%", r"error\s*$", "^bar 100%$"):
        assert pattern_of(text).may_be_in(colored), text
    assert not pattern_of("nowhere").may_be_in(colored)
    assert pattern_of("日本").may_be_in("日本\n".encode() + b"\xff")


@pytest.mark.parametrize(
    "text", ["(a+)+$", "(.*)*x", "(a|aa)*b", "(a?){30}a{30}", "a?" * 9, r"\s*x*\s*y", r"(\w+) \1"]
)
def test_what_could_take_for_ever_is_searched_as_it_is_written(text: str) -> None:
    pattern = pattern_of(text)
    assert "regex is too slow; matching literally" in pattern.note
    assert pattern.finds(f"before {text} behind") and not pattern.finds("a" * 40 + "b")


@pytest.mark.parametrize("text", [".*x", r"\d+\s*x", "a*b*q", ".*=.*=x", r"\d+/\d+ .*: \d+\.\d+"])
def test_no_line_holds_a_regex_up(text: str) -> None:
    pattern, began_s = pattern_of(text), time.thread_time()
    for log in HOSTILE:
        assert not pattern.may_be_in(log.encode())
        assert not pattern.places(log)
    assert time.thread_time() - began_s < 5.0


def test_a_slow_regex_is_given_up_at_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SLOW_S", -1.0)
    pattern = pattern_of("loss.*nan")
    assert pattern.finds("loss is nan") and pattern.is_slow
    assert not pattern.may_be_in(b"loss is nan\n" * 1000)
    assert pattern.places("loss is nan") == []


def test_a_regex_is_not_slow_because_the_viewer_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count(step=3600.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    pattern = pattern_of("loss.*nan")
    assert pattern.finds("loss is nan") and not pattern.is_slow


def test_a_regex_is_tried_on_the_start_of_a_line() -> None:
    pattern = pattern_of("loss.*nan")
    line = "loss is nan" + " " * 2000
    assert pattern.finds(line) and pattern.places(line) == [(0, 11)]
    assert not pattern.finds(" " * 2000 + line)
