"""`--gpus`, parsed.

Indices are the machine's in PCI order, as nvidia-smi shows them. UUIDs may be shortened as long as
they stay unique, as in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ddptop_runner.base.errors import UsageError

FORMS = "use 0-3, 0,2,5, 0-1,4, auto:2 (the idlest), all, none, or UUIDs (GPU-..., MIG-...)"
_HIGHEST_INDEX = 1023
_AUTO = re.compile(r"auto:([1-9][0-9]{0,3})")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")


@dataclass(frozen=True)
class GpuRequest:
    """What `--gpus` says."""

    kind: Literal["indices", "uuids", "auto", "all", "none"]
    indices: tuple[int, ...] = ()
    """In the order given, which becomes the order of the local ranks."""
    uuids: tuple[str, ...] = ()
    """Whole or shortened, in the order given."""
    count: int = 0
    """How many of the allowed devices `auto:N` takes."""

    def in_words(self) -> str:
        """As it is typed."""
        if self.kind == "auto":
            return f"auto:{self.count}"
        if self.kind == "uuids":
            return ",".join(self.uuids)
        return ",".join(map(str, self.indices)) if self.kind == "indices" else self.kind


def parse_gpus(text: str) -> GpuRequest:
    """Read the value of `--gpus`. The same device twice is an error, as CUDA would see no device.

    Raises:
        UsageError: naming the part that cannot be used, and the forms that can.
    """
    value = text.strip()
    if value in ("all", "none"):
        return GpuRequest("all" if value == "all" else "none")
    if found := _AUTO.fullmatch(value):
        return GpuRequest("auto", count=int(found[1]))
    if value.startswith("auto"):
        raise UsageError(
            f"--gpus {text!r} is invalid; expected auto:N", "pass a number, as in auto:2"
        )
    if not value:
        raise UsageError("--gpus is empty", FORMS)
    parts = [part.strip() for part in value.split(",")]
    if any(_UUID.fullmatch(part) for part in parts):
        return _uuids(parts, text)
    indices: list[int] = []
    for part in parts:
        for index in _indices(part, text):
            if index in indices:
                raise UsageError(f"--gpus {text!r} lists GPU {index} twice", "list each one once")
            indices.append(index)
    return GpuRequest("indices", tuple(indices))


def _uuids(parts: list[str], text: str) -> GpuRequest:
    for number, part in enumerate(parts):
        if not _UUID.fullmatch(part):
            raise UsageError(
                f"--gpus {text!r}: {part!r} is not a UUID; CUDA accepts indices or UUIDs, not both",
                "use the same form for all devices",
            )
        if part in parts[:number]:
            raise UsageError(f"--gpus {text!r} lists {part} twice", "list each one once")
    kinds = {part[:3] for part in parts}
    if len(kinds) > 1:
        raise UsageError(
            f"--gpus {text!r} mixes whole GPUs and MIG instances, but a CUDA process "
            "sees only one instance",
            "list whole GPUs or one instance",
        )
    if kinds == {"MIG"} and len(parts) > 1:
        raise UsageError(
            f"--gpus lists {len(parts)} MIG instances, but a CUDA process sees only one",
            "pass one instance with --nproc 1, and launch one job per instance",
        )
    return GpuRequest("uuids", uuids=tuple(parts))


def _indices(part: str, text: str) -> range:
    found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
    if found is None:
        raise UsageError(f"--gpus {text!r}: {part!r} is not an index, range, or UUID", FORMS)
    if max(len(found[1]), len(found[2] or "")) > 4:  # int() of thousands of digits fails
        raise UsageError(f"--gpus {text!r}: {part[:20]!r} is not a valid GPU index", FORMS)
    first, last = int(found[1]), int(found[2] or found[1])
    if max(first, last) > _HIGHEST_INDEX:
        raise UsageError(f"--gpus {text!r}: {part!r} is not a valid GPU index", FORMS)
    if last < first:
        raise UsageError(f"--gpus {text!r}: the range {part!r} is reversed", f"use {last}-{first}")
    return range(first, last + 1)
