"""The stand-in is good enough that a monitor nobody here wrote runs on it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from tests.nvml_stub import GIB, StubProcess


@pytest.mark.skipif(not importlib.util.find_spec("nvitop"), reason="nvitop is not installed")
def test_nvitop_shows_the_stub(make_stub):
    stub = make_stub(3)
    stub.set(1, util=43, mem_used=3 * GIB)
    stub.set_processes(2, [StubProcess(os.getpid(), 7 * GIB, sm_util=90)])

    shown = subprocess.run(
        [sys.executable, "-m", "nvitop", "-1"],
        env={**stub.env(), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert "Driver Version: 570.124.06" in shown.stdout
    assert shown.stdout.count("H100 80GB HBM3") == 3
    assert "3072MiB / 80.00GiB" in shown.stdout
    assert f"{os.getpid()} C" in shown.stdout


def test_a_change_is_seen_by_a_program_that_is_running(make_stub, make_reader):
    stub = make_stub(1)
    reader = make_reader(stub)
    assert reader.sample(0)[0]["util_percent"] == 97
    stub.set(0, util=12)
    assert reader.sample(1)[0]["util_percent"] == 12


def test_a_dead_handle_stays_dead_when_its_device_is_back(make_stub):
    stub = make_stub(1)
    script = """
import sys
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
for line in sys.stdin:
    try:
        print(pynvml.nvmlDeviceGetTemperature(handle, 0), flush=True)
    except pynvml.NVMLError as error:
        print(type(error).__name__, flush=True)
    if line == "again\\n":
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=stub.env(),
    ) as child:

        def ask(line: str = "") -> str:
            child.stdin.write(line + "\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        assert ask() == "61"
        stub.lose(0)
        assert ask() == "NVMLError_GpuIsLost"
        stub.restore(0)
        assert ask("again") == "NVMLError_GpuIsLost"
        assert ask() == "61"
        child.stdin.close()
