"""Names devices: on this machine, and as the job sees them."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner.base.spans import name_gpus
from ddptop_runner.model.spec import Device, DeviceQueue


def name_of(device: Device) -> str:
    """`GPU 3`, or the UUID of a MIG instance."""
    if device.is_mig:
        return f"{device.uuid} on GPU {device.index}"
    return f"GPU {device.index}"


def names_of(devices: Sequence[Device]) -> str:
    """`GPU 3`, `GPUs 0-2, 5` in ascending order, or a MIG instance."""
    if any(device.is_mig for device in devices):
        return ", ".join(name_of(device) for device in devices)
    return name_gpus(sorted({device.index for device in devices}))


def wanted_in_words(queue: DeviceQueue) -> str:
    """`GPUs 0, 1`, or `2 of GPUs 0-3`."""
    names = names_of(queue.candidates)
    return names if queue.count == len(queue.candidates) else f"{queue.count} of {names}"


def cuda_names(devices: Sequence[Device]) -> str:
    """`cuda:0 is GPU 2, cuda:1 is GPU 5`."""
    return ", ".join(
        f"cuda:{position} is {name_of(device)}" for position, device in enumerate(devices)
    )


def renumbered(devices: Sequence[Device]) -> bool:
    """Whether `cuda:i` is another device than GPU i of the machine."""
    return any(device.index != position or device.is_mig for position, device in enumerate(devices))


def devices_in_words(devices: Sequence[Device]) -> str:
    """Which `cuda:i` is which device: shortly where i is the machine's number as well."""
    if renumbered(devices):
        return cuda_names(devices)
    last = len(devices) - 1
    return f"{names_of(devices)}, as cuda:0" + (f" to cuda:{last}" if last else "")
