"""What XIDs, the NVIDIA driver's numbers for device errors, mean."""

from __future__ import annotations

_MEANINGS = {
    8: "a kernel ran too long or the device hung",
    11: "the driver received an invalid command",
    13: "a kernel error, such as an index out of bounds",
    16: "the display engine hung",
    31: "a kernel accessed an unmapped address",
    32: "a command buffer was corrupted, often by a PCIe fault",
    38: "the driver's firmware failed",
    43: "a process's work was stopped after an error",
    44: "a fault during a context switch",
    45: "a process's work was removed after another error or its exit",
    48: "an uncorrectable double-bit memory error",
    56: "the display engine failed",
    57: "the memory interface could not be initialized",
    58: "the memory interface became unstable",
    61: "the internal microcontroller stopped",
    62: "the internal microcontroller halted: reset the device",
    63: "a bad memory row was marked for remapping",
    64: "a bad memory row could not be marked for remapping",
    66: "invalid use of the driver",
    68: "the video decoder failed",
    69: "a graphics or compute engine failed",
    74: "an NVLink error",
    79: "the device fell off the bus",
    92: "a high rate of corrected single-bit memory errors",
    94: "an uncorrectable memory error, contained to one process",
    95: "an uncorrectable memory error that may affect every process",
    109: "a context switch timed out",
    110: "a security fault",
    119: "the device's system processor timed out",
    120: "the device's system processor failed",
    121: "the CPU-GPU link (C2C) failed",
    122: "the SPI flash could not be read",
    123: "the SPI flash could not be written",
    125: "the InfoROM is corrupt",
    136: "NVLink training failed",
    137: "peer access over NVLink was denied",
    140: "unrecovered uncorrectable memory errors",
    143: "the device could not be initialized",
    144: "an NVLink error (SAW)",
    145: "an NVLink error (RLW)",
    146: "an NVLink error (TLW)",
    147: "an NVLink error (TREX)",
    148: "an NVLink error (control)",
    149: "an NVLink error (NETIR)",
    150: "an NVLink error (MSE)",
    154: "the recovery action for the device changed",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), "a copy engine failed"),
}


def xid_meaning(code: int) -> str:
    """The code's meaning in a few words; "XID n" where it has none here."""
    return _MEANINGS.get(code, f"XID {code}")
