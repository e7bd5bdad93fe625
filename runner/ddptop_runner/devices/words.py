"""Text about devices: their names, what is wrong with them, and why a metric is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddptop_runner.base.units import name_gpus

if TYPE_CHECKING:
    from ddptop_runner.model.spec import Device, Waiting

LIBRARY = "libnvidia-ml.so.1"

LIBRARY_MISSING = (
    f"{LIBRARY} not found: install the NVIDIA driver, or start the container with its GPUs "
    "(docker run --gpus all)"
)

LIBRARY_BROKEN = (
    f"{LIBRARY} cannot be loaded ({{reason}}): reinstall the NVIDIA driver, or "
    "start the container with its GPUs (docker run --gpus all)"
)

PYNVML_MISSING = (
    "the Python package nvidia-ml-py is missing or shadowed by another package: "
    "pip install --force-reinstall nvidia-ml-py"
)

INIT_REMEDIES = {
    4: "no permission to use the NVIDIA driver: check the permissions of /dev/nvidia*",
    9: "the NVIDIA driver is not loaded: run `nvidia-smi` as root, or load it with "
    "`modprobe nvidia`",
    12: LIBRARY_MISSING,
    18: "the NVIDIA driver was updated, but the old kernel module is still loaded: reboot, or "
    "reload the nvidia modules",
}


class Why(str):
    """Used in place of a metric: why it is unknown."""

    __slots__ = ()


NOT_SUPPORTED = Why("not supported")
NO_PERMISSION = Why("no permission")
OLDER_DRIVER = Why("not supported by this driver")
OLDER_PYNVML = Why("not supported by this version of nvidia-ml-py")
NOT_READ = Why("not read yet")
OUT_OF_RANGE = Why("the driver returned an out-of-range value")
NOT_TEXT = Why("the driver returned invalid text")
IN_TOTAL = Why("not reported by this driver: counted as used memory")
HOST_MEMORY = Why("shares host memory")
MIG_INSTANCE = Why("not available for MIG instances: see the parent GPU")
NO_SAMPLE = Why("no sample for this process in the last second")
HOST_PIDS = Why("the driver uses host PIDs, but this is a container")
PROCESS_MEMORY = Why("not reported by the driver for a live process")
LOST = "the device is lost"
NO_ANSWER = "the driver is not responding"
DRIVER_RESTARTED = "the NVIDIA driver was restarted"
INSTANCES_CHANGED = "MIG instances were created or destroyed"

_REASONS = {
    2: NOT_SUPPORTED,
    3: NOT_SUPPORTED,
    4: NO_PERMISSION,
    10: Why("unreadable: the driver timed out"),
    13: OLDER_DRIVER,
    16: Why("unreadable: the device needs a reset"),
    17: Why("unreadable: blocked by the operating system"),
    21: Why("no data yet"),
    25: OLDER_DRIVER,
    26: OLDER_DRIVER,
    27: Why("unreadable: the device is not ready"),
}

_LOOK_UP_TROUBLE = {
    8: "its power cables are not connected",
    11: "the kernel reports a problem with its interrupts",
    6: "lost: no longer listed by the driver",
    15: "lost: it fell off the bus",
    16: "it needs a reset",
}

_RESET = (
    "check `dmesg | grep -i xid`, then reset the device (`nvidia-smi --gpu-reset -i {index}`) or "
    "reboot"
)

NO_INSTANCES = "in MIG mode with no instances: create one with `nvidia-smi mig -cgi`"
REMAP_FAILED = "a bad memory row could not be remapped: replace the device"
REMAP_PENDING = (
    "a bad memory row will be remapped at the next reset: reset the device when it is idle"
)
INSTANCE_GONE = "this MIG instance no longer exists: see `nvidia-smi -L`"


def why_not(status: int) -> Why:
    """Why a metric is unknown, from the NVML status that its query returned."""
    return _REASONS.get(status) or Why(f"unreadable: NVML error {status}")


def trouble(index: int, status: int | None) -> str:
    """What is wrong with a device that cannot be used, and the remedy.

    `status` is what NVML returned; None if the device stopped answering.
    """
    what = "lost: no longer responding" if status is None else _LOOK_UP_TROUBLE.get(status)
    return f"{what or f'lost: NVML error {status}'}; {_RESET.format(index=index)}"


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


def wanted_in_words(queue: Waiting) -> str:
    """`GPUs 0, 1`, or `2 of GPUs 0-3`."""
    names = names_of(queue.candidates)
    return names if queue.count == len(queue.candidates) else f"{queue.count} of {names}"


def cuda_names(devices: Sequence[Device]) -> str:
    """`cuda:0 is GPU 2, cuda:1 is GPU 5`."""
    return ", ".join(
        f"cuda:{position} is {name_of(device)}" for position, device in enumerate(devices)
    )


def renumbered(devices: Sequence[Device]) -> bool:
    """Whether any `cuda:i` is a device other than GPU i of the machine."""
    return any(device.index != position or device.is_mig for position, device in enumerate(devices))


def devices_in_words(devices: Sequence[Device]) -> str:
    """Which device each `cuda:i` is; brief if the indices match those of the machine."""
    if renumbered(devices):
        return cuda_names(devices)
    last = len(devices) - 1
    return f"{names_of(devices)}, as cuda:0" + (f" to cuda:{last}" if last else "")
