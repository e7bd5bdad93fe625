"""Joins ranks with their devices, using the pids of the driver's list of processes.

Without that list, local rank i is assumed to use the i-th device of the job, as is customary in
training scripts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from ddptop_runner.devices.owners import labeled
from ddptop_runner.model.snapshot import GpuSample, RankSample
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import ENDED

MOSTLY = 3.0
"""A rank works on a device if it holds this many times as much memory there as on any other."""


def join(
    ranks: Sequence[RankSample],
    gpus: Sequence[GpuSample],
    pids_by_rank: Mapping[int, Collection[int]],
    devices: Sequence[Device],
    job: str,
    helpers: Collection[int] = (),
) -> tuple[list[RankSample], list[GpuSample]]:
    """Give each rank its device figures, and each process of the job its job and rank.

    A rank's `gpus` are all devices on which it holds memory. Its `gpu` is the only one of them. If
    there are several, because of a stray context, it is the rank's own in a job with one rank per
    device, or else the one with by far the most of its memory, or else None. Its memory is that of
    its processes. If the driver lists no process of the job (because it cannot, or because of a
    different pid namespace), it is that of the whole device if no other rank uses it. Its
    `cuda_device` is the position of `gpu` among the job's devices, which is how CUDA numbers
    those in CUDA_VISIBLE_DEVICES.

    Args:
        ranks: the job's ranks on this host.
        gpus: the job's devices as sampled; [] without a sample.
        pids_by_rank: pids of each rank and its descendants.
        devices: the job's devices in the order of its local ranks.
        job: the job's name.
        helpers: pids of the job that belong to no rank, such as a launcher; they get only the job.
    """
    owner = _owners(ranks, pids_by_rank)
    seen = any(process.pid in owner for gpu in gpus for process in gpu.processes or ())
    joined = [_join_rank(rank, ranks, gpus, owner, devices, seen) for rank in ranks]
    known = {pid: (job, owner.get(pid)) for pid in {*owner, *helpers}}
    return joined, labeled(gpus, known)


def is_own(rank: RankSample, gpu: GpuSample) -> bool:
    """Whether that device is the rank's own. Each host numbers its devices from 0."""
    return rank.gpu == gpu.index and gpu.host in (None, rank.host)


def own_devices(ranks: Sequence[RankSample], gpus: Sequence[GpuSample]) -> dict[int, GpuSample]:
    """By rank, its own device, if it has one."""
    whole_last = sorted(gpus, key=lambda gpu: gpu.parent_uuid is None)
    by_place = {(gpu.host, gpu.index): gpu for gpu in whole_last}
    found = {}
    for rank in ranks:
        if rank.gpu is None:
            continue
        gpu = by_place.get((rank.host, rank.gpu)) or by_place.get((None, rank.gpu))
        if gpu is not None:
            found[rank.rank] = gpu
    return found


def _where_mostly(held: Sequence[tuple[GpuSample, int | None]]) -> GpuSample | None:
    """The device on which a rank works, given the bytes it holds on each.

    None if none stands out or a size is unknown.
    """
    sizes = [size for _, size in held if size is not None]
    if len(sizes) < 2 or len(sizes) < len(held):
        return None
    fullest, second = sorted(sizes, reverse=True)[:2]
    return held[sizes.index(fullest)][0] if fullest >= MOSTLY * second else None


def _owners(
    ranks: Sequence[RankSample], pids_by_rank: Mapping[int, Collection[int]]
) -> dict[int, int]:
    """Rank by pid."""
    owner = {pid: rank for rank, pids in pids_by_rank.items() for pid in pids}
    owner.update({rank.pid: rank.rank for rank in ranks if rank.pid is not None})
    return owner


def _default(rank: RankSample, devices: Sequence[Device]) -> Device | None:
    return devices[rank.local_rank] if rank.local_rank < len(devices) else None


def _join_rank(
    rank: RankSample,
    ranks: Sequence[RankSample],
    gpus: Sequence[GpuSample],
    owner: Mapping[int, int],
    devices: Sequence[Device],
    seen: bool,
) -> RankSample:
    default = _default(rank, devices)
    if rank.state in ENDED:
        return _on(rank, default)
    held = [gpu for gpu in gpus if any(owner.get(p.pid) == rank.rank for p in gpu.processes or ())]
    if held:
        own = held[0] if len(held) == 1 else None
        if own is None and default is not None and len(ranks) == len(devices):
            own = next((gpu for gpu in held if _same(gpu, default)), None)
        if own is None and len(ranks) > 1:
            own = _where_mostly([(gpu, _memory_of(rank.rank, [gpu], owner)) for gpu in held])
        return msgspec.structs.replace(
            rank,
            gpu=None if own is None else own.index,
            cuda_device=None if own is None else _position(own, devices),
            gpus=[gpu.uuid for gpu in held if gpu.uuid],
            gpu_util_percent=_mean_util([own] if own is not None else held),
            gpu_mem_used_bytes=_memory_of(rank.rank, held, owner),
            gpu_power_w=None if own is None or _ranks_on(own, owner) - {rank.rank} else own.power_w,
        )
    gpu = None if default is None else next((g for g in gpus if _same(g, default)), None)
    if gpu is None:
        return _on(rank, default)
    is_only_user = sum(_default(other, devices) == default for other in ranks) == 1
    is_listed = gpu.processes is not None and (seen or not gpu.processes)
    return msgspec.structs.replace(
        _on(rank, default),
        gpu_util_percent=gpu.util_percent,
        gpu_mem_used_bytes=gpu.mem_used_bytes if is_only_user and not is_listed else None,
        gpu_power_w=gpu.power_w if is_only_user and not _ranks_on(gpu, owner) else None,
    )


def _on(rank: RankSample, device: Device | None) -> RankSample:
    """The rank on its default device, without any figures."""
    if device is None:
        return rank
    return msgspec.structs.replace(
        rank,
        gpu=device.index,
        gpus=[device.uuid] if device.uuid else [],
        cuda_device=rank.local_rank,
    )


def _same(gpu: GpuSample, device: Device) -> bool:
    if gpu.uuid and device.uuid:
        return gpu.uuid == device.uuid
    return gpu.index == device.index


def _position(gpu: GpuSample, devices: Sequence[Device]) -> int | None:
    """The number of a device in the job's processes."""
    return next((place for place, device in enumerate(devices) if _same(gpu, device)), None)


def _mean_util(gpus: Sequence[GpuSample]) -> float | None:
    known = [gpu.util_percent for gpu in gpus if gpu.util_percent is not None]
    return sum(known) / len(known) if known else None


def _ranks_on(gpu: GpuSample, owner: Mapping[int, int]) -> set[int]:
    return {owner[process.pid] for process in gpu.processes or () if process.pid in owner}


def _memory_of(rank: int, held: Sequence[GpuSample], owner: Mapping[int, int]) -> int | None:
    total = 0
    for gpu in held:
        processes = gpu.processes or []
        for process in processes:
            if owner.get(process.pid) != rank:
                continue
            used = process.mem_used_bytes
            if used is None and len(processes) == 1:
                used = gpu.mem_used_bytes
            if used is None:
                return None
            total += used
    return total
