"""Processes on a device, as reported by old and new drivers."""

from __future__ import annotations

import pytest
from tests.support.nvml_stub import GIB, StubProcess
from tests.support.nvml_stub.driver import FUNCTION_NOT_FOUND, NO_PERMISSION

from ddptop_runner.devices.nvml_device import latest_shares

SHARE = "processes.sm_util_percent"


def shares(gpu) -> dict[int, float | None]:
    return {process["pid"]: process["sm_util_percent"] for process in gpu["processes"]}


def test_shares_are_those_that_the_driver_told(make_stub, make_reader):
    stub = make_stub(2)
    told = [StubProcess(70001, sm_util=0), StubProcess(70002, sm_util=91), StubProcess(70003)]
    stub.set_processes(0, told)
    stub.set_processes(1, told[:2])
    gpus = make_reader(stub).sample(0)
    assert shares(gpus[0]) == {70001: 0, 70002: 91, 70003: None}  # a missing sample is not 0
    assert "no sample" in gpus[0]["unknown"][SHARE]
    assert shares(gpus[1]) == {70001: 0, 70002: 91}
    assert SHARE not in gpus[1]["unknown"]


def test_in_a_container_shares_are_not_joined_by_pid(make_stub, make_reader):
    stub = make_stub(1)
    # the host's 70001 is a different process from the container's
    stub.set_processes(0, [StubProcess(70001, sm_util=91, util_pid=70001)])
    gpu = make_reader(stub, IN_CONTAINER="1").sample(0)[0]
    assert shares(gpu) == {70001: None}
    assert "host PIDs" in gpu["unknown"][SHARE]
    assert stub.counts()["nvmlDeviceGetProcessUtilization"] == 0
    process = gpu["processes"][0]
    assert process["user"] is process["command"] is None
    assert "another PID namespace" in process["note"] and "--pid=host" in process["note"]


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "not supported"), (NO_PERMISSION, "no permission"), (FUNCTION_NOT_FOUND, "this driver")],
)
def test_shares_that_the_driver_does_not_tell_are_none(make_stub, make_reader, status, words):
    stub = make_stub(1)
    stub.set_processes(0, [StubProcess(70001, sm_util=91)])
    stub.unsupported(0, "nvmlDeviceGetProcessUtilization", status=status)
    reader = make_reader(stub)
    for second in range(6):
        gpu = reader.sample(second)[0]
    assert shares(gpu) == {70001: None}
    assert words in gpu["unknown"][SHARE]
    assert stub.counts()["nvmlDeviceGetProcessUtilization"] == 1


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(1, 1000, 5), (1, 2000, 7), (1, 1500, 9)], {1: 7}),
        ([(1, 999, 5)], {}),
        ([(1, 1000, 101), (2, 1000, 4_294_967_295), (3, 1000, 100)], {3: 100}),
        ([(0, 1000, 5)], {}),
    ],
)
def test_of_several_samples_the_latest_that_can_be_true_counts(samples, expected):
    assert latest_shares(samples, since_us=1000) == expected


# --- drivers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [[], ["_v3"]])
def test_each_version_of_the_list_is_read(make_stub, make_reader, missing):
    stub = make_stub(1)
    stub.set_processes(0, [StubProcess(70001, GIB), StubProcess(70002, 2 * GIB)])
    names = [f"nvmlDeviceGetComputeRunningProcesses{version}" for version in missing]
    stub.unsupported(0, *names, status=FUNCTION_NOT_FOUND)
    processes = make_reader(stub).sample(0)[0]["processes"]
    assert [(p["pid"], p["mem_used_bytes"]) for p in processes] == [
        (70001, GIB),
        (70002, 2 * GIB),
    ]


def test_the_layout_that_only_drivers_535_43_to_535_97_have_is_not_misread(make_stub, make_reader):
    stub = make_stub(1, driver="535.54.03")
    stub.set_driver(v3_of_535=1)
    stub.set_processes(0, [StubProcess(70000 + i, GIB) for i in range(5)])
    processes = make_reader(stub).sample(0)[0]["processes"]
    assert [p["pid"] for p in processes] == [70000 + i for i in range(5)]
