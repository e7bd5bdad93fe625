"""From the ends of logs to an exception; all texts are real output of torch or Python."""

from __future__ import annotations

import pytest

from ddptop_runner.judge.causes.error_text import last_exception
from ddptop_runner.model.diagnose import PythonException
from ddptop_runner.store.log_clean import sanitize

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

TORCH = "/v/lib/python3.11/site-packages/torch/"
PYTHON = "/usr/lib/python3.11/"


def framed(*files: str) -> str:
    return "".join(f'  File "{file}", line 1, in f\n    code\n' for file in files)


def traceback(*files: str, error: str = "ValueError: bad") -> str:
    return f"Traceback (most recent call last):\n{framed(*files)}{error}\n"


def prefixed(text: str) -> str:
    """An uncaught exception as torch prints it: blank lines have no prefix."""
    return "".join(f"[rank1]: {line}\n" if line else "\n" for line in text.splitlines())


WORKER = """ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _loop
    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]
           ^^^^^^^^^^^^^^^^^^^^
  File "/w/data.py", line 11, in __getitem__
    raise ValueError("sample %d\\nis damaged" % i)
ValueError: sample 9
is damaged
"""
IN_WORKER = traceback("/w/train.py", TORCH + "_utils.py", error=WORKER)
SPAWNED = (
    traceback(
        "/w/train.py",
        TORCH + "multiprocessing/spawn.py",
        error="torch.multiprocessing.spawn.ProcessRaisedException: ",
    )
    + "\n-- Process 1 terminated with the following error:\n"
    + traceback(TORCH + "multiprocessing/spawn.py", "/w/train.py", error="ValueError: in spawned 1")
)
BAD = PythonException("ValueError", "bad", "/w/train.py:1 in f")
MORE = {
    "under a progress bar without a line's end": (
        " 45%|####| 45/100 [00:01<00:01, 44it/s]"
        + prefixed(traceback("/w/train.py"))
        + "step\n" * 50,
        BAD,
    ),
    "a progress bar and torch's noise after it": (
        prefixed(traceback("/w/train.py"))
        + "terminate called without an active exception\n"
        + " 45%|####| 45/100\n" * 50,
        BAD,
    ),
    "handled ones carry no prefix": (
        prefixed(traceback("/w/train.py"))
        + "ERROR\n"
        + traceback("/w/log.py", error="KeyError: 1"),
        BAD,
    ),
    "all lines of a prefixed message": (
        prefixed(traceback("/w/train.py", error="ValueError: bad\nsecond\n\nfourth")),
        PythonException("ValueError", "bad", "/w/train.py:1 in f", detail="second"),
    ),
    "between its lines another thread writes": (
        prefixed("Traceback (most recent call last):")
        + "loss: 3.2\n"
        + prefixed(framed("/w/train.py") + "ValueError: bad"),
        BAD,
    ),
    "torch's frames are not named": (
        traceback("/w/train.py", TORCH + "nn/modules/module.py", TORCH + "nn/modules/linear.py"),
        BAD,
    ),
    "a library's own place is the script's": (
        traceback("/w/train.py", PYTHON + "json/decoder.py"),
        BAD,
    ),
    "another package is named": (
        traceback("/w/train.py", "/v/lib/python3.11/site-packages/timm/data.py"),
        PythonException("ValueError", "bad", "/v/lib/python3.11/site-packages/timm/data.py:1 in f"),
    ),
    "the probe is never named": (
        traceback("/w/train.py", "/d/ddptop_runner/probe/hooks.py", TORCH + "_tensor.py"),
        BAD,
    ),
    "nor where nothing else is": (
        traceback("/d/ddptop_runner/probe/hooks.py"),
        PythonException("ValueError", "bad", None),
    ),
    "only torch": (
        traceback(TORCH + "a.py"),
        PythonException("ValueError", "bad", TORCH + "a.py:1 in f"),
    ),
    "raised from another": (
        prefixed(
            traceback("/w/a.py", error="KeyError: 'k'")
            + "\nThe above exception was the direct cause of the following exception:\n\n"
            + traceback("/w/train.py")
        ),
        PythonException(
            "ValueError",
            "bad",
            "/w/train.py:1 in f",
            because="KeyError: 'k' (at /w/a.py:1 in f)",
        ),
    ),
    "in a data loader's worker": (
        prefixed(IN_WORKER),
        PythonException(
            "ValueError",
            "sample 9",
            "/w/data.py:11 in __getitem__",
            origin="in DataLoader worker process 0",
            detail="is damaged",
        ),
    ),
    "in a data loader's worker, without a prefix": (
        IN_WORKER,
        PythonException(
            "ValueError",
            "sample 9",
            "/w/data.py:11 in __getitem__",
            origin="in DataLoader worker process 0",
            detail="is damaged",
        ),
    ),
    "in a spawned process": (
        SPAWNED,
        PythonException(
            "ValueError",
            "in spawned 1",
            "/w/train.py:1 in f",
        ),
    ),
    "ignored by Python": (
        "Exception ignored in: <function f at 0x7f>\n" + traceback("/w/train.py"),
        None,
    ),
    "of a thread": ("Exception in thread Thread-1 (f):\n" + traceback("/w/train.py"), None),
    "in colors, redrawn": (
        sanitize(" 10%|#\r 20%|##\r\x1b[31m" + traceback("/w/train.py").replace("\n", "\x1b[0m\n")),
        BAD,
    ),
    "the message on the next line": (
        prefixed(traceback("/w/train.py", error="ValueError: \nNCCL error in: x")),
        PythonException("ValueError", "NCCL error in: x", "/w/train.py:1 in f"),
    ),
}
LOGS = {
    **MORE,
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
        PythonException(
            "OSError",
            "[Errno 28] No space left on device",
            "/w/train.py:40 in save",
            because="ValueError: bad shape (at /w/train.py:12 in main)",
        ),
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
            detail="See documentation for memory management",
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
