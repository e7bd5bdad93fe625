"""PCIe and NVLink rates. Only on request: the driver watches the bus for 20 ms per PCIe figure."""

from __future__ import annotations

import pynvml

from ddptop_runner.devices import words
from ddptop_runner.devices.nvml_calls import field_values
from ddptop_runner.devices.nvml_figures import Figure, Query
from ddptop_runner.devices.nvml_queries import Gpu, ask, read
from ddptop_runner.devices.words import Why

_KIB = 1024
_PCIE = tuple(
    Figure(
        (field,),
        (("nvmlDeviceGetPcieThroughput", counter),),
        lambda kib_per_s: (float(kib_per_s) * _KIB,),
    )
    for field, counter in (
        ("pcie_rx_bytes_per_s", pynvml.NVML_PCIE_UTIL_RX_BYTES),
        ("pcie_tx_bytes_per_s", pynvml.NVML_PCIE_UTIL_TX_BYTES),
    )
)
_NVLINK = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
_LINK_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_DATA_TX, _DATA_RX = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*, in KiB since the start
_QUERY: Query = ("nvmlDeviceGetFieldValues",)
_MOST_LINKS = 36


def read_links(gpu: Gpu, now_s: float) -> None:
    """Ask for the rates; NVLink's are means since the last reading. Raises LostError."""
    read(gpu, _PCIE)
    counters = _counters(gpu)
    if isinstance(counters, Why):
        gpu.nvlink_counters = None
        gpu.put(_NVLINK, (counters, counters))
        return
    before, gpu.nvlink_counters = gpu.nvlink_counters, (*counters, now_s)
    gpu.put(_NVLINK, nvlink_rates(before, gpu.nvlink_counters))


def nvlink_rates(
    before: tuple[float, float, float] | None, now: tuple[float, float, float]
) -> tuple[float | Why, float | Why]:
    """Bytes per second received and sent between two readings (received, sent, seconds)."""
    if before is None or now[2] <= before[2]:
        return words.FIRST_READING, words.FIRST_READING
    if now[0] < before[0] or now[1] < before[1]:
        return words.COUNTER_RESET, words.COUNTER_RESET
    span_s = now[2] - before[2]
    return (now[0] - before[0]) / span_s, (now[1] - before[1]) / span_s


def _counters(gpu: Gpu) -> tuple[float, float] | Why:
    """Bytes received and sent since the driver was loaded, over all links."""
    if gpu.nvlinks is None:
        answer = _ask_fields(gpu, [(_LINK_COUNT, 0)])
        if isinstance(answer, Why):
            return answer
        if isinstance(answer[0], Why):
            return words.NO_NVLINK if answer[0] == words.NOT_SUPPORTED else answer[0]
        gpu.nvlinks = min(int(answer[0]), _MOST_LINKS)
    if not gpu.nvlinks:
        return words.NO_NVLINK
    links = range(gpu.nvlinks)
    answer = _ask_fields(gpu, [(kind, link) for kind in (_DATA_RX, _DATA_TX) for link in links])
    if isinstance(answer, Why):
        return answer
    received, sent = _sum(answer[: gpu.nvlinks]), _sum(answer[gpu.nvlinks :])
    if isinstance(received, Why):
        return received
    return sent if isinstance(sent, Why) else (received, sent)


def _sum(values: list[float | Why]) -> float | Why:
    """Their sum in bytes. Links that are not connected do not count; one that fails spoils it."""
    failed = [value for value in values if isinstance(value, Why)]
    known = [value for value in values if not isinstance(value, Why)]
    for why in failed:
        if why != words.NOT_SUPPORTED or not known:
            return why
    return sum(known) * _KIB


def _ask_fields(gpu: Gpu, fields: list[tuple[int, int]]) -> list[float | Why] | Why:
    answer: list[float | Why] | Why = ask(
        gpu, (_QUERY,), lambda handle, _: field_values(handle, fields)
    )
    return answer
