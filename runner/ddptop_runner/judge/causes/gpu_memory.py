"""GPU out-of-memory errors, explained with figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddptop_runner.base.units import size

_OOM = re.compile(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|cudaMalloc failed: out of memory",
    re.IGNORECASE,
)
_SIZE = r"(?P<{}>[\d.]+ (?:[KMGT]iB|bytes))"
_ASKED = re.compile(r"Tried to allocate " + _SIZE.format("asked"))
_DEVICE = re.compile(r"GPU (?P<gpu>\d+)")
_TOTAL = re.compile("total capacity of " + _SIZE.format("total"))
_FREE = re.compile("of which " + _SIZE.format("free") + " is free")
_RESERVED = re.compile(_SIZE.format("reserved") + r" is reserved by PyTorch but unallocated")
_OTHERS = re.compile(r"\bProcess (?P<pid>\d+) has " + _SIZE.format("held") + " memory in use")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

FRAGMENTED_BYTES = 2**29
"""Reserved and unused memory from here on is worth a remedy, even where little was asked for."""
MOST_PEAKS = 8
"""With more ranks, only the smallest and the largest peak are shown."""


@dataclass(frozen=True)
class GpuMemoryError:
    """What torch says when a device's memory has run out; None where it does not say."""

    asked: str | None
    gpu: int | None
    """As the process numbers its devices."""
    total: str | None
    free: str | None
    reserved: str | None
    """Reserved by torch and not in use."""
    others: tuple[tuple[int, str], ...]
    """(pid, memory) of other processes on the device."""

    @property
    def is_fragmented(self) -> bool:
        """Whether much of what torch reserved lies unused."""
        if self.reserved is None:
            return False
        asked = 0.0 if self.asked is None else _bytes(self.asked)
        reserved = _bytes(self.reserved)
        return reserved >= FRAGMENTED_BYTES or reserved >= asked > 0


def is_gpu_oom(type_: str, message: str) -> bool:
    """Whether an exception says that a device's memory has run out."""
    return type_.endswith("OutOfMemoryError") or _OOM.search(message) is not None


def read(message: str) -> GpuMemoryError:
    """The figures in torch's message."""

    def of(pattern: re.Pattern[str]) -> str | None:
        found = pattern.search(message)
        return found[1] if found else None

    gpu = of(_DEVICE)
    return GpuMemoryError(
        asked=of(_ASKED),
        gpu=None if gpu is None else int(gpu),
        total=of(_TOTAL),
        free=of(_FREE),
        reserved=of(_RESERVED),
        others=tuple((int(one["pid"]), one["held"]) for one in _OTHERS.finditer(message)),
    )


def in_words(
    error: GpuMemoryError, gpu: int | None, peaks: Mapping[int, int], others: Mapping[int, str]
) -> list[str]:
    """Sentences: what was asked for and free, each rank's peak, who else was there, the remedy.

    Args:
        error: what torch said.
        gpu: the machine's index of the rank's device, where known.
        peaks: the most device memory each rank was seen with, in bytes.
        others: by pid, what other processes held on the device as last sampled.
    """
    where = f"GPU {gpu}" if gpu is not None else "its device"
    if gpu is None and error.gpu is not None:
        where = f"cuda:{error.gpu}"
    sentences = []
    if error.asked is not None:
        free = f"; {error.free} of {error.total} was free" if error.free and error.total else ""
        sentences.append(f"It tried to allocate {error.asked} on {where}{free}.")
    if told := _peaks(peaks):
        sentences.append(told)
    held = {**others, **dict(error.others)}
    if held:
        listed = ", ".join(f"pid {pid} with {held[pid]}" for pid in list(held)[:3])
        more = f" and {len(held) - 3} more" if len(held) > 3 else ""
        sentences.append(f"Also on the device: {listed}{more}.")
    if error.is_fragmented:
        sentences.append(
            f"{error.reserved} was reserved but unused: "
            "PYTORCH_ALLOC_CONF=expandable_segments:True may help."
        )
    return sentences


def _peaks(peaks: Mapping[int, int]) -> str | None:
    if not peaks:
        return None
    if len(peaks) > MOST_PEAKS:
        least, most = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
        return (
            f"Peak memory: {size(peaks[least])} (rank {least}) to "
            f"{size(peaks[most])} (rank {most})."
        )
    listed = ", ".join(f"{size(peak)} (rank {rank})" for rank, peak in sorted(peaks.items()))
    return f"Peak memory: {listed}."


def _bytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * _UNITS[unit]
