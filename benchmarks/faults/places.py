"""What some faults need: a small file system, or a driver that can lose a device."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.nvml_stub import StubDriver, StubGpu

from ddptop_runner.base.errors import UsageError

SMALL_DISK_BYTES = 24 << 20
STUB_STATE = "DDPTOP_STUB_NVML_STATE"
"""The variable that names the simulated driver's state file, for the driver and for tests."""


def mount_small_disk(folder: Path, size_bytes: int = SMALL_DISK_BYTES) -> None:
    """Mount a file system of that size on an empty folder.

    Raises:
        UsageError: when this process may not mount, with the reason.
    """
    tool = shutil.which("mount")
    if tool is None:
        raise UsageError("--fault disk-full requires mount(8), which is not installed")
    answer = subprocess.run(
        [tool, "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "ddptop-small", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        reason = " ".join(answer.stderr.split()) or f"mount exited with {answer.returncode}"
        raise UsageError(
            f"--fault disk-full requires a small file system, which cannot be mounted ({reason})",
            "run it as root",
        )


def unmount(folder: Path) -> None:
    """Unmount a small disk, even while it is in use."""
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


@contextmanager
def small_disk(folder: Path, size_bytes: int = SMALL_DISK_BYTES) -> Iterator[Path]:
    """A small file system on that folder, gone afterwards.

    Raises:
        UsageError: as `mount_small_disk`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mount_small_disk(folder, size_bytes)
    try:
        yield folder
    finally:
        unmount(folder)


def stand_in_driver(folder: Path, count: int) -> dict[str, str]:
    """Start a simulated driver with `count` idle devices; returns the variables that select it."""
    folder.mkdir(parents=True, exist_ok=True)
    driver = StubDriver(folder, [StubGpu(n, mem_used=0, util=0) for n in range(count)])
    found = driver.env({}, log=False)
    others = os.environ.get("LD_LIBRARY_PATH")
    if others:
        found["LD_LIBRARY_PATH"] += f":{others}"
    return found


def lose_device(index: int) -> None:
    """Make a device of the simulated driver fall off the bus."""
    file = Path(os.environ[STUB_STATE])
    head, *devices = file.read_text(encoding="utf-8").split("\ngpu ")
    changed = [
        text.replace("\nlost 0", "\nlost 1") if text.startswith(f"{index}\n") else text
        for text in devices
    ]
    temporary = file.with_suffix(".new")
    temporary.write_text("\ngpu ".join([head, *changed]), encoding="utf-8")
    temporary.replace(file)
