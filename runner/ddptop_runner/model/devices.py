"""Devices at one moment; see `model`."""

from __future__ import annotations

from ddptop_runner.model.base import Base


class GpuProcess(Base, frozen=True, kw_only=True):
    """A compute process on a device."""

    pid: int
    user: str | None = None
    command: str | None = None
    mem_used_bytes: int | None = None
    """Memory that it uses on this device, including its CUDA context."""
    sm_util_percent: float | None = None
    """Share of the last few seconds during which its kernels ran on the device."""
    job: str | None = None
    """Job that it belongs to, if known."""
    rank: int | None = None
    note: str | None = None
    """Why its user or command is unknown."""


class GpuSample(Base, frozen=True, kw_only=True):
    """A device at one moment; null for values that NVML does not report."""

    index: int
    """Machine index in PCI order; a MIG instance has the index of its device."""
    uuid: str | None = None
    host: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    parent_uuid: str | None = None
    """UUID of the device that this MIG instance belongs to; None for a whole device."""
    mig_instances: list[str] = []
    """UUIDs of the MIG instances of this device."""
    util_percent: float | None = None
    """Share of time during which a kernel was running."""
    mem_util_percent: float | None = None
    """Share of time during which memory was being read or written."""
    mem_used_bytes: int | None = None
    """Memory in use, excluding memory reserved by the driver (NVML memory v2)."""
    mem_total_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    """Memory reserved by the driver."""
    temperature_c: float | None = None
    temperature_slowdown_c: float | None = None
    """Temperature at which the device lowers its clocks."""
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Energy used since the driver was loaded."""
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_mhz: int | None = None
    fan_percent: float | None = None
    pstate: int | None = None
    """Performance state, from 0 (P0, highest) to 15."""
    throttle_reasons: list[str] | None = None
    """Why the clocks are lowered; empty if they are not."""
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remapped_rows: int | None = None
    """Memory rows replaced by spare rows after uncorrectable errors."""
    remap_pending: bool | None = None
    """Whether a row will be remapped at the next reset."""
    remap_failed: bool | None = None
    """Whether a remap failed because no spare rows were left; replace the device."""
    xid: list[int] | None = None
    """Recent XID error codes from the driver."""
    xid_meanings: list[str] | None = None
    """Meaning of each entry of `xid`, in the same order."""
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    lost: bool = False
    """Whether the driver lost the device."""
    note: str | None = None
    """What is wrong with the device, and how to fix it; None if there is no problem."""
    unknown: dict[str, str] = {}
    """Why a value is null, by key: `not supported`, `no permission`, and so on."""
    processes: list[GpuProcess] | None = None
    """Compute processes on the device; None if the driver does not report them."""
