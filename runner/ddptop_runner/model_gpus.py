"""Devices at one moment; see `model`."""

from __future__ import annotations

from ddptop_runner.model_base import Base


class GpuProcess(Base, frozen=True, kw_only=True):
    """One compute process on one device."""

    pid: int
    user: str | None = None
    command: str | None = None
    mem_used_bytes: int | None = None
    sm_util_percent: float | None = None
    """Share of the device's time in which its kernels ran, over the last seconds."""
    job: str | None = None
    rank: int | None = None
    note: str | None = None
    """Why user or command are not known, in words."""


class GpuSample(Base, frozen=True, kw_only=True):
    """One device at one moment; what NVML does not tell is None."""

    index: int
    """Machine index in PCI order; a MIG instance has its device's."""
    uuid: str | None = None
    host: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    parent_uuid: str | None = None
    """Of the device that this MIG instance is part of; None for a whole device."""
    mig_instances: list[str] = []
    """UUIDs of the MIG instances of a device in MIG mode."""
    util_percent: float | None = None
    mem_util_percent: float | None = None
    mem_used_bytes: int | None = None
    """NVML memory v2: without the driver's reserved part."""
    mem_total_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    temperature_c: float | None = None
    temperature_slowdown_c: float | None = None
    """From here on the device lowers its clocks."""
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Used since the driver was loaded."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_mhz: int | None = None
    fan_percent: float | None = None
    pstate: int | None = None
    """0 (P0) is full performance, 15 the least."""
    throttle_reasons: list[str] | None = None
    ecc_uncorrected: int | None = None
    """Volatile: since the driver was loaded."""
    remapped_rows: int | None = None
    """Rows of memory replaced by spare ones after uncorrectable errors."""
    remap_pending: bool | None = None
    """A row is to be remapped at the next reset."""
    remap_failed: bool | None = None
    """No spare row was left: the device should be replaced."""
    xid: list[int] | None = None
    xid_meanings: list[str] | None = None
    """What each of `xid` means, in the same order."""
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    lost: bool = False
    note: str | None = None
    """What is wrong with the device as a whole, and the remedy; None when all is well."""
    unknown: dict[str, str] = {}
    """Why a field of this sample is null, in words: "not supported", "no permission" ..."""
    processes: list[GpuProcess] | None = None
