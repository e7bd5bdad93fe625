"""Devices that are lost or return, or whose driver is reloaded."""

from __future__ import annotations

import pytest
from tests.support.nvml_stub import StubGpu

from ddptop_runner.devices.nvml_device import METRICS
from ddptop_runner.devices.report import without_metrics
from ddptop_runner.model.snapshot import GpuSample

NO_REASON = {"index", "host", "parent_uuid", "mig_instances", "mig_mode", "lost", "note", "unknown"}
NOT_MEASURED = {f"{link}_{way}_bytes_per_s" for link in ("pcie", "nvlink") for way in ("rx", "tx")}


def test_every_field_that_can_be_null_can_say_why():
    assert set(METRICS) == set(GpuSample.__struct_fields__) - NO_REASON - NOT_MEASURED


@pytest.mark.parametrize("state", ["healthy", "poor", "lost", "lost from the start"])
def test_each_null_has_its_reason_and_nothing_else_has(make_stub, make_reader, state):
    numbers = [name for name, value in vars(StubGpu(0)).items() if isinstance(value, int)]
    kept = ("index", "minor", "lost", "mem_total", "mem_used", "remap_pending", "remap_failed")
    poor = dict.fromkeys(set(numbers) - set(kept))
    stub = make_stub([StubGpu(0, **(poor if state == "poor" else {}))])
    if state == "lost from the start":
        stub.lose(0)
    reader = make_reader(stub)
    reader.sample(0)
    if state == "lost":
        stub.lose(0)
    gpu = reader.sample(1)[0]
    assert set(gpu["unknown"]) == {name for name in METRICS if gpu[name] is None}
    assert all(gpu["unknown"].values())
    assert (gpu["note"] is not None) == gpu["lost"] == state.startswith("lost")


def test_of_a_device_that_is_back_everything_is_read_again(make_stub, make_reader):
    stub = make_stub(1)
    reader = make_reader(stub)
    stub.unsupported(0, "nvmlDeviceGetFanSpeed", "nvmlDeviceGetPowerUsage")
    reader.sample(0)
    stub.lose(0)
    reader.sample(1)
    stub.set(0, lost=0, errors={}, fan=40, max_sm_clock=1000, energy_mj=1000)
    for second in range(2, 13):
        gpu = reader.sample(second)[0]
    assert not gpu["lost"] and gpu["note"] is None
    assert (gpu["power_w"], gpu["fan_percent"], gpu["energy_j"]) == (412, 40, 1)
    assert gpu["sm_clock_max_mhz"] == 1000
    assert gpu["unknown"] == {}


@pytest.mark.parametrize(("status", "words"), [(8, "power cables"), (11, "interrupts")])
def test_device_that_cannot_be_opened_shows_the_reason(make_stub, make_reader, status, words):
    stub = make_stub(2)
    stub.unsupported(1, "nvmlDeviceGetHandleByIndex_v2", status=status)
    gpu = make_reader(stub).sample(0)[1]
    assert gpu["lost"] and words in gpu["note"]


def test_a_device_whose_sampler_is_silent_keeps_its_identity_and_gives_the_reason():
    gpu = GpuSample(
        index=1, uuid="G", util_percent=5, pci_bus_id="0:1", unknown={"name": "not told"}
    )
    silent = without_metrics(gpu)
    assert (silent.uuid, silent.pci_bus_id, silent.util_percent) == ("G", "0:1", None)
    assert silent.unknown["util_percent"] == "the driver is not responding"
    assert silent.unknown["name"] == "not told"
    assert set(silent.unknown) == {name for name in METRICS if getattr(silent, name) is None}
