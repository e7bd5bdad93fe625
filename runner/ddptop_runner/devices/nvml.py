"""NVIDIA devices through NVML.

Each NVML call takes a driver lock that the training also takes, so each query runs only as often as
its metrics change. Calls into the driver per device at the default rates:

    each second   utilization, memory, power                                3    a second
    every 4 s     compute processes, their shares if there are any          1
    every 5 s     temperature, two clocks, throttle reasons, P-state, fan   1.2
    every 30 s    power limit, ECC, remapped rows, energy                   0.13
    each second   one event wait of 0 ms for the XIDs of all devices        1/devices
                                                                            about 5.4 with 8 devices

pynvml makes two calls for a list that is not empty. The budget is 7. What never changes is read
once, and what a device does not support is queried once. Graphics processes, PCIe, and NVLink are
never queried: PCIe takes the driver 20 ms per metric.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pynvml

from ddptop_runner.devices import words
from ddptop_runner.devices.nvml_device import (
    RARE,
    SLOW,
    Gpu,
    LostError,
    ask,
    identify,
    process_queries,
    read,
    read_fast,
    read_mig_mode,
    read_processes,
)
from ddptop_runner.devices.owners import ProcessOwners
from ddptop_runner.devices.words import INIT_REMEDIES, NOT_SUPPORTED, Why, why_not
from ddptop_runner.model.snapshot import GpuSample

FAST_S = 1.0
PERIODS_S = {"fast": FAST_S, "slow": 5.0, "rare": 30.0, "processes": 4.0}
LOOK_UP_AGAIN_S = 10.0
"""How often a lost device is looked up again."""


class NoDriverError(Exception):
    """NVML cannot be used; `reason` says why, and how to fix it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Due:
    """Decides when something is due again, in the sampler's own ticks."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last_s: float | None = None

    def __call__(self, now_s: float) -> bool:
        # a tick that comes a little early must not delay a query by a whole tick
        if self._last_s is not None and now_s - self._last_s < self._period_s - 0.2:
            return False
        self._last_s = now_s
        return True


class NvmlBackend:
    """Reads the devices, in one thread. NVML stays open until the process ends."""

    def __init__(self, uuids: Collection[str] | None = None) -> None:
        """Raises NoDriverError if NVML does not start."""
        _start()
        self.driver = _text(pynvml.nvmlSystemGetDriverVersion)
        self._process_queries = process_queries(self.driver)
        self._owners = ProcessOwners()
        self._xids = XidWatch()
        self._due = {group: _Due(period_s) for group, period_s in PERIODS_S.items()}
        self._look_up_again = _Due(LOOK_UP_AGAIN_S)
        self._found = find(uuids)
        self._gpus = self._found.gpus
        self._began_well = any(gpu.handle is not None for gpu in self._gpus)
        self._watch_xids()
        self.source = "nvml" if self._gpus else None

    @property
    def note(self) -> str | None:
        """Why devices are missing, and the remedy; a lost device has its own note."""
        driver = f"NVIDIA driver {self.driver or ''}".rstrip()
        found = self._found
        if found.uncounted is not None and not self._gpus:
            return f"{driver} cannot list its devices ({found.uncounted}): check `nvidia-smi`"
        if not found.listed and not found.forbidden and not self._gpus:
            return f"{driver} found no devices: see `nvidia-smi -L`"
        parts = []
        if found.missing:
            parts.append(f"devices not on this machine: {', '.join(found.missing)}")
        if found.forbidden:
            parts.append(f"devices not accessible to this user or container: {found.forbidden}")
        if not parts and not self._gpus:
            return "no devices requested"
        return "; ".join(parts) or None

    def sample(self, boottime_s: float, *, at_once: bool = False) -> list[GpuSample]:
        """The devices now, in PCI order. Metrics whose query is not due keep their last values.

        `boottime_s` is the current time (CLOCK_BOOTTIME, seconds), which decides what is due. With
        `at_once`, what changes every second is read even if it is not due. A device that fails
        raises nothing: it is `lost`, or its metrics are None if it does not respond.

        Raises:
            NoDriverError: NVML has to be started again, in another process.
        """
        self._xids.collect()
        if self._look_up_again(boottime_s):
            self._look_for_lost()
            if self._xids.broken:
                self._watch_xids()
        groups = {group for group, is_due in self._due.items() if is_due(boottime_s)}
        if at_once:
            groups.add("fast")
        if "rare" in groups:
            self._check_instances()
        for gpu in self._gpus:
            self._refresh(gpu, groups)
        return _each_process_once([gpu.sample() for gpu in self._gpus])

    # --- lost devices, and MIG instances --------------------------------------------------------

    def _look_for_lost(self) -> None:
        lost = [gpu for gpu in self._gpus if gpu.handle is None]
        for gpu in lost:
            try:
                if not look_up_again(gpu):
                    continue
            except LostError as error:
                gpu.lose(self._trouble(gpu, error))
                continue
            self._refresh(gpu, PERIODS_S)
        if any(gpu.handle is not None for gpu in lost):
            self._check_instances()
            self._watch_xids()

    def _trouble(self, gpu: Gpu, error: LostError) -> str:
        """The note for a lost device.

        Raises:
            NoDriverError: all handles are stale, as after a driver reload: NVML says so, or no
                device responds and the reason is unknown.
        """
        all_lost = (
            self._began_well
            and error.status == pynvml.NVML_ERROR_UNKNOWN
            and all(other.handle is None for other in self._gpus if other is not gpu)
        )
        if all_lost or error.status == pynvml.NVML_ERROR_UNINITIALIZED:
            raise NoDriverError(words.DRIVER_RESTARTED) from error
        gone = gpu.parent_uuid is not None and error.status in (
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
        )
        return words.INSTANCE_GONE if gone else words.trouble(gpu.index, error.status)

    def _check_instances(self) -> None:
        """Check which devices are in MIG mode, and which instances they have.

        Raises:
            NoDriverError: they have other instances, so another process has to start over.
        """
        for gpu in self._gpus:
            if gpu.parent_uuid is not None or gpu.handle is None:
                continue
            before = gpu.mig_instances
            self._guard(gpu, partial(read_mig_mode, gpu))
            instances(gpu)
            if gpu.mig_instances != before:
                raise NoDriverError(words.INSTANCES_CHANGED)

    # --- asking -------------------------------------------------------------------------------

    def _refresh(self, gpu: Gpu, groups: Collection[str]) -> None:
        """Run the queries that are due, in this order, until the device turns out to be lost."""

        def ask() -> None:
            whole = gpu.parent_uuid is None
            if "fast" in groups:
                read_fast(gpu)
            if "slow" in groups and whole:
                read(gpu, SLOW)
            if "rare" in groups and whole:
                read(gpu, RARE)
            if "processes" in groups:
                read_processes(gpu, self._process_queries, self._owners)

        if gpu.handle is not None:
            self._guard(gpu, ask)

    def _guard(self, gpu: Gpu, ask: Callable[[], None]) -> None:
        try:
            ask()
        except LostError as error:
            gpu.lose(self._trouble(gpu, error))
            self._watch_xids()

    # --- XIDs ---------------------------------------------------------------------------------

    def _watch_xids(self) -> None:
        """Listen to the devices that are present, but not to lost ones or MIG instances."""
        watched = [gpu for gpu in self._gpus if gpu.handle is not None and gpu.parent_uuid is None]
        for gpu in self._xids.listen(watched):
            gpu.lose(words.trouble(gpu.index, pynvml.NVML_ERROR_GPU_IS_LOST))


def _each_process_once(samples: list[GpuSample]) -> list[GpuSample]:
    """The samples; a device in MIG mode does not list the processes of its sampled instances."""
    pids_of: dict[str, set[int]] = {}
    for sample in samples:
        if sample.parent_uuid is not None:
            pids = pids_of.setdefault(sample.parent_uuid, set())
            pids.update(process.pid for process in sample.processes or ())
    return [
        sample
        if not sample.processes or not (pids_there := pids_of.get(sample.uuid or "-"))
        else msgspec.structs.replace(
            sample,
            processes=[p for p in sample.processes if p.pid not in pids_there],
        )
        for sample in samples
    ]


def _start() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        unknown = f"failed to initialize NVML ({error}); check `nvidia-smi`"
        raise NoDriverError(INIT_REMEDIES.get(error.value, unknown)) from error


def _text(function: Any) -> str | None:
    try:
        answer = function()
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None
    return answer if isinstance(answer, str) else None


class Found(NamedTuple):
    """The devices to sample."""

    gpus: list[Gpu]
    listed: int
    """Devices of this machine that were found."""
    forbidden: int
    """Devices that this user or container cannot access."""
    missing: list[str]
    """UUIDs that were requested but not found."""
    uncounted: str | None
    """Why the driver does not report the number of devices; None if it does."""


def find(uuids: Collection[str] | None) -> Found:
    """The devices and MIG instances with these UUIDs; None means all, each with its instances.

    They are in PCI order, with instances after their device. A lost device does not report its
    UUID: it is included if requested UUIDs are missing.
    """
    found: list[Gpu] = []
    unnamed: list[Gpu] = []
    listed = forbidden = 0
    count = device_count()
    for index in range(0 if isinstance(count, Why) else count):
        gpu = _look_up(index)
        if gpu is None:
            forbidden += 1
            continue
        listed += 1
        if uuids is None:
            found += [gpu, *instances(gpu)]
        elif gpu.uuid in uuids:
            instances(gpu)
            found.append(gpu)
        elif gpu.uuid is None:
            unnamed.append(gpu)
    missing: set[str] = set()
    if uuids is not None:
        found += [mig for uuid in uuids if (mig := _instance(uuid)) is not None]
        missing = set(uuids) - {gpu.uuid for gpu in found if gpu.uuid}
        if missing:
            found += unnamed
            if len(unnamed) == len(missing) == 1:
                unnamed[0].uuid = missing.pop()
    found.sort(key=lambda gpu: (gpu.index, gpu.parent_uuid is not None))
    uncounted = str(count) if isinstance(count, Why) else None
    return Found(found, listed, forbidden, sorted(missing), uncounted)


def device_count() -> int | Why:
    """How many devices the driver lists, or why it does not report that."""
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return words.why_not(error.value)


def look_up_again(gpu: Gpu) -> bool:
    """Give a lost device its new handle, if it is back.

    Raises:
        LostError: it is not back; has NVML's `status`.
    """
    try:
        if gpu.uuid is not None:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        elif not isinstance(count := device_count(), Why) and gpu.index < count:
            handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
        else:
            return False
    except pynvml.NVMLError as error:
        raise LostError(error.value) from error
    gpu.handle, gpu.trouble = handle, None
    identify(gpu)
    return True


def instances(gpu: Gpu) -> list[Gpu]:
    """The current MIG instances of a device; also stores their UUIDs with the device.

    Never raises: an instance that does not respond is omitted.
    """
    if gpu.handle is None:
        return []
    if not gpu.mig_mode:
        gpu.mig_instances = []
        return []
    try:
        most = ask(gpu, (("nvmlDeviceGetMaxMigDeviceCount",),))
    except LostError:
        return []
    found = []
    for place in range(0 if isinstance(most, Why) else most):
        try:
            # slots without an instance can come before others, so an error does not end the list
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
            instance = Gpu(index=gpu.index, handle=handle, parent_uuid=gpu.uuid or "")
            identify(instance)
        except (pynvml.NVMLError, LostError):
            continue
        found.append(instance)
    gpu.mig_instances = [instance.uuid for instance in found if instance.uuid]
    return found


def _look_up(index: int) -> Gpu | None:
    """The device with this index, lost or not; None if it is not accessible."""
    gpu = Gpu(index=index)
    try:
        gpu.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        identify(gpu)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            return None
        gpu.lose(words.trouble(index, error.value))
    except LostError as error:
        gpu.lose(words.trouble(index, error.status))
    return gpu


def _instance(uuid: str) -> Gpu | None:
    """The MIG instance with this UUID, under its device's index; None if it is not an instance."""
    if not uuid.startswith("MIG-"):
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        device = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        index = pynvml.nvmlDeviceGetIndex(device)
        parent_uuid = pynvml.nvmlDeviceGetUUID(device)
        gpu = Gpu(index=index, handle=handle, uuid=uuid, parent_uuid=parent_uuid)
        identify(gpu)
    except (pynvml.NVMLError, LostError):
        return None
    return gpu


XID = pynvml.nvmlEventTypeXidCriticalError
_MOST_EVENTS_PER_TICK = 64
_NEVER = {
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
}
"""If a wait ends with one of these, all later ones will."""


class XidWatch:
    """Listens to devices. An event set with a lost device is abandoned and never used again."""

    def __init__(self) -> None:
        self._set: Any | None = None
        self._gpus: dict[int | None, Gpu] = {}
        """By the address of the handle, which identifies it without a query to a lost device."""
        self.broken = False
        """Whether listening failed, so that it has to be restarted."""

    def listen(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """Start over with these devices; returns those that turned out to be lost.

        Sets why each device cannot report XIDs.
        """
        self._set, self.broken = None, False
        self._gpus = {_address(gpu.handle): gpu for gpu in gpus}
        lost: list[Gpu] = []
        events, why = None, NOT_SUPPORTED
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            why = why_not(error.value)
        for gpu in gpus:
            gpu.why_no_xids = why
            if events is None:
                continue
            try:
                types = pynvml.nvmlDeviceGetSupportedEventTypes(gpu.handle)
                if types & XID:
                    pynvml.nvmlDeviceRegisterEvents(gpu.handle, XID, events)
                    gpu.why_no_xids, self._set = None, events
            except pynvml.NVMLError as error:
                gpu.why_no_xids = why_not(error.value)
                if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    lost.append(gpu)
        return lost

    def collect(self) -> None:
        """Store the XIDs reported since the last call with their devices."""
        for _ in range(_MOST_EVENTS_PER_TICK):
            if self._set is None:
                return
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    self._stop(error.value)
                return
            gpu = self._gpus.get(_address(event.device))
            if event.eventType == XID and gpu is not None and gpu.handle is not None:
                gpu.xids.append(int(event.eventData))
                del gpu.xids[:-32]

    def _stop(self, status: int) -> None:
        self._set, self.broken = None, status not in _NEVER
        for gpu in self._gpus.values():
            gpu.why_no_xids = gpu.why_no_xids or why_not(status)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
