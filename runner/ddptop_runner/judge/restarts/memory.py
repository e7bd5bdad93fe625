"""Whether the memory of an ended attempt was released on its devices, and the wait for that.

A driver releases the memory of a killed process only once the process is gone, which may take
seconds; an attempt that starts earlier would run out of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.units import size
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.devices.words import name_of
from ddptop_runner.judge.restarts.fitness import key_of
from ddptop_runner.model.devices import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device

LIMIT_S = 50.0
POLL_S = 0.2
"""Between two looks at the latest sample, of which there is one a second."""
ANSWER_S = 5.0
"""A driver that gives no sample for so long is not waited for."""
TOLERANCE_BYTES = 512 * 1024**2
WORTH_TELLING_S = 1.5
"""A shorter wait is the time to the next sample."""


@dataclass(frozen=True)
class Held:
    """Memory of one device that is not given back."""

    device: Device
    used_bytes: int | None
    by: tuple[GpuProcess, ...]
    """Processes of the attempt that still hold some; none where only the sum is too high."""

    def in_words(self) -> str:
        """`GPU 0 still has 12.0 GiB in use (pid 77, user, command)`."""
        used = "memory" if self.used_bytes is None else f"{size(self.used_bytes)}"
        names = [
            ", ".join(str(word) for word in (f"pid {one.pid}", one.user, one.command) if word)
            for one in self.by
        ]
        whose = f" ({'; '.join(names)})" if names else ""
        return f"{name_of(self.device)} still has {used} in use{whose}"


@dataclass(frozen=True)
class Waited:
    """How a wait ended."""

    seconds: float
    first: tuple[Held, ...] = ()
    """What was waited for."""
    left: tuple[Held, ...] = ()
    """What was still held in the end."""
    silent: bool = False
    """No sample came."""

    def in_words(self) -> str | None:
        """What a person should know of it; None when there is nothing to tell."""
        if self.silent:
            return (
                "the driver did not report whether the devices' memory was released; "
                "starting the next attempt anyway"
            )
        if self.left:
            names = "; ".join(held.in_words() for held in self.left)
            return f"after {self.seconds:.0f} s, {names}; starting the next attempt anyway"
        if not self.first or self.seconds < WORTH_TELLING_S:
            return None
        names = ", ".join(name_of(held.device) for held in self.first)
        return f"waited {self.seconds:.1f} s for {names} to release memory"


def still_held(
    gpus: Sequence[GpuSample],
    devices: Sequence[Device],
    idle_bytes: Mapping[str, int],
    is_ours: Callable[[int], bool],
) -> list[Held]:
    """What the ended attempt still holds of its devices.

    Args:
        gpus: fresh samples.
        devices: the job's.
        idle_bytes: what is in use on each device when no process is on it, by `key_of`.
        is_ours: whether a pid is a living process of the attempt.
    """
    samples = {key_of(gpu): gpu for gpu in gpus}
    found = []
    for device in devices:
        gpu = samples.get(key_of(device))
        if gpu is None or gpu.lost:
            continue
        processes = gpu.processes or []
        ours = tuple(process for process in processes if is_ours(process.pid))
        used, idle = gpu.mem_used_bytes, idle_bytes.get(key_of(device))
        too_much = False
        if used is not None and idle is not None:
            others = sum(one.mem_used_bytes or 0 for one in processes if one not in ours)
            too_much = used > idle + others + TOLERANCE_BYTES
        if ours or too_much:
            found.append(Held(device, used, ours))
    return found


async def wait(
    report: Callable[[], DeviceReport | None],
    look: Callable[[Sequence[GpuSample]], list[Held]],
    skip: Callable[[], bool],
) -> Waited:
    """Wait until nothing is held any more, at most `LIMIT_S`.

    Args:
        report: the latest one of the job's devices.
        look: `still_held` for the job.
        skip: whether somebody does not want to wait any more.
    """
    began_s = boottime_s()
    first: tuple[Held, ...] | None = None
    left: list[Held] = []
    while (waited_s := boottime_s() - began_s) < LIMIT_S and not skip():
        latest = report()
        if latest is None or (latest.source is None and latest.note is not None):
            return Waited(waited_s)  # nothing samples these devices
        if latest.boottime_s > began_s:
            left = look(latest.gpus)
            first = tuple(left) if first is None else first
            if not left:
                return Waited(waited_s, first)
        elif waited_s > ANSWER_S and first is None:
            return Waited(waited_s, silent=True)
        await asyncio.sleep(POLL_S)
    return Waited(boottime_s() - began_s, first or (), () if skip() else tuple(left))
