"""On a real NVIDIA driver; skipped where there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddptop_runner.device_once import sample_once
from ddptop_runner.device_report import decode_report


@pytest.mark.gpu
def test_one_reading_agrees_with_nvidia_smi():
    report = sample_once(timeout_s=20)
    fields = "index,uuid,name,memory.total,power.limit"
    said = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(report.gpus) == len(said)
    for gpu, line in zip(report.gpus, said, strict=True):
        index, uuid, name, total_mib, _ = (part.strip() for part in line.split(","))
        assert (str(gpu.index), gpu.uuid, gpu.name) == (index, uuid, name)
        assert abs(gpu.mem_total_bytes / 2**20 - float(total_mib)) < 2
        assert gpu.util_percent is not None and 0 <= gpu.util_percent <= 100
        assert gpu.mem_used_bytes is not None and gpu.processes is not None
        assert not gpu.lost


@pytest.mark.gpu
def test_the_sampler_goes_on_for_ten_ticks():
    with subprocess.Popen(
        [sys.executable, "-m", "ddptop_runner.sampler", "--interval", "0.2"],
        stdout=subprocess.PIPE,
    ) as child:
        reports = [decode_report(child.stdout.readline()) for _ in range(10)]
        child.stdout.close()
        assert child.wait(10) == 0
    assert all(report.source == "nvml" and report.note is None for report in reports)
