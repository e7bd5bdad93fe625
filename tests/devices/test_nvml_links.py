"""PCIe and NVLink rates, which are read on request."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.nvml_stub import StubGpu

from ddptop_runner.devices.nvml_device import nvlink_rates

RATES = (
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
)


def rates(gpu) -> list[float | None]:
    return [gpu[name] for name in RATES]


def test_they_are_not_asked_for_by_default(make_stub, make_reader):
    stub = make_stub(1)
    reader = make_reader(stub)
    for second in range(9):
        gpu = reader.sample(second)[0]
    assert rates(gpu) == [None] * 4
    assert all("--links" in gpu["unknown"][name] for name in RATES)
    assert not {"nvmlDeviceGetPcieThroughput", "nvmlDeviceGetFieldValues"} & set(stub.counts())


def test_they_are_rates_in_bytes_per_second(make_stub, make_reader):
    stub = make_stub([StubGpu(0, pcie_kbps=3000, pcie_rx_kbps=2000)])
    reader = make_reader(stub, LINKS_EVERY="1")
    first = reader.sample(0)[0]
    assert rates(first) == [2000 * 1024, 3000 * 1024, None, None]
    assert "two readings" in first["unknown"]["nvlink_rx_bytes_per_s"]
    stub.set(0, nvlink_rx_kib=8001, nvlink_tx_kib=400)
    second = reader.sample(4)[0]
    assert rates(second)[2:] == [8001 * 1024 / 4, 100 * 1024]
    assert "nvlink_rx_bytes_per_s" not in second["unknown"]
    stub.set(0, nvlink_rx_kib=1)
    third = reader.sample(8)[0]
    assert rates(third)[2:] == [None, None]
    assert "was reset" in third["unknown"]["nvlink_tx_bytes_per_s"]


def test_each_device_is_asked_every_fourth_tick_and_not_all_in_one(make_stub, make_reader):
    stub = make_stub(8)
    reader = make_reader(stub, LINKS_EVERY="4")
    for second in range(12):
        before = stub.counts()["nvmlDeviceGetPcieThroughput"]
        reader.sample(second)
        assert stub.counts()["nvmlDeviceGetPcieThroughput"] - before == 2 * 2  # two devices
    asked = [c.index for c in stub.calls() if c.function == "nvmlDeviceGetPcieThroughput"]
    assert {index: asked.count(index) for index in range(8)} == dict.fromkeys(range(8), 6)


@pytest.mark.parametrize("links", [None, 0])
def test_a_device_without_nvlink_says_so(make_stub, make_reader, links):
    gpu = make_reader(make_stub([StubGpu(0, nvlink_count=links)]), LINKS_EVERY="1").sample(0)[0]
    assert gpu["unknown"]["nvlink_rx_bytes_per_s"] == "no NVLink"
    assert gpu["pcie_rx_bytes_per_s"] is not None


def test_a_device_that_does_not_tell_is_not_asked_again(make_stub, make_reader):
    stub = make_stub(1)
    functions = ("nvmlDeviceGetPcieThroughput", "nvmlDeviceGetFieldValues")
    stub.unsupported(0, *functions, status=4)
    reader = make_reader(stub, LINKS_EVERY="1")
    for second in range(4):
        gpu = reader.sample(second)[0]
    assert rates(gpu) == [None] * 4
    assert {gpu["unknown"][name] for name in RATES} == {"no permission"}
    assert stub.counts()["nvmlDeviceGetFieldValues"] == 1


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((0, 0, 1.0), (100, 50, 3.0), (50, 25)),
        ((5, 5, 1.0), (5, 5, 2.0), (0, 0)),  # the driver reported that nothing was sent
        (None, (5, 5, 2.0), "two readings"),
        ((5, 5, 2.0), (5, 5, 2.0), "two readings"),
        ((9, 5, 1.0), (5, 5, 2.0), "was reset"),
    ],
)
def test_rates_between_two_readings(before, now, expected):
    answer = nvlink_rates(before, now)
    if isinstance(expected, str):
        assert all(expected in why for why in answer)
    else:
        assert answer == expected


def test_a_driver_that_writes_one_value_too_many_damages_nothing(make_stub):
    stub = make_stub(1)
    stub.set_driver(overrun=1)
    script = """
import pynvml
from ddptop_runner.devices.nvml_device import field_values
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
for count in range(1, 37):
    values = field_values(handle, [(91, 0)] * count)
    assert values == [18] * count
    del values
print("whole")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**stub.env(), "PYTHONMALLOC": "debug"},  # memory errors end the process
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
