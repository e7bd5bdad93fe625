"""From the ends of logs to an exception; all texts are real output of torch or Python."""

from __future__ import annotations

import pytest
from tests.support.tables import table

from ddptop_runner.judge.causes.error_text import last_exception
from ddptop_runner.model.diagnose import PythonException

LOGS = table(__file__, "logs")


@pytest.mark.parametrize("case", LOGS.values(), ids=list(LOGS))
def test_last_exception(case):
    known = case.get("exception")
    expected = None if known is None else PythonException(**{"place": None, **known})
    assert last_exception(case["text"]) == expected


def test_an_exception_that_the_script_handled_long_before_its_end_is_not_the_cause():
    handled = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n'
    assert last_exception(handled + "warning\n" * 5) is not None
    assert last_exception(handled + "step\n" * 100) is None


@pytest.mark.parametrize(
    ("exception", "words"),
    [
        (PythonException("ValueError", "bad", "a.py:1 in f"), "ValueError: bad (at a.py:1 in f)"),
        (PythonException("ValueError", "", "a.py:1"), "ValueError (at a.py:1)"),
        (PythonException("KeyboardInterrupt", "", None), "KeyboardInterrupt"),
        (
            PythonException("ValueError", "bad", "a.py:1", "KeyError: 1", "in x"),
            "ValueError: bad in x (at a.py:1), caused by KeyError: 1",
        ),
    ],
)
def test_exception_in_words(exception, words):
    assert exception.in_words() == words
