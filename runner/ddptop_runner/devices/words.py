"""NVML's numbers in words: throttle reasons, why a figure is unknown, and what to do about it."""

from __future__ import annotations

LIBRARY = "libnvidia-ml.so.1"

# nvmlClocksEventReason*: the bits that lower the clocks; 0x1 (idle) is left out, it is no slowdown
_THROTTLE_WORDS = {
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal, by software",
    0x040: "thermal, by hardware",
    0x080: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
_IDLE = 0x001
_HARDWARE_SLOWDOWN = 0x008
_HARDWARE_CAUSES = 0x040 | 0x080

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

_INIT_REMEDIES = {
    4: "no permission to use the NVIDIA driver: check the permissions of /dev/nvidia*",
    9: "the NVIDIA driver is not loaded: run `nvidia-smi` as root, or load it with "
    "`modprobe nvidia`",
    12: LIBRARY_MISSING,
    18: "the NVIDIA driver was updated, but the old kernel module is still loaded: reboot, or "
    "reload the nvidia modules",
}


class Why(str):
    """Stands where a figure would: why it is unknown."""

    __slots__ = ()


NOT_SUPPORTED = Why("not supported")
NO_PERMISSION = Why("no permission")
OLDER_DRIVER = Why("not supported by this driver")
OLDER_PYNVML = Why("not supported by this version of nvidia-ml-py")
NOT_ASKED = Why("not requested: pass --links")
NOT_READ = Why("not read yet")
NOT_LISTENING = Why("not monitored: the driver was restarted")
FIRST_READING = Why("a rate needs two readings")
COUNTER_RESET = Why("the counter was reset")
OUT_OF_RANGE = Why("the driver returned a value out of range")
NOT_TEXT = Why("the driver returned invalid text")
IN_TOTAL = Why("not reported by this driver: counted as used memory")
HOST_MEMORY = Why("shares host memory")
MIG_INSTANCE = Why("not available for MIG instances: see the parent GPU")
NO_NVLINK = Why("no NVLink")
NO_SAMPLE = Why("no sample for this process in the last second")
HOST_PIDS = Why("the driver uses host PIDs, but this is a container")
PROCESS_MEMORY = Why("not reported by the driver for a live process")
LOST = "the device is lost"
NO_ANSWER = "the driver is not responding"

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
    "check `dmesg | grep -i xid`, then reset it (`nvidia-smi --gpu-reset -i {index}`) or reboot"
)

NO_INSTANCES = "in MIG mode without instances: create one with `nvidia-smi mig -cgi`"
REMAP_FAILED = "a bad memory row could not be remapped: replace the device"
REMAP_PENDING = "a bad memory row will be remapped at the next reset: reset the device when idle"
INSTANCE_GONE = "this MIG instance no longer exists: see `nvidia-smi -L`"


def throttle_words(mask: int) -> list[str]:
    """Why the clocks are held down, for the bits of nvmlDeviceGetCurrentClocksEventReasons.

    Idling is no reason. The general bit "hardware slowdown" is named only without its own cause.
    A bit without a name here reads like `0x800`.
    """
    mask &= ~_IDLE
    if mask & _HARDWARE_CAUSES:
        mask &= ~_HARDWARE_SLOWDOWN
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return [_THROTTLE_WORDS.get(bit, hex(bit)) for bit in bits]


def why_not(status: int) -> Why:
    """Why a figure is unknown, for the NVML status that its query ended with."""
    return _REASONS.get(status) or Why(f"unreadable: NVML error {status}")


def trouble(index: int, status: int | None) -> str:
    """What is wrong with a device that cannot be used, and the remedy.

    `status` is what NVML said; None where the device only ceased to answer.
    """
    what = "lost: no longer responding" if status is None else _LOOK_UP_TROUBLE.get(status)
    return f"{what or f'lost: NVML error {status}'}; {_RESET.format(index=index)}"


def init_failure(status: int, text: str) -> str:
    """Why nvmlInit failed and what to do, from its status and NVML's own text."""
    return _INIT_REMEDIES.get(
        status, f"the NVIDIA driver cannot start ({text}): check `nvidia-smi`"
    )
