"""What ends a rank, told with its last word: the exception, and where it was raised."""

from __future__ import annotations

import subprocess

import pytest

from ddptop_runner.probe import ending

RAISE = """
import os, sys, torch, {imports}
def fails(number):
    {text}
def outer():
    fails(1)
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ValueError('no such\\n\\tfile')", "ValueError: no such file"),
        ("[][number]", "IndexError: list index out of range"),
        ("{}['a']", "KeyError: 'a'"),
        ("raise subprocess.SubprocessError", "subprocess.SubprocessError"),
        ("raise Own", "Own"),
        ("assert not number", "AssertionError"),
        ("fails(number)", "RecursionError: maximum recursion depth exceeded"),
        ("raise OSError('\\u4e2d' * 5000)", "OSError: " + "\u4e2d" * 191),
    ],
)
def test_unhandled_exception_is_reported_with_its_location(stub_torch, text, says):
    head = RAISE.format(imports="subprocess", text=text)
    script = stub_torch.write("s.py", head + "class Own(Exception): pass\nouter()\n")
    process = stub_torch.start(script)
    process.communicate(timeout=600)
    last = stub_torch.receiver.last(process.pid)
    assert process.returncode == 1
    assert (last.raised, last.raised_at) == (says, "s.py:4 in fails")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("pass", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('bad arguments')", 1),
        ("raise KeyboardInterrupt", -2),
        ("threading.Thread(target=lambda: 1 / 0).start()", 0),
        # caught, and survived, though something has called it the last
        ("sys.last_value = _caught()[1]", 0),
    ],
)
def test_end_without_a_script_exception_reports_none(stub_torch, text, status):
    caught = (
        "def _caught():\n    try: 1 / 0\n    except ZeroDivisionError: return sys.exc_info()\n"
        "outer()\n"
    )
    head = RAISE.format(imports="threading", text=text)
    process = stub_torch.start(stub_torch.write("s.py", head + caught))
    process.communicate(timeout=600)
    last = stub_torch.receiver.last(process.pid)
    assert (process.returncode, last.raised, last.raised_at) == (status, None, None)


def test_a_rank_that_fails_before_its_first_step_and_its_helper_that_fails(stub_torch):
    script = "import subprocess, sys, torch; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    process = stub_torch.start("-c", script, "import torch; 1 / 0")
    process.communicate(timeout=600)
    assert {message.pid for message in stub_torch.receiver.messages} == {process.pid}
    assert stub_torch.receiver.last(process.pid).raised is None


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\n    g()\n'


@pytest.mark.parametrize(
    ("message", "gist"),
    [
        (
            f"Caught KeyError in DataLoader worker process 0.\nOriginal {TRACEBACK}KeyError: 'a'\n",
            "Caught KeyError in DataLoader worker process 0. KeyError: 'a'",
        ),
        (
            f"\n\n-- Process 1 terminated with the following error:\n{TRACEBACK}OSError: no disk\n",
            "-- Process 1 terminated with the following error: OSError: no disk",
        ),
        (
            "in user code:\n\n" + "    File x.py, line 3\n" * 900 + "    ValueError: bad\n",
            "in user code: ValueError: bad",
        ),
        ("CUDA error: out of range\nCompile with X", "CUDA error: out of range Compile with X"),
        ("a:", "a:"),
        ("", ""),
    ],
)
def test_the_gist_of_a_message_is_in_its_first_and_last_line(message, gist):
    assert ending.in_words(ValueError(message)) == "ValueError" + (gist and f": {gist}")


def test_the_place_is_the_scripts_also_below_installed_packages():
    try:
        subprocess.run([], check=True)
    except (IndexError, ValueError) as error:
        place = ending.place(error)
    assert place is not None and place.startswith("test_raised.py:")
