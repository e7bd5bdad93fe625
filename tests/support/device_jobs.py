"""Jobs on devices as in snapshots: ranks joined with devices, without any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ddptop_runner.model.snapshot import GpuProcess, GpuSample, RankSample

GIB = 1024**3
JOB = "train"


def make_rank(rank: int, **fields: Any) -> RankSample:
    """Rank `rank` at work; its PID is 100 + rank."""
    known: dict[str, Any] = {"pid": 100 + rank, "gpu": rank, "state": "running", "step": 50}
    known.update(fields)
    return RankSample(rank=rank, local_rank=rank, host="h", **known)


def of_rank(rank: int, gib: float | None = 30.0, **fields: Any) -> GpuProcess:
    """A process of that rank."""
    used = None if gib is None else int(gib * GIB)
    known: dict[str, Any] = {"pid": 100 + rank, "job": JOB, "rank": rank, "mem_used_bytes": used}
    known.update(fields)
    return GpuProcess(**known)


def of_launcher(**fields: Any) -> GpuProcess:
    """A process of the job that does not belong to a rank."""
    return GpuProcess(pid=999, job=JOB, mem_used_bytes=GIB, **fields)


def somebody(gib: float | None = 12.0, **fields: Any) -> GpuProcess:
    """A process outside the job."""
    known: dict[str, Any] = {"pid": 4242, "user": "alice", "command": "python eval.py"}
    known["mem_used_bytes"] = None if gib is None else int(gib * GIB)
    known.update(fields)
    return GpuProcess(**known)


def make_gpu(index: int, *processes: GpuProcess, **fields: Any) -> GpuSample:
    """A device under load with these processes."""
    known: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "util_percent": 97.0,
        "mem_util_percent": 55.0,
        "mem_total_bytes": 80 * GIB,
        "power_w": 420.0,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "throttle_reasons": ["power cap"],
        "ecc_uncorrected": 0,
        "xid": [],
        "processes": list(processes),
    }
    known.update(fields)
    return GpuSample(index=index, **known)


def make_job(number: int = 4) -> tuple[list[RankSample], list[GpuSample]]:
    """A healthy job: rank i with 30 GiB on GPU i."""
    ranks = [make_rank(rank) for rank in range(number)]
    return ranks, [make_gpu(rank, of_rank(rank)) for rank in range(number)]


def change(samples: Sequence[Any], by_place: Mapping[int, Mapping[str, Any]]) -> list[Any]:
    """The samples with fields of some of them replaced."""
    return [
        msgspec.structs.replace(sample, **by_place.get(place, {}))
        for place, sample in enumerate(samples)
    ]


def change_all(samples: Sequence[Any], **fields: Any) -> list[Any]:
    """The samples with fields of all of them replaced."""
    return [msgspec.structs.replace(sample, **fields) for sample in samples]
