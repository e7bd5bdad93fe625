"""The figures in torch's message about exhausted GPU memory."""

from __future__ import annotations

import pytest

from ddptop_runner.judge.causes.error_text import (
    gpu_error_in_words,
    is_gpu_oom,
)

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.25 GiB is free. Process 4242 has 20.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 57.90 GiB memory in use. Of the allocated memory 50.00 GiB is "
    "allocated by PyTorch, and {} is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True"
)


def test_all_figures():
    peaks = {1: 60 * 2**30, 0: int(77.9 * 2**30)}
    assert gpu_error_in_words(MESSAGE.format("6.50 GiB"), 3, peaks) == [
        "It tried to allocate 2.00 GiB on GPU 3; 1.25 GiB of 79.15 GiB was free.",
        "Peak memory: 60.0 GiB (rank 1) to 77.9 GiB (rank 0).",
        "Also on the device: pid 4242 with 20.00 GiB.",
        "6.50 GiB was reserved but unused: PYTORCH_ALLOC_CONF=expandable_segments:True may help.",
    ]


@pytest.mark.parametrize(
    ("reserved", "fragmented"), [("6.50 GiB", True), ("600.00 MiB", True), ("100.00 MiB", False)]
)
def test_the_remedy_is_named_where_it_may_help(reserved, fragmented):
    sentences = gpu_error_in_words(MESSAGE.format(reserved), None, {})
    assert any("expandable_segments" in one for one in sentences) is fragmented


def test_what_is_not_said_is_left_out():
    message = "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert gpu_error_in_words(message, None, {}) == []
    assert gpu_error_in_words("Tried to allocate 2.00 GiB", None, {}) == [
        "It tried to allocate 2.00 GiB on its device."
    ]


@pytest.mark.parametrize(
    ("type_", "message", "expected"),
    [
        ("torch.OutOfMemoryError", "x", True),
        ("torch.cuda.OutOfMemoryError", "x", True),
        ("RuntimeError", "CUDA error: out of memory", True),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", True),
        ("MemoryError", "", False),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory", False),
    ],
)
def test_is_gpu_oom(type_, message, expected):
    assert is_gpu_oom(type_, message) is expected
