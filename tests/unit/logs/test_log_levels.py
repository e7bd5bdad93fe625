"""The level of a line from loggers, Python, glog, NCCL, and CUDA, and lines that only look like
one."""

from __future__ import annotations

import pytest
from ddptop.logs.levels import MAX_BLOCK_LINES, LevelReader, level_of, may_be_grave
from tests.support.tables import table


@pytest.mark.parametrize("text", table(__file__, "grave"))
def test_an_error(text: str) -> None:
    assert level_of(text.removeprefix("[rank0]:")) == "error"
    assert may_be_grave(text.encode()) and may_be_grave(text.encode(), "error")


@pytest.mark.parametrize("text", table(__file__, "warned"))
def test_a_warning(text: str) -> None:
    assert LevelReader().read(text) == ("warn", False)
    assert may_be_grave(text.encode())


@pytest.mark.parametrize("text", table(__file__, "plain"))
def test_neither(text: str) -> None:
    assert level_of(text) == ""


def test_plain_bytes_are_passed_over() -> None:
    assert not may_be_grave(b"step 1 loss 2.0\nstep 2 loss 1.9\n" * 100)
    assert not may_be_grave(b"UserWarning: small\n", "error")


def levels(*texts: str) -> list[tuple[str, bool]]:
    reader = LevelReader()
    return [reader.read(text) for text in texts]


def test_a_traceback_is_one_block_and_its_last_line_stands_out() -> None:
    assert levels(
        "step 1",
        "Traceback (most recent call last):",
        '  File "train.py", line 81, in step',
        "    x = x.view(64)",
        "",
        "ValueError: no",
        "step 2",
        "",
        "During handling of the above exception, another exception occurred:",
    ) == [
        ("", False),
        ("error", False),
        ("error", True),
        ("error", True),
        ("error", True),
        ("error", False),
        ("", False),
        ("", False),
        ("error", True),
    ]


def test_tracebacks_of_two_ranks_in_one_log_do_not_mix() -> None:
    found = levels(
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: step 3",
        '[rank0]:   File "train.py", line 8',
        "[rank1]:   an indented line",
        "[rank0]: MyProblem: no",
        "[rank0]: step 4",
    )
    assert [level for level, _ in found] == ["error", "", "error", "", "error", ""]


def test_an_exception_without_the_word_ends_its_traceback() -> None:
    found = levels("Traceback (most recent call last):", "  File", "my.Odd: thing", "my.Odd: thing")
    assert [level for level, _ in found] == ["error", "error", "error", ""]


def test_a_traceback_ends_some_time() -> None:
    found = levels("Traceback (most recent call last):", *["  x"] * (MAX_BLOCK_LINES + 5))
    assert found[MAX_BLOCK_LINES] == ("error", True)
    assert found[-1] == ("", False)


def test_a_warning_takes_its_code_line_along() -> None:
    found = levels("a.py:8: UserWarning: small", "  warnings.warn('small')", "  indented")
    assert found == [("warn", False), ("warn", True), ("", False)]
