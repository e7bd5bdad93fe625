"""Looking devices up: by index, by UUID, and the MIG instances of a device."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import pynvml

from ddptop_runner.devices import words
from ddptop_runner.devices.nvml_calls import tally
from ddptop_runner.devices.nvml_queries import Gpu, LostError, ask, identify
from ddptop_runner.devices.words import Why


class Found(NamedTuple):
    """The devices to sample."""

    gpus: list[Gpu]
    listed: int
    """Devices of this machine that could be looked at."""
    forbidden: int
    """Devices that this user or container may not use."""
    missing: list[str]
    """UUIDs that were asked for and are not there."""
    uncounted: str | None
    """Why the driver does not say how many devices there are; None where it does."""


def find(uuids: Collection[str] | None) -> Found:
    """The devices and MIG instances with these UUIDs; None is all of them, each with its instances.

    They come in PCI order, instances after their device. A lost device does not tell its UUID: it
    is among the answer when as many are asked for that are not there.
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
    """How many devices the driver lists, or why it does not say."""
    tally.calls += 1
    try:
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return words.why_not(error.value)


def look_again(gpu: Gpu) -> bool:
    """Give a lost device its new handle, if it is back.

    Raises:
        LostError: whose `status` says what NVML answered, when it is not.
    """
    tally.calls += 1
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


def is_there(uuid: str) -> bool:
    """Whether the driver knows that UUID; True where it does not say."""
    tally.calls += 1
    try:
        pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        return error.value not in (
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
        )
    return True


def instances(gpu: Gpu) -> list[Gpu]:
    """The MIG instances of a device as they are now; also keeps their UUIDs with the device.

    Raises nothing: an instance that does not answer is left out.
    """
    if not gpu.mig_mode or gpu.handle is None:
        return []
    try:
        most = ask(gpu, (("nvmlDeviceGetMaxMigDeviceCount",),))
    except LostError:
        return []
    found = []
    for place in range(0 if isinstance(most, Why) else most):
        tally.calls += 1
        try:
            # places without an instance lie between others, so an error does not end the list
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
            instance = Gpu(index=gpu.index, handle=handle, parent_uuid=gpu.uuid or "")
            identify(instance)
        except (pynvml.NVMLError, LostError):
            continue
        found.append(instance)
    gpu.mig_instances = [instance.uuid for instance in found if instance.uuid]
    return found


def _look_up(index: int) -> Gpu | None:
    """The device of that index, lost or not; None when it may not be used."""
    gpu = Gpu(index=index)
    tally.calls += 1
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
    """The MIG instance of that UUID under its device's index; None when it is not one."""
    if not uuid.startswith("MIG-"):
        return None
    tally.calls += 4
    try:
        handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        device = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        gpu = Gpu(
            index=pynvml.nvmlDeviceGetIndex(device),
            handle=handle,
            uuid=uuid,
            parent_uuid=pynvml.nvmlDeviceGetUUID(device),
        )
        identify(gpu)
    except (pynvml.NVMLError, LostError):
        return None
    return gpu
