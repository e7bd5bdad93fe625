"""What the driver's codes mean: XIDs, and the reasons for reduced clocks.

The only table of each. Whoever judges a device or explains one reads it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Xid(NamedTuple):
    """An error that the driver reports with a number (NVIDIA's "XID Errors" catalog)."""

    meaning: str
    fault: Literal["program", "device", "none"]
    """Whose fault it is; "none" if nothing is wrong with either."""
    remedy: str
    is_usable: bool = True
    """Whether the next attempt may use the device before it is reset."""


_IN_PROGRAM = "usually caused by the program; check the rank's log"
_CHECK = "see dmesg and nvidia-smi -q"
_RESET = "reset the device; have it inspected if the error recurs"
_REBOOT = "reset the device or reboot; if it recurs, check power, seating, and dmesg"
_LATER = "reset the device when it is idle; no hurry"


def _program(meaning: str) -> Xid:
    return Xid(meaning, "program", _IN_PROGRAM)


def _device(meaning: str) -> Xid:
    return Xid(meaning, "device", _CHECK)


def _reset(meaning: str, remedy: str = _RESET) -> Xid:
    return Xid(meaning, "device", remedy, is_usable=False)


KILLED_PROCESS = 45
CONTAINED = 94
UNCONTAINED = 95
SAME_AS_CONTAINED = frozenset({48, 154})
"""Reports that come with a contained memory error and then mean the same error."""

XIDS: Mapping[int, Xid] = {
    8: _program("a kernel ran too long or the device hung"),
    11: _program("the driver received an invalid command"),
    13: _program("a kernel error, such as an out-of-bounds index"),
    31: _program("a kernel accessed an unmapped address"),
    32: _device("a command buffer was corrupted, often by a PCIe fault"),
    38: _device("the driver's firmware failed"),
    43: _program("the GPU stopped running a process after an error"),
    44: _device("a fault during a context switch"),
    KILLED_PROCESS: Xid(
        "the driver removed a process's work after an earlier error or when the process exited",
        "none",
        "a consequence of what ended the process; check the rank's log",
    ),
    46: _reset("the GPU stopped processing"),
    48: _reset("an uncorrectable double-bit memory error"),
    57: _device("the memory interface could not be initialized"),
    58: _device("the memory interface became unstable"),
    61: _reset("the internal microcontroller stopped"),
    62: _reset("the internal microcontroller halted"),
    63: Xid("a bad memory row was marked for remapping", "none", _LATER),
    64: _reset("a bad memory row could not be marked for remapping"),
    66: _program("invalid use of the driver"),
    68: _program("the video decoder failed"),
    69: _program("a graphics or compute engine failed"),
    74: _reset("an NVLink error"),
    79: _reset("the device fell off the bus", _REBOOT),
    92: _device("a high rate of corrected single-bit memory errors"),
    CONTAINED: Xid(
        "an uncorrectable memory error, contained to one process",
        "device",
        "restart the program; reset the device when it is idle",
    ),
    UNCONTAINED: _reset("an uncorrectable memory error that may affect every process"),
    109: _reset("a context switch timed out"),
    110: _reset("a security fault"),
    119: _reset("the device's system processor timed out"),
    120: _reset("the device's system processor failed"),
    121: Xid("a corrected error on the CPU-GPU link (C2C)", "none", _LATER),
    122: _device("the SPI flash could not be read"),
    123: _device("the SPI flash could not be written"),
    125: _device("the InfoROM is corrupt"),
    136: _reset("NVLink link training failed"),
    137: _program("peer access over NVLink was denied"),
    140: _reset("a memory error that could not be recovered"),
    143: _reset("the device could not be initialized", _REBOOT),
    154: _reset(
        "the driver asks for a recovery action",
        'see "GPU Recovery Action" in nvidia-smi -q, usually a reset or a reboot',
    ),
    **dict.fromkeys(range(39, 42), _device("a copy engine failed")),
    **dict.fromkeys((*range(70, 73), *range(75, 78), 85), _device("a copy engine failed")),
    **dict.fromkeys(range(144, 151), _device("an NVLink error")),
}


def xid(code: int) -> Xid:
    """What is known about an XID; one that is not in the table is taken for the device's fault."""
    return XIDS.get(code) or _device(f"XID {code}")


class Throttle(NamedTuple):
    """A reason for reduced clocks."""

    name: str
    """As in `GpuSample.throttle_reasons`."""
    cause: Literal["heat", "power", "other"]
    weight: Literal["usual", "limited", "slowed"]
    """"usual" at work, "limited" to lower clocks, or "slowed", as no healthy device is."""
    remedy: str


_COOLING = "check fans, airflow, and neighboring cards"

THERMAL_BY_SOFTWARE = Throttle(
    *("thermal, by software", "heat", "limited"),
    f"the driver lowered its clocks to prevent overheating; {_COOLING}",
)
_HARDWARE_SLOWDOWN = 0x008
_HARDWARE_CAUSES = 0x040 | 0x080
_IDLE = 0x001

THROTTLES: Mapping[int, Throttle] = {
    0x002: Throttle(
        *("application clocks", "other", "usual"),
        "clocks were set with nvidia-smi -ac; reset them with nvidia-smi -rac",
    ),
    0x004: Throttle(
        *("power cap", "power", "usual"), "at its power limit, which is normal for a busy device"
    ),
    _HARDWARE_SLOWDOWN: Throttle(
        *("hardware slowdown", "other", "slowed"),
        "requested by the board because of heat or power; check fans, airflow, and the power "
        "supply",
    ),
    0x010: Throttle(
        *("sync boost", "other", "limited"),
        "clocks are limited to those of its sync boost group",
    ),
    0x020: THERMAL_BY_SOFTWARE,
    0x040: Throttle(
        *("thermal, by hardware", "heat", "slowed"),
        f"the device is too hot and runs much slower until it cools; {_COOLING}",
    ),
    0x080: Throttle(
        *("power brake", "power", "slowed"),
        "requested by the power supply; check the supply and its cables",
    ),
    0x100: Throttle(
        *("display clocks", "other", "usual"), "clocks are limited by an attached display"
    ),
    0x200: Throttle(
        *("board limit", "other", "limited"),
        "limited by the board; not a problem if all devices are affected",
    ),
    0x400: Throttle(
        *("reliability", "other", "limited"),
        "limited by the chip's maximum voltage; not a problem if all devices are affected",
    ),
}
"""By bit of nvmlClocksEventReason*. Idle is omitted, as it is no slowdown."""

_BY_NAME = {one.name: one for one in THROTTLES.values()}


def throttle(name: str) -> Throttle:
    """What is known about an entry of `GpuSample.throttle_reasons`."""
    return _BY_NAME.get(name) or Throttle(name, "other", "limited", "see nvidia-smi -q")


def throttle_names(mask: int) -> list[str]:
    """Why the clocks are reduced, for the bits of nvmlDeviceGetCurrentClocksEventReasons.

    The general bit "hardware slowdown" is included only without a specific cause. A bit without a
    name is shown as `0x800`.
    """
    mask &= ~_IDLE
    if mask & _HARDWARE_CAUSES:
        mask &= ~_HARDWARE_SLOWDOWN
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return [THROTTLES[bit].name if bit in THROTTLES else hex(bit) for bit in bits]
