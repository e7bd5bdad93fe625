"""Who of a job is on which device and with how much memory, and the words for it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ddptop_runner.base.units import size
from ddptop_runner.judge.balance.rank_devices import where_mostly
from ddptop_runner.model.devices import GpuProcess, GpuSample
from ddptop_runner.model.snapshot import RankSample

_ENDED = ("exited", "failed", "stopped", "zombie")


class Device(msgspec.Struct, frozen=True):
    """One device of the job, and what the driver lists on it."""

    gpu: GpuSample
    memory: Mapping[int, int | None]
    """Bytes that each rank's processes hold here; None where the driver does not say. A rank
    that is not in it has nothing here."""
    others: tuple[GpuProcess, ...]
    """Processes that are not the job's."""
    of_job: tuple[GpuProcess, ...]
    """Processes of the job, ranks' or not."""

    @property
    def index(self) -> int:
        """Machine index."""
        return self.gpu.index

    @property
    def told(self) -> bool:
        """Whether the driver says which processes are on it."""
        gpu = self.gpu
        return gpu.processes is not None and not gpu.lost and not gpu.mig_instances

    def alone(self, rank: int) -> bool:
        """Whether nothing but that rank is on it, so that its figures are the rank's."""
        return self.told and not self.others and set(self.memory) == {rank}


class Placement:
    """A job's living ranks on its devices at one moment."""

    def __init__(self, ranks: Sequence[RankSample], gpus: Sequence[GpuSample], job: str) -> None:
        self.ranks = [rank for rank in ranks if rank.state not in _ENDED]
        self.complete = len(self.ranks) == len(ranks) and all(rank.pid for rank in ranks)
        """Whether every rank has been started and none has ended."""
        self.devices = [_device(gpu, job) for gpu in gpus]
        self.seen = any(device.memory for device in self.devices)
        """Whether the driver's pids are the ranks': else (another namespace, or nothing on a
        device yet) its processes prove nothing about the job."""
        self._own = {rank.rank: self._own_device(rank) for rank in self.ranks}

    def held(self, rank: int) -> list[Device]:
        """Devices on which that rank has something."""
        return [device for device in self.devices if rank in device.memory]

    def own(self, rank: int) -> Device | None:
        """The device on which that rank works; None where that is not plain."""
        return self._own.get(rank)

    def owners(self, device: Device) -> list[int]:
        """Ranks that work on that device."""
        return [rank for rank, own in self._own.items() if own is device]

    @property
    def stepping(self) -> bool:
        """Whether every living rank is known to have taken a step, so that starting is over."""
        return bool(self.ranks) and all((rank.step or 0) > 0 for rank in self.ranks)

    @property
    def at_work(self) -> bool:
        """Whether a device with a rank on it is being used."""
        return any(
            device.memory and (device.gpu.util_percent or 0) >= 10 for device in self.devices
        )

    def _own_device(self, rank: RankSample) -> Device | None:
        held = self.held(rank.rank)
        if len(held) == 1:
            return held[0]
        mostly = where_mostly([(device, device.memory[rank.rank]) for device in held])
        if mostly is not None:
            return mostly
        named = [device for device in held if device.index == rank.gpu]
        return named[0] if len(named) == 1 else None


def _device(gpu: GpuSample, job: str) -> Device:
    memory: dict[int, int | None] = {}
    processes = gpu.processes or []
    of_job = [process for process in processes if process.job == job]
    for process in of_job:
        if process.rank is None:
            continue
        before = memory.get(process.rank, 0)
        used = process.mem_used_bytes
        memory[process.rank] = None if before is None or used is None else before + used
    others = tuple(process for process in processes if process.job != job)
    return Device(gpu, memory, others, tuple(of_job))


def median(values: Iterable[float | None]) -> float | None:
    """Of the known values; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# -- words -----------------------------------------------------------------------------------------


def sizes(values: Sequence[int]) -> str:
    """`512 MiB`, `0.5 GiB each`, `512 MiB to 4.5 GiB each`."""
    low, high = size(min(values)), size(max(values))
    if len(values) == 1:
        return low
    return f"{low} each" if low == high else f"{low} to {high} each"
