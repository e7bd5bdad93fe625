"""Devices that the driver loses, or that report errors."""

from __future__ import annotations

from collections import Counter

from tests.support.nvml_stub.driver import (
    UNKNOWN,
)
from tests.unit.devices.test_nvml_backend import FIGURES

# --- lost devices ------------------------------------------------------------------------------


def calls_after_loss(stub, index: int) -> Counter[str]:
    calls = [call for call in stub.calls() if call.index == index]
    first = next(i for i, call in enumerate(calls) if call.status == 15)
    return Counter(call.function for call in calls[first + 1 :])


def test_lost_device_is_reported_and_its_handle_not_used_again(make_stub, make_reader):
    stub = make_stub(2)
    reader = make_reader(stub)
    before = reader.sample(0)[1]
    with stub.together():
        stub.raise_xid(1, 79)
        stub.lose(1)

    for second in range(1, 31):
        report = reader.report(second)

    healthy, lost = report["gpus"]
    assert healthy["util_percent"] == 97 and not healthy["lost"]
    assert lost["lost"] and lost["xid"] == [79]
    assert all(lost[name] is None for name in FIGURES)
    fixed = ("index", "uuid", "name", "mem_total_bytes", "pci_bus_id", "temperature_slowdown_c")
    for kept in (*fixed, "sm_clock_max_mhz"):
        assert lost[kept] == before[kept] is not None
    assert "lost: it fell off the bus" in lost["note"] and "--gpu-reset -i 1" in lost["note"]
    assert report["note"] is None and lost["unknown"]["energy_j"] == "the device is lost"
    assert calls_after_loss(stub, 1) == {}
    assert 2 <= stub.counts()["nvmlDeviceGetHandleByUUID"] <= 3  # looked up again every 10 s


def test_a_device_that_is_back_is_found_within_ten_seconds(make_stub, make_reader):
    stub = make_stub(2)
    reader = make_reader(stub)
    reader.sample(0)
    stub.lose(0)
    assert reader.sample(1)[0]["lost"]
    stub.restore(0)
    assert reader.sample(2)[0]["lost"]
    for second in range(3, 12):
        gpu = reader.sample(second)[0]
    assert not gpu["lost"]
    assert gpu["util_percent"] == 97 and gpu["power_limit_w"] == 700
    stub.raise_xid(0, 13)
    assert reader.sample(12)[0]["xid"] == [13]


def test_a_device_that_is_lost_from_the_start_keeps_its_index(make_stub, make_reader):
    stub = make_stub(3)
    stub.lose(1)
    gpus = make_reader(stub).sample(0)
    assert [(gpu["index"], gpu["lost"]) for gpu in gpus] == [(0, False), (1, True), (2, False)]
    assert gpus[1]["uuid"] is None


def test_a_device_that_only_fails_counts_as_lost_at_the_second_tick(make_stub, make_reader):
    stub = make_stub(1)
    reader = make_reader(stub)
    reader.sample(0)
    fast = ("UtilizationRates", "MemoryInfo_v2", "MemoryInfo", "PowerUsage")
    stub.unsupported(0, *(f"nvmlDeviceGet{name}" for name in fast), status=UNKNOWN)
    first = reader.sample(1)[0]
    assert not first["lost"] and first["util_percent"] is None
    assert reader.sample(2)[0]["lost"]


def test_one_failing_query_is_no_loss_and_is_asked_again(make_stub, make_reader):
    stub = make_stub(1)
    reader = make_reader(stub)
    stub.unsupported(0, "nvmlDeviceGetPowerUsage", status=UNKNOWN)
    for second in range(5):
        gpu = reader.sample(second)[0]
    assert gpu["power_w"] is None and not gpu["lost"]
    stub.set(0, errors={})
    assert reader.sample(5)[0]["power_w"] == 412


# --- XIDs --------------------------------------------------------------------------------------


def test_xids_are_kept_in_order_by_device(make_stub, make_reader):
    stub = make_stub(2)
    stub.raise_xid(0, 13)  # before anything was listening
    reader = make_reader(stub)
    assert [gpu["xid"] for gpu in reader.sample(0)] == [[], []]
    with stub.together():
        stub.raise_xid(1, 31)
        stub.raise_xid(1, 94)
        stub.raise_xid(0, 48)
    assert [gpu["xid"] for gpu in reader.sample(1)] == [[48], [31, 94]]
    assert [gpu["xid"] for gpu in reader.sample(2)] == [[48], [31, 94]]
