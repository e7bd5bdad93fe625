"""Which devices can be used in another attempt."""

from __future__ import annotations

import msgspec
import pytest

from ddptop_runner.judge.restarts.devices import HealthBook, fault_of
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device

DEVICE = Device(index=2, uuid="GPU-2", name="H100")
WELL = GpuSample(index=2, uuid="GPU-2", ecc_uncorrected=0, mem_used_bytes=10)


def sample(**changes: object) -> GpuSample:
    return msgspec.structs.replace(WELL, **changes)


@pytest.mark.parametrize(
    ("gpu", "forgiven", "reason"),
    [
        (sample(), [], None),
        (sample(lost=True), [], "lost"),
        (sample(xid=[79]), [], "XID 79"),
        (sample(xid=[13, 31, 43, 45, 63]), [], None),
        (sample(xid=[48]), [], "XID 48"),
        *((sample(xid=[code]), [], f"XID {code}") for code in (74, 109, 136, 154)),
        (sample(xid=[44, 63, 94, 154]), [], None),
        (sample(xid=[48, 94]), [], None),
        (sample(xid=[48, 94, 95]), [], "XID 48"),
        (sample(xid=[79]), [79], None),
        (sample(xid=[79, 79]), [79], "XID 79"),
    ],
)
def test_only_what_came_since_the_launch_makes_a_device_unfit(gpu, forgiven, reason):
    found = fault_of(gpu, forgiven)
    assert found is None if reason is None else reason in (found or "")


def test_a_restart_tries_a_device_again_that_is_not_lost():
    book = HealthBook()
    assert not book.forgive(DEVICE), "it was never sampled"
    book.add([sample(lost=True, xid=[79])])
    assert not book.forgive(DEVICE)
    book.add([sample(xid=[79])])
    assert book.fault(DEVICE) is not None
    assert book.forgive(DEVICE) and book.fault(DEVICE) is None
    book.add([sample(xid=[79, 95])])
    assert "XID 95" in (book.fault(DEVICE) or "")
