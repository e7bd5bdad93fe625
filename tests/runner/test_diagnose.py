"""From exits and log tails to a cause: each log is one that torch or Python really writes."""

from __future__ import annotations

import pytest

from ddptop_runner.diagnose import (
    PythonException,
    RankExit,
    failure_cause,
    first_failure,
    is_victim,
    last_exception,
)

PLAIN = """step 1
Traceback (most recent call last):
  File "/w/train.py", line 30, in <module>
    main()
  File "/w/train.py", line 12, in main
    raise ValueError("bad shape")
ValueError: bad shape
"""
MARKERS = PLAIN.replace("    main()\n", "    main()\n    ~~~~^^\n")
PREFIXED = "".join(f"[rank12]: {line}\n" for line in PLAIN.splitlines()[1:])
CHAINED = (
    PLAIN
    + """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/w/train.py", line 40, in save
    torch.save(x)
OSError: [Errno 28] No space left on device
"""
)
SYNTAX = """  File "/w/train.py", line 3
    def main(:
             ^
SyntaxError: invalid syntax
"""
DOTTED = """Traceback (most recent call last):
  File "/w/train.py", line 8, in step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
See documentation for memory management
[W1121 ProcessGroup.cpp:1] Warning: destroy_process_group() was not called
"""
NO_MESSAGE = """Traceback (most recent call last):
  File "/w/train.py", line 8, in <module>
    assert x
AssertionError
"""
NO_FRAMES = """Traceback (most recent call last):
KeyboardInterrupt
"""
ERROR_LINE = """INFO: epoch 1
Error: the data set is empty
"""
TORN = """Traceback (most recent call last):
  File "/w/train.py", line 8, in <module>
"""

LOGS = {
    "plain": (PLAIN, PythonException("ValueError", "bad shape", "/w/train.py:12 in main")),
    "with position markers": (
        MARKERS,
        PythonException("ValueError", "bad shape", "/w/train.py:12 in main"),
    ),
    "prefixed by torch": (
        PREFIXED,
        PythonException("ValueError", "bad shape", "/w/train.py:12 in main"),
    ),
    "the last of a chain": (
        CHAINED,
        PythonException("OSError", "[Errno 28] No space left on device", "/w/train.py:40 in save"),
    ),
    "a syntax error has no traceback": (
        SYNTAX,
        PythonException("SyntaxError", "invalid syntax", "/w/train.py:3"),
    ),
    "the type with its module, the first line of the message": (
        DOTTED,
        PythonException(
            "torch.OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 2.00 GiB.",
            "/w/train.py:8 in step",
        ),
    ),
    "no message": (NO_MESSAGE, PythonException("AssertionError", "", "/w/train.py:8 in <module>")),
    "no frames": (NO_FRAMES, PythonException("KeyboardInterrupt", "", None)),
    "no exception": (ERROR_LINE, None),
    "written to half": (TORN, None),
    "empty": ("", None),
    "cut at the start of the tail": (PLAIN[PLAIN.index("    raise") :], None),
}


@pytest.mark.parametrize("case", LOGS.values(), ids=list(LOGS))
def test_last_exception(case):
    text, expected = case
    assert last_exception(text) == expected


@pytest.mark.parametrize(
    ("exception", "words"),
    [
        (PythonException("ValueError", "bad", "a.py:1 in f"), "ValueError: bad (at a.py:1 in f)"),
        (PythonException("ValueError", "", "a.py:1"), "ValueError (at a.py:1)"),
        (PythonException("KeyboardInterrupt", "", None), "KeyboardInterrupt"),
    ],
)
def test_exception_in_words(exception, words):
    assert exception.in_words() == words


def ended(rank: int, returncode: int | None, at_s: float, by_us: bool = False) -> RankExit:
    return RankExit(rank, 1000 + rank, returncode, at_s, by_us)


@pytest.mark.parametrize(
    ("returncode", "words", "failed"),
    [
        (0, "exited with 0", False),
        (7, "exited with 7", True),
        (-9, "was ended by SIGKILL", True),
        (-70, "was ended by signal 70", True),
        (None, "ended; its exit status is unknown", True),
    ],
)
def test_exit_in_words(returncode, words, failed):
    assert ended(0, returncode, 1.0).in_words() == words
    assert ended(0, returncode, 1.0).failed is failed


def victim(message: str) -> PythonException:
    return PythonException("RuntimeError", message, None)


GLOO = victim("[/pytorch/gloo/transport/tcp/pair.cc:552] Connection closed by peer [127.0.0.1]:65")
NCCL = victim("NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error")
VICTIMS = {
    "gloo lost its peer": (GLOO, True),
    "gloo was reset": (victim("Connection reset by peer"), True),
    "NCCL lost its peer": (NCCL, True),
    "NCCL's watchdog": (victim("NCCL watchdog thread terminated with exception"), True),
    "the store is gone": (victim("Broken pipe"), True),
    "gloo waited in vain": (victim("Application timeout caused pair closure"), True),
    "a bug": (victim("shape mismatch"), False),
    "NCCL for another reason": (victim("NCCL error: unhandled cuda error"), False),
    "no exception": (None, False),
}


@pytest.mark.parametrize("case", VICTIMS.values(), ids=list(VICTIMS))
def test_victims(case):
    exception, expected = case
    assert is_victim(ended(0, 1, 1.0), exception) is expected
    assert is_victim(ended(0, -15, 1.0, by_us=True), exception) is True


BUG = PythonException("ValueError", "bad", "a.py:1")
FIRST = {
    "nobody failed": ([ended(0, 0, 1), ended(1, 0, 2)], {}, None),
    "the earliest": ([ended(0, 1, 2), ended(1, -9, 1)], {0: BUG}, 1),
    "not the victim that died before": (
        [ended(0, 1, 1), ended(1, 1, 2)],
        {0: GLOO, 1: BUG},
        1,
    ),
    "not those that were ended": ([ended(0, -15, 1, True), ended(1, 3, 2)], {}, 1),
    "of victims alone the earliest": ([ended(1, 1, 2), ended(0, 1, 1)], {0: GLOO, 1: GLOO}, 0),
    "an unknown status counts as failed": ([ended(0, 0, 1), ended(1, None, 2)], {}, 1),
    "no exit at all": ([], {}, None),
}


@pytest.mark.parametrize("case", FIRST.values(), ids=list(FIRST))
def test_first_failure(case):
    exits, exceptions, rank = case
    found = first_failure(exits, exceptions)
    assert (None if found is None else found.rank) == rank


CAUSES = {
    "exception": (1, BUG, "x\n", 0, ("exception", None, 1, "ValueError: bad (at a.py:1).")),
    "exit code": (
        3,
        None,
        "loading\nno such data set  \n\n",
        1,
        ("exit_code", None, 3, "Its last line: 'no such data set'. 1 other rank ended after it."),
    ),
    "exit code, silent": (3, None, " \n", 2, ("exit_code", None, 3, "empty. 2 other ranks")),
    "killed": (-9, BUG, "", 0, ("signal", "SIGKILL", None, "out of memory: the signal alone")),
    "aborted: C++ said why": (
        -6,
        None,
        "terminate called: NCCL watchdog\n",
        0,
        ("signal", "SIGABRT", None, "Its last line: 'terminate called: NCCL watchdog'."),
    ),
    "unknown": (None, None, "", 0, ("exit_code", None, None, "its exit status is unknown first")),
}


@pytest.mark.parametrize("case", CAUSES.values(), ids=list(CAUSES))
def test_cause(case):
    returncode, exception, tail, others, (kind, signal, exit_code, words) = case
    cause = failure_cause(ended(3, returncode, 1.0), exception, tail, others, "/e")
    assert (cause.kind, cause.rank, cause.signal, cause.exit_code, cause.evidence) == (
        kind,
        3,
        signal,
        exit_code,
        "/e",
    )
    assert cause.summary.startswith("Rank 3 (pid 1003) ")
    assert words in cause.summary


@pytest.mark.parametrize("what", ["line", "message"])
def test_what_is_quoted_is_as_long_as_a_sentence(what):
    long = "begin" + "x" * 100_000 + "end"
    exception = PythonException("ValueError", long, None) if what == "message" else None
    summary = failure_cause(ended(0, 1, 1.0), exception, long, 0, None).summary
    assert len(summary) < 600
    assert "begin" in summary and "end" in summary and "[...]" in summary


def test_an_exception_that_the_script_handled_long_before_its_end_is_not_the_cause():
    handled = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n'
    assert last_exception(handled + "warning\n" * 5) is not None
    assert last_exception(handled + "step\n" * 100) is None
