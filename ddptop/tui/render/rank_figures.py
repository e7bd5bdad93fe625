"""A rank's figures on its own screen: its state in a sentence, and what stands below it. Pure."""

from __future__ import annotations

from ddptop_runner.model import GpuSample, NodeSnapshot, RankSample


def find_rank(snapshot: NodeSnapshot | None, rank: int | None) -> RankSample | None:
    """The rank of that number."""
    ranks = snapshot.ranks if snapshot is not None else []
    return next((one for one in ranks if one.rank == rank), None)


def device_of(snapshot: NodeSnapshot | None, rank: int | None) -> GpuSample | None:
    """The rank's own device, or the first that it holds; None without one."""
    one = find_rank(snapshot, rank)
    if snapshot is None or one is None:
        return None
    for gpu in snapshot.gpus:
        if one.gpu is not None and gpu.index == one.gpu and gpu.parent_uuid is None:
            return gpu
    return next((gpu for gpu in snapshot.gpus if gpu.uuid in one.gpus), None)


def device_uuid(snapshot: NodeSnapshot | None, rank: int | None) -> str | None:
    """Of that device; None without one."""
    gpu = device_of(snapshot, rank)
    return None if gpu is None else gpu.uuid
