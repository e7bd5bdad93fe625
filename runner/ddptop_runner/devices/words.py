"""NVML's numbers in words: throttle reasons, and what to do when the driver cannot be used."""

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
    f"{LIBRARY} was not found: install the NVIDIA driver, or start the container with its GPUs "
    "(docker run --gpus all)"
)

PYNVML_MISSING = (
    "the Python package nvidia-ml-py is missing or replaced by another of its import name: "
    "pip install --force-reinstall nvidia-ml-py"
)

_INIT_REMEDIES = {
    4: "this user may not use the NVIDIA driver: check the permissions of /dev/nvidia*",
    9: "the NVIDIA driver is not loaded: run `nvidia-smi` as root, or load it with "
    "`modprobe nvidia`",
    12: LIBRARY_MISSING,
    18: "the NVIDIA driver was updated and its kernel module is older than its library: reboot, or "
    "reload the nvidia modules",
}


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


def init_failure(status: int, text: str) -> str:
    """Why nvmlInit failed and what to do, from its status and NVML's own text."""
    return _INIT_REMEDIES.get(
        status, f"the NVIDIA driver does not start ({text}): see what `nvidia-smi` says"
    )
