"""The NVML back end, with the real pynvml and the simulated driver."""

from __future__ import annotations

import os

import pytest
from tests.support.nvml_stub import GIB, StubProcess
from tests.support.nvml_stub.driver import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    LIB_RM_VERSION_MISMATCH,
    NO_PERMISSION,
    UNKNOWN,
)

from ddptop_runner.devices.nvml_device import process_queries

FIGURES = [
    "util_percent",
    "mem_util_percent",
    "mem_used_bytes",
    "mem_reserved_bytes",
    "temperature_c",
    "power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "throttle_reasons",
    "ecc_uncorrected",
    "processes",
    "energy_j",
    "mem_clock_mhz",
    "fan_percent",
    "pstate",
    "remapped_rows",
    "remap_pending",
    "remap_failed",
]


"""Metrics that change; others remain known for a lost device."""


NOT_MEASURED = dict.fromkeys(
    [
        "pcie_rx_bytes_per_s",
        "pcie_tx_bytes_per_s",
        "nvlink_rx_bytes_per_s",
        "nvlink_tx_bytes_per_s",
    ]
)


def test_every_figure_is_read_in_its_unit(make_stub, make_reader):
    stub = make_stub(1)
    stub.set(
        0,
        reasons=0x4 | 0x1,
        ecc_uncorrected=2,
        fan=34,
        pstate=2,
        energy_mj=8_250_500,
        remapped_correctable=1,
        remapped_uncorrectable=3,
        remap_pending=1,
    )
    stub.set_processes(0, [StubProcess(os.getpid(), 7 * GIB)])

    report = make_reader(stub).report(0)

    assert (report["source"], report["driver"], report["note"]) == ("nvml", "570.124.06", None)
    gpu = report["gpus"][0]
    process = gpu.pop("processes")[0]
    assert gpu.pop("host")
    assert set(gpu.pop("unknown")) == {"processes.sm_util_percent"}
    assert "at the next reset" in gpu.pop("note")
    assert gpu == {
        "index": 0,
        "uuid": "GPU-00000000-1111-2222-3333-444455556666",
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "00000000:10:00.0",
        "parent_uuid": None,
        "mig_instances": [],
        "mig_mode": False,
        "util_percent": 97,
        "mem_util_percent": 55,
        "mem_used_bytes": 40 * GIB,
        "mem_total_bytes": 80 * GIB,
        "mem_reserved_bytes": GIB,
        "temperature_c": 61,
        "temperature_slowdown_c": 87,
        "power_w": 412,
        "power_limit_w": 700,
        "energy_j": 8250.5,
        "sm_clock_mhz": 1755,
        "sm_clock_max_mhz": 1980,
        "mem_clock_mhz": 2619,
        "fan_percent": 34,
        "pstate": 2,
        "throttle_reasons": ["power cap"],
        "ecc_uncorrected": 2,
        "remapped_rows": 4,
        "remap_pending": True,
        "remap_failed": False,
        "xid": [],
        "xid_meanings": [],
        "lost": False,
        **NOT_MEASURED,
    }
    assert process["pid"] == os.getpid()
    assert process["mem_used_bytes"] == 7 * GIB
    assert process["command"] is None or "python" in process["command"]


def test_queries_keep_to_the_budget(make_stub, make_reader):
    stub = make_stub(8)
    for index in range(8):
        stub.set(index, fan=30)
        stub.set_processes(index, [StubProcess(os.getpid(), sm_util=5)])
    reader = make_reader(stub)
    reader.sample(0)
    stub.clear_calls()

    for second in range(1, 61):
        reader.sample(second)

    a_minute = {function: count / 8 for function, count in stub.counts().items()}
    assert a_minute.pop("nvmlEventSetWait_v2") == 60 / 8  # one for all devices
    assert a_minute == {
        "nvmlDeviceGetUtilizationRates": 60,
        "nvmlDeviceGetMemoryInfo_v2": 60,
        "nvmlDeviceGetPowerUsage": 60,
        "nvmlDeviceGetTemperature": 12,
        "nvmlDeviceGetClockInfo": 2 * 12,
        "nvmlDeviceGetCurrentClocksEventReasons": 12,
        "nvmlDeviceGetPerformanceState": 12,
        "nvmlDeviceGetFanSpeed": 12,
        "nvmlDeviceGetEnforcedPowerLimit": 2,
        "nvmlDeviceGetTotalEccErrors": 2,
        "nvmlDeviceGetRemappedRows": 2,
        "nvmlDeviceGetTotalEnergyConsumption": 2,
        "nvmlDeviceGetComputeRunningProcesses_v3": 2 * 15,
        "nvmlDeviceGetProcessUtilization": 2 * 15,
    }
    per_device_second = sum(stub.counts().values()) / 8 / 60
    assert per_device_second < 7  # nvitop: 9.4


@pytest.mark.parametrize("status", [3, FUNCTION_NOT_FOUND, NO_PERMISSION])
def test_what_a_device_does_not_tell_is_none_and_not_asked_again(make_stub, make_reader, status):
    stub = make_stub(1)
    functions = [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetPerformanceState",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceRegisterEvents",
    ]
    reason = {3: "not supported", 4: "no permission", 13: "not supported by this driver"}[status]
    stub.unsupported(0, *functions, status=status)
    reader = make_reader(stub)

    for second in range(40):
        gpu = reader.sample(second)[0]

    known = {name for name in FIGURES if gpu[name] is not None}
    assert known == {"mem_used_bytes", "mem_reserved_bytes"}
    assert gpu["xid"] is None
    assert not gpu["lost"]
    unknown = gpu["unknown"]
    assert {name for name, why in unknown.items() if why == reason} == {
        *(set(FIGURES) - known),
        "xid",
        "xid_meanings",
        "temperature_slowdown_c",
    }
    counts = {name: stub.counts()[name] for name in functions}
    assert counts.pop("nvmlDeviceGetClockInfo") == 2  # one for each clock
    assert set(counts.values()) == {1}


def test_older_names_serve_where_newer_are_missing(make_stub, make_reader):
    stub = make_stub(1)
    stub.unsupported(
        0,
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        status=FUNCTION_NOT_FOUND,
    )
    stub.set(0, reasons=0x20)
    stub.set_processes(0, [StubProcess(os.getpid(), GIB)])

    gpu = make_reader(stub).sample(0)[0]

    assert gpu["mem_used_bytes"] == 41 * GIB  # version 1 includes the driver's reserved memory
    assert gpu["mem_reserved_bytes"] is None
    assert gpu["temperature_c"] == 61
    assert gpu["throttle_reasons"] == ["thermal, by software"]
    assert gpu["power_limit_w"] == 700
    assert gpu["processes"][0]["mem_used_bytes"] == GIB


@pytest.mark.parametrize(
    ("driver", "versions"),
    [
        ("570.124.06", ["_v3", "_v2"]),
        ("535.104.05", ["_v3", "_v2"]),
        ("535.54.03", ["_v2"]),  # its version 3 has its own layout
        (None, ["_v3", "_v2"]),
        ("[N/A]", ["_v3", "_v2"]),
    ],
)
def test_processes_are_asked_for_in_a_layout_that_the_driver_shares(driver, versions):
    names = [f"nvmlDeviceGetComputeRunningProcesses{version}" for version in versions]
    assert [query[0] for query in process_queries(driver)] == names


# --- which devices -----------------------------------------------------------------------------


def test_only_the_devices_asked_for_are_queried(make_stub, make_reader):
    stub = make_stub(4)
    wanted = [stub.gpu(2).uuid, stub.gpu(0).uuid, "GPU-none"]
    report = make_reader(stub, ",".join(wanted)).report(0)
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 2]
    assert report["note"] == "devices not on this machine: GPU-none"
    queried = {call.index for call in stub.calls() if call.function == "nvmlDeviceGetPowerUsage"}
    assert queried == {0, 2}


def test_a_device_that_may_not_be_used_is_left_out(make_stub, make_reader):
    stub = make_stub(2)
    stub.unsupported(0, "nvmlDeviceGetHandleByIndex_v2", status=NO_PERMISSION)
    report = make_reader(stub).report(0)
    assert [gpu["index"] for gpu in report["gpus"]] == [1]
    assert "not accessible" in report["note"]


# --- no driver ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (DRIVER_NOT_LOADED, "modprobe nvidia"),
        (LIB_RM_VERSION_MISMATCH, "reboot"),
        (NO_PERMISSION, "/dev/nvidia"),
        (UNKNOWN, "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_start_is_explained(make_stub, make_reader, status, words):
    stub = make_stub(2)
    stub.set_driver(init_status=status)
    report = make_reader(stub).report(0)
    assert (report["source"], report["driver"], report["gpus"]) == (None, None, [])
    assert words in report["note"]


def test_devices_that_the_driver_does_not_list_are_not_called_absent(make_stub, make_reader):
    stub = make_stub(2)
    stub.set_driver(errors={"nvmlDeviceGetCount_v2": UNKNOWN})
    report = make_reader(stub).report(0)
    assert (report["source"], report["gpus"]) == (None, [])
    assert "cannot list its devices (unreadable: NVML error 999)" in report["note"]
