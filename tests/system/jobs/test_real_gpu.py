"""Tests on a real NVIDIA driver; skipped if there is none."""

from __future__ import annotations

import subprocess

import pytest
from tests.support.programs import captured

from ddptop_runner.devices.nvml_device import METRICS
from ddptop_runner.devices.report import Options, decode_report, sample_once, sampler_command


@pytest.mark.gpu
def test_one_reading_agrees_with_nvidia_smi():
    report = sample_once(timeout_s=20)
    fields = "index,uuid,name,memory.total,pci.bus_id,clocks.max.sm"
    said = captured(
        "nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", check=True
    ).stdout.splitlines()
    assert len(report.gpus) == len(said)
    for gpu, line in zip(report.gpus, said, strict=True):
        index, uuid, name, total_mib, bus_id, clock = (part.strip() for part in line.split(","))
        assert (str(gpu.index), gpu.uuid, gpu.name) == (index, uuid, name)
        assert abs(gpu.mem_total_bytes / 2**20 - float(total_mib)) < 2
        assert gpu.util_percent is not None and 0 <= gpu.util_percent <= 100
        assert gpu.mem_used_bytes is not None and gpu.processes is not None
        assert not gpu.lost
        assert (gpu.pci_bus_id or "").lower() == bus_id.lower()
        assert gpu.sm_clock_max_mhz is None or str(gpu.sm_clock_max_mhz) == clock.split()[0]
        nulls = {field for field in METRICS if getattr(gpu, field) is None}
        assert {field for field in gpu.unknown if "." not in field} == nulls


@pytest.mark.gpu
def test_the_sampler_goes_on_for_ten_ticks():
    with subprocess.Popen(
        sampler_command(Options(interval_s=0.2)),
        stdout=subprocess.PIPE,
    ) as child:
        reports = [decode_report(child.stdout.readline()) for _ in range(10)]
        child.stdout.close()
        assert child.wait(10) == 0
    assert all(report.source == "nvml" and report.note is None for report in reports)
