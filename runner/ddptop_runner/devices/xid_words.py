"""What XIDs, the NVIDIA driver's numbers for device errors, mean."""

from __future__ import annotations

_MEANINGS = {
    8: "a kernel ran too long or the device hung",
    11: "the driver was given a broken command",
    13: "a kernel's own error, such as an index out of bounds",
    16: "the display engine hung",
    31: "a kernel used an address that is not mapped",
    32: "a command buffer was damaged, often by PCIe",
    38: "the driver's firmware failed",
    43: "a process's work was stopped after its own error",
    44: "a fault while switching between processes",
    45: "a process's work was removed, after another error or its end",
    48: "two bits of memory flipped: uncorrectable",
    56: "the display engine failed",
    57: "the memory interface could not be set up",
    58: "the memory interface became unstable",
    61: "the device's own controller stopped",
    62: "the device's own controller halted: reset it",
    63: "a bad row of memory was marked for replacement",
    64: "a bad row of memory could not be marked for replacement",
    66: "the driver was used wrongly",
    68: "the video decoder failed",
    69: "a graphics or compute engine failed",
    74: "an NVLink failed",
    79: "the device fell off the bus",
    92: "memory corrects very many single-bit errors",
    94: "an uncorrectable memory error, contained in one process",
    95: "an uncorrectable memory error that may concern every process",
    109: "a process switch timed out",
    110: "a security fault",
    119: "the device's system processor did not answer in time",
    120: "the device's system processor failed",
    121: "the link between CPU and GPU (C2C) failed",
    122: "the device's own settings could not be read",
    123: "the device's own settings could not be written",
    125: "the device's own settings are damaged",
    136: "an NVLink could not be trained",
    137: "an NVLink access by or to a peer was refused",
    140: "uncorrectable memory errors, not recovered",
    143: "the device could not be started",
    144: "an NVLink failed (SAW)",
    145: "an NVLink failed (RLW)",
    146: "an NVLink failed (TLW)",
    147: "an NVLink failed (TREX)",
    148: "an NVLink failed (control)",
    149: "an NVLink failed (NETIR)",
    150: "an NVLink failed (MSE)",
    154: "the driver changed what has to be done to recover the device",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), "a copy engine failed"),
}


def xid_meaning(code: int) -> str:
    """The code's meaning in a few words; "XID n" where it has none here."""
    return _MEANINGS.get(code, f"XID {code}")
