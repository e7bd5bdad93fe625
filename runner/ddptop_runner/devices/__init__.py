"""Where device metrics come from: a protocol, and one module per kind of driver.

Only the sampler process opens a back end: a driver can block or crash exactly when a device fails.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ddptop_runner.devices.words import PYNVML_MISSING
from ddptop_runner.model.snapshot import GpuSample


class DeviceBackend(Protocol):
    """Reads one kind of device. Used by one thread only."""

    @property
    def source(self) -> str | None:
        """Name of the back end, "nvml"; None where there is no device."""

    @property
    def driver(self) -> str | None:
        """The driver's version, or None where there is no driver to ask."""

    @property
    def note(self) -> str | None:
        """Why devices are missing or incomplete, and the remedy; None when all is well."""

    @property
    def queries(self) -> int:
        """How many calls into the driver this process has made so far."""

    def sample(self, boottime_s: float) -> list[GpuSample]:
        """The devices now, in PCI order. What is not due for a query keeps its last value.

        `boottime_s` is the time now (CLOCK_BOOTTIME, seconds), which decides what is due. Never
        raises for a device that fails: that one reads `lost`, or None where it does not answer.
        """

    def close(self) -> None:
        """Stop using the driver; `sample` is not called again."""


class NoDevices:
    """The back end of a machine without devices."""

    source = None
    queries = 0

    def __init__(self, note: str | None, driver: str | None = None) -> None:
        self.note = note
        self.driver = driver

    def sample(self, boottime_s: float) -> list[GpuSample]:
        """No devices."""
        return []

    def close(self) -> None:
        """Nothing is open."""


def open_backend(uuids: Collection[str] | None = None, *, links_every: int = 0) -> DeviceBackend:
    """The back end of this machine, limited to the devices in `uuids` (None: all).

    UUIDs may be of MIG instances; all devices include their instances. PCIe and NVLink rates are
    asked for every `links_every`-th tick (0: never). Where there is no device to read, the answer
    is a back end that has none and whose `note` says why. Never raises.
    """
    try:
        from ddptop_runner.devices.nvml import NoDriverError, NvmlBackend
    except (ImportError, AttributeError):  # or another package of the same import name
        return NoDevices(PYNVML_MISSING)
    try:
        backend = NvmlBackend(uuids, links_every)
    except NoDriverError as error:
        return NoDevices(error.reason)
    return backend if backend.source else NoDevices(backend.note, driver=backend.driver)
