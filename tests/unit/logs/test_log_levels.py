"""The level of a line from loggers, Python, glog, NCCL, and CUDA, and lines that only look like
one."""

from __future__ import annotations

import pytest
from ddptop.logs.levels import MAX_BLOCK_LINES, LevelReader, level_of, may_be_grave

GRAVE = [
    "ERROR:root:cannot read shard 7",
    "2026-03-14 12:00:00,123 - train - ERROR - cannot read shard 7",
    "2026-03-14 12:00:00.123 | CRITICAL | train:main:81 - no space",
    "[ERROR] train.py: no such file",
    '{"level": "error", "msg": "no such file"}',
    "level=error msg=gone",
    "E0314 12:00:00.123456 4711 torch/distributed/elastic/multiprocessing/api.py:882] failed",
    "[E314 12:00:00.123456789 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective",
    "2026-03-14 12:00:00.123456: E external/local_xla/xla/stream_executor/cuda.cc:51] x",
    "Traceback (most recent call last):",
    "RuntimeError: shape '[64, 3]' is invalid",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "KeyboardInterrupt",
    "INFO now: CUDA error: device-side assert triggered",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed",
    "Segmentation fault (core dumped)",
    "Killed",
    "terminate called after throwing an instance of 'std::runtime_error'",
    "srun: error: node-a: task 3: Out Of Memory",
    "Fatal Python error: Bus error",
    "FATAL: no GPU",
]
WARNED = [
    "WARNING:root:slow",
    "2026-03-14 12:00:00,123 train WARNING the loader is slow",
    "train.py:8: UserWarning: the batch is small",
    "W0314 12:00:00.123456 4711 torch/run.py:792] Setting OMP_NUM_THREADS to 1",
    "[rank0]:[W314 12:00:00.123456789 ProcessGroupNCCL.cpp:1250] destroy_process_group() was not",
    "node-a:4711:4720 [0] NCCL WARN Cuda failure 'out of range'",
    "Warning: no tokenizer",
    "[warning] cache is full",
    "main.cu(81): warning: variable is never used",
]
PLAIN = [
    "",
    "step 12 loss 0.3411",
    "mean squared error 0.032",
    "val_error: 0.12  train_error: 0.10",
    "error: 0.0312",
    "0 errors so far",
    "INFO: error rate falls",
    "2026-03-14 12:00:00,123 - train - INFO - WARNING lights are on",
    "NCCL_DEBUG=WARN TORCH_CPP_LOG_LEVEL=ERROR",
    "node-a:4711:4711 [0] NCCL INFO Bootstrap : Using eth0",
    "I0314 12:00:00.123456 4711 run.py:1] started, nothing warned of",
    "DEBUG: raised ERROR to caller",
    "Interrupted 3 times, Exceptional results",
    "room zoom loom",
    "E = mc2, F = ma, W = Fs",
]


@pytest.mark.parametrize("text", GRAVE)
def test_an_error(text: str) -> None:
    assert level_of(text.removeprefix("[rank0]:")) == "error"
    assert may_be_grave(text.encode()) and may_be_grave(text.encode(), "error")


@pytest.mark.parametrize("text", WARNED)
def test_a_warning(text: str) -> None:
    assert LevelReader().read(text) == ("warn", False)
    assert may_be_grave(text.encode())


@pytest.mark.parametrize("text", PLAIN)
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
