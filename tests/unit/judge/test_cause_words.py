"""Text for signals, exit statuses, and known errors, and which errors mark a victim."""

from __future__ import annotations

import pytest
from tests.support.tables import table

from ddptop_runner.judge.causes.error_text import (
    LOST,
    MAYBE_LOST,
    NOT_A_VICTIM,
    WAITED,
    exit_code_in_words,
    known_error,
    last_words,
    victim_of,
    victim_of_text,
)
from ddptop_runner.model.diagnose import PythonException

KINDS = {"LOST": LOST, "MAYBE_LOST": MAYBE_LOST, "WAITED": WAITED, "NOT_A_VICTIM": NOT_A_VICTIM}
VICTIMS = table(__file__, "victims")


@pytest.mark.parametrize("case", VICTIMS.values(), ids=list(VICTIMS))
def test_victims(case):
    text, expected = case["text"], KINDS[case["victim"]]
    assert victim_of_text(text) == expected
    assert victim_of(PythonException("RuntimeError", text, None), "") == expected
    assert victim_of(PythonException("RuntimeError", "x", None, detail=text), "") == expected
    of_log = NOT_A_VICTIM if expected == MAYBE_LOST else expected
    assert victim_of(None, text) == of_log


KNOWN = table(__file__, "known")


@pytest.mark.parametrize("case", KNOWN.values(), ids=list(KNOWN))
def test_known_errors(case):
    known = known_error(case["text"])
    assert known is not None
    assert known.kind == case.get("kind")
    assert case["words"] in known.words


def test_an_unknown_error():
    assert known_error("bad shape") is None


@pytest.mark.parametrize(
    ("code", "said"),
    [(137, "SIGKILL"), (139, "SIGSEGV"), (127, "did not find"), (126, "could not")],
)
def test_exit_codes(code, said):
    assert said in (exit_code_in_words(code) or "")


def test_a_code_of_the_programs_own():
    assert exit_code_in_words(1) is exit_code_in_words(7) is None


@pytest.mark.parametrize("case", table(__file__, "last_words"))
def test_last_words(case):
    assert last_words(case["tail"]) == case.get("words")
