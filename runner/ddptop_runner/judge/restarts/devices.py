"""Chooses the devices of a job's next attempt, and waits for their memory to be released.

A driver releases the memory of a killed process once the process is gone, which may take seconds.
An attempt that starts earlier would run out of memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.units import size
from ddptop_runner.devices import codes
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.devices.words import name_of, names_of
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.model.events import SetAside
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device, JobSpec

Report = Callable[[], "DeviceReport | None"]


def fault_of(gpu: GpuSample, forgiven_xids: Sequence[int] = ()) -> str | None:
    """Why no attempt can succeed with a device; None if it is fit.

    XIDs after which a device must be reset or replaced (`codes.XIDS`) make it unfit, if they came
    since the attempt was launched.

    Args:
        gpu: its latest sample.
        forgiven_xids: reported before a user's restart, which tries the device again.
    """
    if gpu.lost:
        return "lost"
    since = set(Counter(gpu.xid or ()) - Counter(forgiven_xids))
    if codes.CONTAINED in since and codes.UNCONTAINED not in since:
        since -= codes.SAME_AS_CONTAINED
    for code in sorted(since):
        if not codes.xid(code).is_usable:
            return f"XID {code} ({codes.xid(code).meaning})"
    return None


def key_of(device: Device | GpuSample) -> str:
    """Identifies a device."""
    return device.uuid or str(device.index)


class HealthBook:
    """Tracks the health of each device of a job across samples."""

    def __init__(self) -> None:
        self.idle_bytes: dict[str, int] = {}
        """By key, the lowest observed memory in use apart from that of listed processes."""
        self._latest: dict[str, GpuSample] = {}
        self._forgiven: dict[str, list[int]] = {}

    def add(self, gpus: Sequence[GpuSample]) -> None:
        """Fold in fresh samples of the job's devices, including those set aside."""
        for gpu in gpus:
            key = key_of(gpu)
            self._latest[key] = gpu
            idle = _idle_bytes(gpu, self.idle_bytes.get(key))
            if idle is not None:
                self.idle_bytes[key] = idle

    def fault(self, device: Device) -> str | None:
        """What is wrong with a device; None if it is fit or was never sampled."""
        key = key_of(device)
        gpu = self._latest.get(key)
        return None if gpu is None else fault_of(gpu, self._forgiven.get(key, ()))

    def forgive(self, device: Device) -> bool:
        """Forget a device's XIDs so far; returns whether the driver can reach it."""
        gpu = self._latest.get(key_of(device))
        if gpu is None or gpu.lost:
            return False
        self._forgiven[key_of(device)] = list(gpu.xid or ())
        return True


def _idle_bytes(gpu: GpuSample, before: int | None) -> int | None:
    """The lowest observed memory in use apart from that of listed processes.

    Memory is sampled more often than the list, so the list may contain processes whose memory has
    been released. While there are processes, it is therefore computed only once.
    """
    if gpu.mem_used_bytes is None or (gpu.processes and before is not None):
        return before
    listed = sum(process.mem_used_bytes or 0 for process in gpu.processes or ())
    used = max(0, gpu.mem_used_bytes - listed)
    return used if before is None else min(used, before)


LIMIT_S = 50.0
POLL_S = 0.02
"""Between checks of the latest sample, of which there is one per second or on request."""
ANSWER_S = 5.0
"""How long to wait for a driver that returns no samples."""
TOLERANCE_BYTES = 512 * 1024**2
REPORTED_FROM_S = 1.5
"""A shorter wait is just the time to the next sample, and is not reported."""


@dataclass(frozen=True)
class Held:
    """Memory of one device that has not been released."""

    device: Device
    used_bytes: int | None
    by: tuple[GpuProcess, ...]
    """Processes of the attempt that still hold memory; empty if only the total is too high."""

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
    """What was held at first."""
    left: tuple[Held, ...] = ()
    """What was still held at the end."""

    def in_words(self) -> str | None:
        """A message for the user; None if there is nothing worth reporting."""
        if self.left:
            names = "; ".join(held.in_words() for held in self.left)
            return f"after {self.seconds:.0f} s, {names}; starting the next attempt anyway"
        if not self.first or self.seconds < REPORTED_FROM_S:
            return None
        names = ", ".join(name_of(held.device) for held in self.first)
        return f"waited {self.seconds:.1f} s for {names} to release memory"


def still_held(
    gpus: Sequence[GpuSample],
    devices: Sequence[Device],
    idle_bytes: Mapping[str, int],
    is_ours: Callable[[int], bool],
) -> list[Held]:
    """The device memory that an ended attempt still holds.

    Args:
        gpus: fresh samples.
        devices: the job's.
        idle_bytes: by `key_of`, the memory in use on each device without any process.
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


FRESH_WAIT_S = 3.0
"""How long to wait for a sample from after the failure, which may show a lost device."""


@dataclass(frozen=True)
class Choice:
    """The devices of the next attempt."""

    aside: list[SetAside]
    """Devices newly found to be unfit."""
    refused: str | None = None
    """Why there can be no next attempt."""
    notes: tuple[str, ...] = ()
    """Messages for the user."""


def without(spec: JobSpec, aside: Sequence[SetAside]) -> JobSpec:
    """The job without the devices that are set aside, and with proportionally fewer ranks."""
    if not aside or not spec.devices:
        return spec
    keys = {key_of(one.device) for one in aside}
    devices = [device for device in spec.devices if key_of(device) not in keys]
    nproc = max(1, spec.nproc * len(devices) // len(spec.devices))
    return msgspec.structs.replace(spec, devices=devices, nproc=nproc)


class JobDevices:
    """The health of one job's devices.

    Args:
        spec: the job as requested.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._health = HealthBook()
        self._reported_s = 0.0

    def begin_job(self, spec: JobSpec) -> None:
        """Use the devices that a queued job has been given."""
        self._spec = spec

    def update(self, report: DeviceReport | None, aside: Sequence[SetAside]) -> list[Finding]:
        """Fold in the sampler's report, once per tick; returns findings on devices set aside."""
        if (
            report is not None
            and report.boottime_s > self._reported_s
            and report.source is not None
        ):
            self._reported_s = report.boottime_s
            self._health.add(report.gpus)
        world = _world_in_words(self._spec, without(self._spec, aside))
        return [
            Finding(
                f"set-aside-{one.device.index}",
                "warning",
                f"{name_of(one.device)} is set aside ({one.reason}); continuing {world}; "
                f"`ddptop restart {self._spec.job}` tries it again",
                gpus=(one.device.index,),
                has_event=True,
            )
            for one in aside
        ]

    async def choose(
        self,
        report: Report,
        aside: Sequence[SetAside],
        failed_s: float,
        request: Callable[[], None] = lambda: None,
    ) -> Choice:
        """Check the health of the job's devices before the next attempt.

        Args:
            report: returns the latest report on the job's devices; None if nothing samples them.
            aside: devices already set aside.
            failed_s: CLOCK_BOOTTIME of the failure.
            request: asks for a report at once.
        """
        if not self._spec.devices:
            return Choice([])
        request()
        deadline_s = boottime_s() + FRESH_WAIT_S
        while (latest := report()) is not None and latest.source is not None:
            if latest.boottime_s > failed_s or boottime_s() >= deadline_s:
                break
            await asyncio.sleep(POLL_S)
        self.update(latest, aside)
        before = without(self._spec, aside)
        faults = [(device, self._health.fault(device)) for device in before.devices or []]
        new = [SetAside(device=device, reason=why) for device, why in faults if why is not None]
        if not new:
            return Choice([])
        if not self._spec.allow_shrink:
            return Choice(
                [],
                f"{_in_words(new)}: the job needs all its devices; relaunch it with "
                "--allow-shrink to continue with fewer ranks, or choose other GPUs with --gpus",
            )
        if len(new) == len(faults):
            return Choice([], f"{_in_words(new)}: no devices are left to continue on")
        after = without(self._spec, [*aside, *new])
        note = f"{_in_words(new)}: set aside; continuing {_world_in_words(before, after)}"
        return Choice(new, notes=(note,))

    def fit_again(self, aside: Sequence[SetAside]) -> list[Device]:
        """Devices that were set aside and that a user's restart tries again: those not lost."""
        return [one.device for one in aside if self._health.forgive(one.device)]

    async def wait_for_memory(
        self,
        report: Report,
        aside: Sequence[SetAside],
        is_ours: Callable[[int], bool],
        skip: Callable[[], bool],
        request: Callable[[], None] = lambda: None,
    ) -> Waited:
        """Wait until an ended attempt's device memory is released, for at most `LIMIT_S`.

        Args:
            report: as for `choose`.
            aside: devices that are set aside.
            is_ours: whether a pid is a living process of the attempt.
            skip: whether to stop waiting.
            request: as for `choose`.
        """
        devices = without(self._spec, aside).devices
        if not devices:
            return Waited(0.0)
        began_s = boottime_s()
        request()  # a report is fresh if its reading began later
        first: tuple[Held, ...] | None = None
        left: list[Held] = []
        while (waited_s := boottime_s() - began_s) < LIMIT_S and not skip():
            latest = report()
            if latest is None or (latest.source is None and latest.note is not None):
                return Waited(waited_s)  # nothing samples these devices
            if latest.boottime_s > began_s:
                left = still_held(latest.gpus, devices, self._health.idle_bytes, is_ours)
                first = tuple(left) if first is None else first
                if not left:
                    return Waited(waited_s, first)
            elif waited_s > ANSWER_S and first is None:
                break
            await asyncio.sleep(POLL_S)
        return Waited(boottime_s() - began_s, first or (), () if skip() else tuple(left))


def _in_words(failing: Sequence[SetAside]) -> str:
    """`GPU 2 (NVIDIA H100): lost; GPU 3: XID 79`."""
    parts = []
    for one in failing:
        name = name_of(one.device) + (f" ({one.device.name})" if one.device.name else "")
        parts.append(f"{name}: {one.reason}")
    return "; ".join(parts)


def _world_in_words(before: JobSpec, after: JobSpec) -> str:
    on = f" on {names_of(after.devices)}" if after.devices else ""
    ranks = f"with {after.nproc} rank{'s' if after.nproc > 1 else ''}{on}"
    if after.nproc == before.nproc:
        return ranks
    return (
        f"{ranks} instead of {before.nproc}: "
        f"the global batch is {after.nproc}/{before.nproc} of its previous size unless the script "
        "adjusts it; the learning rate and the sampler are up to the script"
    )
