"""Which devices can be used in another attempt."""

from __future__ import annotations

import msgspec
import pytest

from ddptop_runner.judge.restarts.devices import HealthBook, Known, fault_of
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device

DEVICE = Device(index=2, uuid="GPU-2", name="H100")
WELL = GpuSample(index=2, uuid="GPU-2", ecc_uncorrected=0, energy_j=100.0, mem_used_bytes=10)


def sample(**changes: object) -> GpuSample:
    return msgspec.structs.replace(WELL, **changes)


@pytest.mark.parametrize(
    ("gpu", "known", "reason"),
    [
        (sample(), Known(), None),
        (sample(lost=True), Known(), "lost"),
        (sample(xid=[79]), Known(), "XID 79"),
        (sample(xid=[13, 31, 43, 45, 63]), Known(), None),
        (sample(xid=[48]), Known(), "XID 48"),
        *((sample(xid=[code]), Known(), f"XID {code}") for code in (74, 109, 136, 154)),
        (sample(xid=[44, 63, 94, 154]), Known(), None),
        (sample(xid=[48, 94]), Known(), None),
        (sample(xid=[48, 94, 95]), Known(), "XID 48"),
        (sample(xid=[79]), Known(forgiven_xids=[79]), None),
        (sample(xid=[79, 79]), Known(forgiven_xids=[79]), "XID 79"),
        (sample(), Known(needs_reset="XID 95"), "XID 95"),
    ],
)
def test_only_what_came_since_the_launch_makes_a_device_unfit(gpu, known, reason):
    found = fault_of(gpu, known)
    assert found is None if reason is None else reason in (found or "")


def test_a_lost_device_that_is_back_is_offered():
    book = HealthBook()
    book.add([sample(lost=True)])
    book.set_aside(DEVICE, "lost")
    book.add([sample(xid=[79])])  # the report of its loss is old
    assert book.is_fit(DEVICE)
    book.add([sample(lost=True, xid=[79])])
    assert not book.is_fit(DEVICE)
    book.add([sample(xid=[79, 79])])
    assert book.is_fit(DEVICE)


def test_a_device_with_a_fatal_xid_is_fit_only_after_a_reset():
    book = HealthBook()
    book.add([sample(xid=[95])])
    book.set_aside(DEVICE, "XID 95")
    book.add([sample(xid=[], energy_j=200.0)])  # from a restarted sampler
    assert not book.is_fit(DEVICE)
    book.add([sample(xid=[], energy_j=3.0)])
    assert book.is_fit(DEVICE)


def test_device_that_returned_unobserved_is_back():
    book = HealthBook()
    book.known["GPU-2"] = Known(needs_reset="lost")
    book.add([sample()])
    assert book.is_fit(DEVICE)


def test_the_least_memory_in_use_without_processes_is_kept():
    book = HealthBook()
    there = [GpuProcess(pid=7, mem_used_bytes=70)]
    for used, processes in ((100, there), (20, None), (10, there), (None, None), (900, [])):
        book.add([sample(mem_used_bytes=used, processes=processes)])
    assert book.idle_bytes() == {"GPU-2": 20}
    book = HealthBook()
    book.add([sample(mem_used_bytes=100, processes=there)])
    assert book.idle_bytes() == {"GPU-2": 30}
