"""What NVIDIA hardware a machine has, with or without a driver that works."""

from __future__ import annotations

from pathlib import Path

NVIDIA = "0x10de"
_WSL2_LIBRARY = "usr/lib/wsl/lib/libnvidia-ml.so.1"
"""Windows' driver puts it there; WSL2 itself has no NVIDIA device on its PCI bus or in /dev."""


def exists(root: Path = Path("/")) -> bool:
    """Whether there is any, which a container may see on the PCI bus although it cannot use it."""
    nodes = any((root / "dev").glob("nvidia*"))
    return nodes or pci_devices(root) > 0 or (root / _WSL2_LIBRARY).exists()


def pci_devices(root: Path) -> int:
    """The number of NVIDIA display and 3D controllers on the PCI bus."""
    return sum(
        _value(device / "class").startswith("0x03") and _value(device / "vendor") == NVIDIA
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def _value(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
