"""NVIDIA devices through NVML.

Each NVML call takes one lock of the driver that the training takes as well, so queries are asked
as rarely as their figures change: utilization, memory and power each second, temperature, clocks
and throttle reasons every 5 s, the rest every 30 s, compute processes every 2 s, and XIDs by an
event wait of 0 ms. Graphics processes, PCIe, NVLink and per-process utilization are not asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import pynvml

from ddptop_runner.devices.nvml_queries import (
    GONE,
    Gpu,
    LostError,
    identify,
    process_queries,
    read_fast,
    read_processes,
    read_rare,
    read_slow,
)
from ddptop_runner.devices.owners import ProcessOwners
from ddptop_runner.devices.words import init_failure
from ddptop_runner.devices.xid import XidWatch
from ddptop_runner.model import GpuSample

FAST_S = 1.0
SLOW_S = 5.0
RARE_S = 30.0
PROCESSES_S = 2.0
LOOK_AGAIN_S = 10.0
"""How often a lost device is looked up again."""


class NoDriverError(Exception):
    """NVML cannot be used; `reason` says why and what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Due:
    """Says when something is due again, in terms of the sampler's own ticks."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._last_s: float | None = None

    def __call__(self, now_s: float) -> bool:
        # a tick that comes a little early must not put a query off by a whole tick
        if self._last_s is not None and now_s - self._last_s < self._period_s - 0.2:
            return False
        self._last_s = now_s
        return True


class NvmlBackend:
    """See `DeviceBackend`. NVML is never shut down: the process that opened it ends instead."""

    def __init__(self, uuids: Collection[str] | None = None) -> None:
        """Raises NoDriverError when NVML does not start."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoDriverError(init_failure(error.value, str(error))) from error
        self.driver = _text(pynvml.nvmlSystemGetDriverVersion)
        self._process_queries = process_queries(self.driver)
        self._owners = ProcessOwners()
        self._xids = XidWatch()
        self._fast, self._slow, self._rare = _Due(FAST_S), _Due(SLOW_S), _Due(RARE_S)
        self._processes, self._look_again = _Due(PROCESSES_S), _Due(LOOK_AGAIN_S)
        self._listed, self._forbidden = 0, 0
        self._gpus = self._find(uuids)
        self._missing = sorted(set(uuids or ()) - {gpu.uuid for gpu in self._gpus if gpu.uuid})
        self._watch_xids()
        self.source = "nvml" if self._gpus else None

    @property
    def note(self) -> str | None:
        """See `DeviceBackend`."""
        if not self._listed and not self._forbidden:
            return f"the NVIDIA driver {self.driver or ''} sees no device: see `nvidia-smi -L`"
        parts = []
        if self._missing:
            parts.append(f"not on this machine: {', '.join(self._missing)}")
        if self._forbidden:
            parts.append(f"{self._forbidden} device(s) that this user or container may not use")
        if lost := [str(gpu.index) for gpu in self._gpus if gpu.handle is None]:
            parts.append(f"GPU {', '.join(lost)} lost: see `dmesg | grep -i xid`; reset or reboot")
        if not parts and not self._gpus:
            return "no device was asked for"
        return "; ".join(parts) or None

    def sample(self, boottime_s: float) -> list[GpuSample]:
        """See `DeviceBackend`."""
        self._collect_xids()
        if self._look_again(boottime_s):
            self._look_for_lost()
            if self._xids.broken:
                self._watch_xids()
        due = {
            "fast": self._fast(boottime_s),
            "slow": self._slow(boottime_s),
            "rare": self._rare(boottime_s),
            "processes": self._processes(boottime_s),
        }
        for gpu in self._gpus:
            self._refresh(gpu, **due)
        return [gpu.sample() for gpu in self._gpus]

    def close(self) -> None:
        """Drop the handles. Ending NVML could crash or block when a device is ill."""
        self._gpus = []

    # --- finding devices ----------------------------------------------------------------------

    def _find(self, uuids: Collection[str] | None) -> list[Gpu]:
        found, unnamed = [], []
        for index in range(_number(pynvml.nvmlDeviceGetCount)):
            gpu = _look_up(index)
            if gpu is None:
                self._forbidden += 1
                continue
            self._listed += 1
            if uuids is None or gpu.uuid in uuids:
                found.append(gpu)
            elif gpu.uuid is None:
                unnamed.append(gpu)
        if uuids is not None:
            found += [mig for uuid in uuids if (mig := _look_up_mig(uuid)) is not None]
            missing = set(uuids) - {gpu.uuid for gpu in found}
            if missing:  # lost devices do not tell their UUID: some are those asked for
                found += unnamed
                if len(unnamed) == len(missing) == 1:
                    unnamed[0].uuid = missing.pop()
        return sorted(found, key=lambda gpu: gpu.index)

    def _look_for_lost(self) -> None:
        lost = [gpu for gpu in self._gpus if gpu.handle is None]
        if not lost:
            return
        listed = _number(pynvml.nvmlDeviceGetCount)
        for gpu in lost:
            try:
                if gpu.uuid is not None:
                    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                elif gpu.index < listed:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
                else:
                    continue
            except pynvml.NVMLError:
                continue
            gpu.handle = handle
            self._guard(gpu, functools.partial(identify, gpu))
            if gpu.handle is not None:
                self._refresh(gpu, fast=True, slow=True, rare=True, processes=True)
        if any(gpu.handle is not None for gpu in lost):
            self._watch_xids()

    # --- asking -------------------------------------------------------------------------------

    def _refresh(self, gpu: Gpu, *, fast: bool, slow: bool, rare: bool, processes: bool) -> None:
        """Ask what is due, in that order, until the device turns out to be lost."""

        def ask() -> None:
            if fast:
                read_fast(gpu)
            if slow:
                read_slow(gpu)
            if rare:
                read_rare(gpu)
            if processes:
                read_processes(gpu, self._process_queries, self._owners)

        if gpu.handle is not None:
            self._guard(gpu, ask)

    def _guard(self, gpu: Gpu, ask: Callable[[], None]) -> None:
        try:
            ask()
        except LostError:
            gpu.lose()
            self._watch_xids()

    # --- XIDs ---------------------------------------------------------------------------------

    def _watch_xids(self) -> None:
        """Listen to the devices that are there, and to no lost one."""
        handles = [gpu.handle for gpu in self._gpus if gpu.handle is not None]
        heard, lost = self._xids.listen(handles)
        for gpu in self._gpus:
            gpu.xids_known = gpu.xids_known or any(gpu.handle is handle for handle in heard)
            if any(gpu.handle is handle for handle in lost):
                gpu.lose()

    def _collect_xids(self) -> None:
        for address, code in self._xids.collect():
            for gpu in self._gpus:
                if gpu.handle is not None and XidWatch.address(gpu.handle) == address:
                    gpu.xids.append(code)
                    del gpu.xids[:-32]


def _look_up(index: int) -> Gpu | None:
    """The device of that index, lost or not; None when it may not be used."""
    gpu = Gpu(index=index, uuid=None, handle=None)
    try:
        gpu.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        identify(gpu)
    except pynvml.NVMLError as error:
        return gpu if error.value in GONE else None
    except LostError:
        gpu.lose()
    return gpu


def _look_up_mig(uuid: str) -> Gpu | None:
    """The MIG instance of that UUID under its parent's index; None when it is not one."""
    if not uuid.startswith("MIG-"):
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        gpu = Gpu(index=pynvml.nvmlDeviceGetIndex(parent), uuid=uuid, handle=handle)
        identify(gpu)
    except (pynvml.NVMLError, LostError):
        return None
    return gpu


def _text(function: Any) -> str | None:
    try:
        answer = function()
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)


def _number(function: Any) -> int:
    try:
        return int(function())
    except pynvml.NVMLError:
        return 0
