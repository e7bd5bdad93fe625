"""The simulated driver is good enough for third-party monitors."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from tests.support.nvml_stub import GIB, StubDriver, StubGpu, StubProcess
from tests.support.nvml_stub.driver import CRASH, HANG

needs_nvitop = pytest.mark.skipif(
    not importlib.util.find_spec("nvitop"), reason="nvitop is not installed"
)
needs_gpustat = pytest.mark.skipif(
    not importlib.util.find_spec("gpustat"), reason="gpustat is not installed"
)


OLD = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetRemappedRows",
)
"""Functions that drivers before 510 lack."""


def shown_by(stub: StubDriver, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={**stub.env(), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(stub: StubDriver, expression: str, timeout_s: float = 60.0) -> str:
    """What pynvml returns for device 0, whose handle is `d`; errors by name."""
    script = f"""
import pynvml as p
try:
    p.nvmlInit()
    d = p.nvmlDeviceGetHandleByIndex(0)
    print({expression})
except p.NVMLError as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=stub.env(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else f"signal {-done.returncode}"


@needs_nvitop
def test_nvitop_shows_the_stub(make_stub):
    stub = make_stub(3)
    stub.set(1, util=43, mem_used=3 * GIB)
    stub.set_processes(2, [StubProcess(os.getpid(), 7 * GIB, sm_util=90)])

    shown = shown_by(stub, "nvitop", "-1")
    assert "Driver Version: 570.124.06" in shown
    assert shown.count("H100 80GB HBM3") == 3
    assert "3072MiB / 80.00GiB" in shown
    assert f"{os.getpid()} C" in shown


@needs_gpustat
def test_gpustat_shows_the_stub(make_stub):
    stub = make_stub(3)
    stub.set(1, util=43, mem_used=3 * GIB, temperature=77)
    stub.set_processes(2, [StubProcess(os.getpid(), 7 * GIB)])
    lines = shown_by(stub, "gpustat", "--no-color", "--show-pid").splitlines()
    assert "570.124.06" in lines[0]
    assert "77°C,  43 % |  3072 / 81920 MB" in lines[2]
    assert f"/{os.getpid()}(7168M)" in lines[3]


def poor_machine(make_stub) -> StubDriver:
    """A lost device, one that reports little, and one in MIG mode with two instances."""
    gpus = [StubGpu(0), StubGpu(1), StubGpu(2, mig_mode=1), StubGpu(3, power_mw=None, fan=None)]
    for place in (0, 1):
        instance = StubGpu(100 + place, uuid=f"MIG-{place}", minor=place, parent=gpus[2].uuid)
        instance.name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
        gpus.append(instance)
    stub = make_stub(gpus)
    stub.lose(1)
    return stub


@needs_nvitop
def test_nvitop_shows_a_machine_with_troubles(make_stub):
    shown = shown_by(poor_machine(make_stub), "nvitop", "-1")
    assert "ERROR: GPU is Lost" in shown and "N/A / 700W" in shown
    assert shown.count("3g.40gb @ GI/CI") == 2


@needs_gpustat
def test_gpustat_shows_a_machine_with_troubles(make_stub):
    shown = shown_by(poor_machine(make_stub), "gpustat", "--no-color")
    assert shown.count("H100") == 3 and "GPU is lost" in shown


@needs_nvitop
@needs_gpustat
def test_monitors_run_on_an_old_driver(make_stub):
    stub = make_stub(1, driver="470.57.02", missing=OLD)
    stub.set_processes(0, [StubProcess(os.getpid(), GIB)])
    assert "41.00GiB / 80.00GiB" in shown_by(stub, "nvitop", "-1")
    assert "41984 / 81920 MB" in shown_by(stub, "gpustat", "--no-color")


def test_the_back_end_runs_on_an_old_driver(make_stub, make_reader):
    stub = make_stub(1, driver="470.57.02", missing=OLD)
    stub.set_processes(0, [StubProcess(os.getpid(), GIB)])
    stub.set(0, reasons=0x4)
    gpu = make_reader(stub).sample(0)[0]
    assert (gpu["mem_used_bytes"], gpu["mem_reserved_bytes"]) == (41 * GIB, None)
    assert "used memory" in gpu["unknown"]["mem_reserved_bytes"]
    assert gpu["processes"][0]["pid"] == os.getpid()
    assert gpu["throttle_reasons"] == ["power cap"]
    assert gpu["unknown"]["remapped_rows"] == "not supported by this driver"


@pytest.mark.parametrize(
    ("fields", "expression", "answer"),
    [
        ({"energy_mj": 77}, "p.nvmlDeviceGetTotalEnergyConsumption(d)", "77"),
        ({"remapped_uncorrectable": 2}, "p.nvmlDeviceGetRemappedRows(d)", "(0, 2, 0, 0)"),
        ({"remap_pending": 1}, "p.nvmlDeviceGetRemappedRows(d)", "(0, 0, 1, 0)"),
        ({"temperature_slowdown": 90}, "p.nvmlDeviceGetTemperatureThreshold(d, 1)", "90"),
        ({"pcie_rx_kbps": 5}, "p.nvmlDeviceGetPcieThroughput(d, 1)", "5"),
        ({"pcie_rx_kbps": 5}, "p.nvmlDeviceGetPcieThroughput(d, 0)", "1000"),
        ({"nvlink_count": 4}, "p.nvmlDeviceGetFieldValues(d, [91])[0].value.uiVal", "4"),
        (
            {"nvlink_count": 2, "nvlink_rx_kib": 9},
            "[v.value.ullVal for v in p.nvmlDeviceGetFieldValues(d, [(139, 0), (139, 1)])]",
            "[5, 4]",
        ),
        (
            {"nvlink_count": 2},
            "p.nvmlDeviceGetFieldValues(d, [(138, 2)])[0].nvmlReturn",  # no such link
            "2",
        ),
        ({"mig_mode": 1}, "p.nvmlDeviceGetMaxMigDeviceCount(d)", "7"),
        ({"mig_mode": 1}, "p.nvmlDeviceGetUtilizationRates(d)", "NVMLError_NotSupported"),
        ({"fan": None}, "p.nvmlDeviceGetFanSpeed(d)", "NVMLError_NotSupported"),
        ({"errors": {"nvmlDeviceGetFanSpeed": HANG}}, "p.nvmlDeviceGetFanSpeed(d)", "never"),
        ({"errors": {"nvmlDeviceGetFanSpeed": CRASH}}, "p.nvmlDeviceGetFanSpeed(d)", "signal 11"),
    ],
)
def test_the_stub_answers_as_it_is_told(make_stub, fields, expression, answer):
    stub = make_stub(1)
    stub.set(0, **fields)
    if answer == "never":
        with pytest.raises(subprocess.TimeoutExpired):
            ask(stub, expression, timeout_s=1.5)
    else:
        assert ask(stub, expression) == answer


def test_calls_take_as_long_as_configured(make_stub):
    stub = make_stub(1)
    assert ask(stub, "p.nvmlDeviceGetPowerUsage(d)") == "412000"
    stub.set_driver(slow_ms=60_000)
    with pytest.raises(subprocess.TimeoutExpired):
        ask(stub, "p.nvmlDeviceGetPowerUsage(d)", timeout_s=1.5)


@pytest.mark.parametrize(
    ("status", "again"), [(1, "p.nvmlInit()"), (999, "p.nvmlShutdown(), p.nvmlInit()")]
)
def test_a_driver_that_was_loaded_again_knows_no_old_client(make_stub, status, again):
    stub = make_stub(1)
    script = f"""
import sys
import pynvml as p
p.nvmlInit()
def temperature():
    try:
        return p.nvmlDeviceGetTemperature(p.nvmlDeviceGetHandleByIndex(0), 0)
    except p.NVMLError as error:
        return error.value
print(temperature(), flush=True)
input()
print(temperature())
{again}
print(temperature())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=stub.env(),
    ) as child:
        assert child.stdout.readline() == "61\n"
        stub.forget_clients(status)
        assert child.communicate("\n", timeout=60)[0].split() == [str(status), "61"]


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
