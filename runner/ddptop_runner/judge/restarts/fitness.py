"""Whether a device can take part in another attempt, and has the memory for it.

XIDs after which a device must be reset or replaced (`codes.XIDS`) make it unfit. Only errors since
the attempt was launched count.

A driver releases the memory of a killed process once the process is gone, which may take seconds.
An attempt that starts earlier would run out of memory (`wait`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.units import size
from ddptop_runner.devices import codes
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.devices.words import name_of
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device
from ddptop_runner.model.words import Base

LOST = "lost"
HEALTHY_AFTER_S = 10.0
"""How long a device must be healthy before it is offered again."""


@dataclass(frozen=True)
class Unfit:
    """What is wrong with a device."""

    reason: str
    certain: bool
    """Whether no attempt can succeed with it; if False, one may, but it is safer to avoid it."""


class Known(Base, frozen=True, kw_only=True):
    """What was known about a device before the attempt that ended."""

    forgiven_xids: list[int] = []
    """XIDs reported before a reset."""
    remap_failed: bool = False
    remap_pending: bool = False
    ecc_uncorrected: int | None = None
    """The count at the start of the attempt."""
    ecc_attempts: int = 0
    """Number of attempts in which that count increased."""
    energy_j: float | None = None
    """Energy counter, which a reset sets back."""
    needs_reset: str | None = None
    """Why it must be reset before it is fit again."""
    idle_bytes: int | None = None
    """The lowest observed memory in use on it, apart from that of listed processes."""


def judge(gpu: GpuSample, known: Known) -> Unfit | None:
    """The worst fault of a device; None if it is fit.

    Args:
        gpu: its latest sample.
        known: what was known about it before.
    """
    if gpu.lost:
        return Unfit(LOST, certain=True)
    if known.needs_reset is not None:
        return Unfit(known.needs_reset, certain=True)
    since = Counter(gpu.xid or ()) - Counter(known.forgiven_xids)
    contained = codes.CONTAINED in since and codes.UNCONTAINED not in since
    for code in sorted(since):
        if not codes.xid(code).is_usable and not (contained and code in codes.SAME_AS_CONTAINED):
            return Unfit(f"XID {code} ({codes.xid(code).meaning})", certain=True)
    if gpu.remap_failed and not known.remap_failed:
        return Unfit("no spare memory rows left", certain=True)
    grew = _grew(gpu, known)
    if grew and known.ecc_attempts > 0:
        return Unfit("uncorrectable memory errors in more than one attempt", certain=True)
    if gpu.remap_pending and not known.remap_pending:
        return Unfit("only a reset can remap a memory row", certain=False)
    if grew or contained:
        return Unfit("an uncorrectable memory error in the last attempt", certain=False)
    return None


def _grew(gpu: GpuSample, known: Known) -> bool:
    if gpu.ecc_uncorrected is None or known.ecc_uncorrected is None:
        return False
    return gpu.ecc_uncorrected > known.ecc_uncorrected


def key_of(device: Device | GpuSample) -> str:
    """Identifies a device."""
    return device.uuid or str(device.index)


@dataclass
class HealthBook:
    """Tracks the health of each device of a job across samples."""

    known: dict[str, Known] = field(default_factory=dict)
    _fit_since_s: dict[str, float] = field(default_factory=dict)
    _latest: dict[str, GpuSample] = field(default_factory=dict)

    def look(self, gpus: Sequence[GpuSample], now_s: float) -> None:
        """Fold in fresh samples.

        Args:
            gpus: the job's devices, including those set aside.
            now_s: CLOCK_BOOTTIME of the reading.
        """
        for gpu in gpus:
            key, before = key_of(gpu), self._latest.get(key_of(gpu))
            self._latest[key] = gpu
            known = self.known.get(key)
            known = _first(gpu) if known is None else known
            if not gpu.lost and _was_reset(gpu, before, known):
                known = _after_reset(gpu, known)
            self.known[key] = _with_figures(gpu, known)
            if judge(gpu, self.known[key]) is None:
                self._fit_since_s.setdefault(key, now_s)
            else:
                self._fit_since_s.pop(key, None)

    def begin_attempt(self) -> None:
        """Count memory errors from here; those of the previous attempt count as one."""
        for key, known in self.known.items():
            gpu = self._latest.get(key)
            if gpu is not None and gpu.ecc_uncorrected is not None:
                attempts = known.ecc_attempts + _grew(gpu, known)
                self.known[key] = replace(
                    known, ecc_uncorrected=gpu.ecc_uncorrected, ecc_attempts=attempts
                )

    def end_attempt(self, devices: Sequence[Device]) -> dict[str, Unfit]:
        """By key, the fault of each device that is not fit."""
        found = {}
        for device in devices:
            key = key_of(device)
            gpu, known = self._latest.get(key), self.known.get(key)
            if gpu is None or known is None:
                continue
            unfit = judge(gpu, known)
            if unfit is not None:
                found[key] = unfit
        return found

    def set_aside(self, device: Device, unfit: Unfit) -> None:
        """Mark a device unfit until it is reset or returns to the bus."""
        key = key_of(device)
        self.known[key] = replace(self.known.get(key, Known()), needs_reset=unfit.reason)
        self._fit_since_s.pop(key, None)

    def is_fit(self, device: Device) -> bool:
        """Whether it has no known fault; False if it was never sampled."""
        return key_of(device) in self._fit_since_s

    def is_well_again(self, device: Device, now_s: float) -> bool:
        """Whether it has been fit for a while."""
        since_s = self._fit_since_s.get(key_of(device))
        return since_s is not None and now_s - since_s >= HEALTHY_AFTER_S

    def idle_bytes(self) -> Mapping[str, int]:
        """By key, the memory in use on each device without any process."""
        found = {key: known.idle_bytes for key, known in self.known.items()}
        return {key: least for key, least in found.items() if least is not None}


def _first(gpu: GpuSample) -> Known:
    return Known(
        remap_failed=bool(gpu.remap_failed),
        remap_pending=bool(gpu.remap_pending),
        ecc_uncorrected=gpu.ecc_uncorrected,
    )


def _was_reset(gpu: GpuSample, before: GpuSample | None, known: Known) -> bool:
    """Whether it returned to the bus, or its counters since the driver was loaded restarted."""
    if before is not None and before.lost:
        return True
    if known.needs_reset == LOST:
        return True
    used_before = known.energy_j
    return gpu.energy_j is not None and used_before is not None and gpu.energy_j < used_before


def _after_reset(gpu: GpuSample, known: Known) -> Known:
    return replace(
        known,
        forgiven_xids=list(gpu.xid or ()),
        needs_reset=None,
        ecc_uncorrected=gpu.ecc_uncorrected,
        ecc_attempts=0,
        energy_j=None,
    )


def _with_figures(gpu: GpuSample, known: Known) -> Known:
    return replace(
        known,
        idle_bytes=_idle_bytes(gpu, known.idle_bytes),
        energy_j=known.energy_j if gpu.energy_j is None else gpu.energy_j,
        ecc_uncorrected=gpu.ecc_uncorrected
        if known.ecc_uncorrected is None
        else known.ecc_uncorrected,
        remap_failed=known.remap_failed and gpu.remap_failed is not False,
        remap_pending=known.remap_pending and gpu.remap_pending is not False,
    )


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
    silent: bool = False
    """Whether there was no sample."""

    def in_words(self) -> str | None:
        """A message for the user; None if there is nothing worth reporting."""
        if self.silent:
            return (
                "the driver did not report whether the devices' memory was released; "
                "starting the next attempt anyway"
            )
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


async def wait(
    report: Callable[[], DeviceReport | None],
    look: Callable[[Sequence[GpuSample]], list[Held]],
    skip: Callable[[], bool],
    request: Callable[[], None] = lambda: None,
) -> Waited:
    """Wait until nothing is held, for at most `LIMIT_S`.

    Args:
        report: returns the latest report on the job's devices.
        look: `still_held` for the job.
        skip: whether to stop waiting.
        request: asks for a report at once.
    """
    began_s = boottime_s()
    request()  # a report is fresh if its reading began later
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
