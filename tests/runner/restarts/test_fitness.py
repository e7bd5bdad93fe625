"""Which devices can be used in another attempt."""

from __future__ import annotations

import msgspec
import pytest

from ddptop_runner.judge.restarts.fitness import HEALTHY_AFTER_S, HealthBook, Known, Unfit, judge
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device

DEVICE = Device(index=2, uuid="GPU-2", name="H100")
WELL = GpuSample(index=2, uuid="GPU-2", ecc_uncorrected=0, energy_j=100.0, mem_used_bytes=10)


def sample(**changes: object) -> GpuSample:
    return msgspec.structs.replace(WELL, **changes)


@pytest.mark.parametrize(
    ("gpu", "known", "reason", "certain"),
    [
        (sample(), Known(), None, None),
        (sample(lost=True), Known(), "lost", True),
        (sample(xid=[79]), Known(), "XID 79", True),
        (sample(xid=[13, 31, 43, 45, 63]), Known(), None, None),
        (sample(xid=[48]), Known(), "XID 48", True),
        *((sample(xid=[code]), Known(), f"XID {code}", True) for code in (74, 109, 136, 154)),
        (sample(xid=[44, 63, 94, 154]), Known(), "in the last attempt", False),
        (sample(xid=[48, 94]), Known(), "in the last attempt", False),
        (sample(xid=[48, 94, 95]), Known(), "XID 48", True),
        (sample(xid=[79]), Known(forgiven_xids=[79]), None, None),
        (sample(xid=[79, 79]), Known(forgiven_xids=[79]), "XID 79", True),
        (sample(remap_failed=True), Known(), "no spare memory rows", True),
        (sample(remap_failed=True), Known(remap_failed=True), None, None),
        (sample(remap_pending=True), Known(), "only a reset can remap", False),
        (sample(remap_pending=True), Known(remap_pending=True), None, None),
        (sample(ecc_uncorrected=4), Known(ecc_uncorrected=4), None, None),
        (sample(ecc_uncorrected=4), Known(), None, None),
        (sample(ecc_uncorrected=5), Known(ecc_uncorrected=4), "in the last attempt", False),
        (
            sample(ecc_uncorrected=5),
            Known(ecc_uncorrected=4, ecc_attempts=1),
            "more than one attempt",
            True,
        ),
        (sample(), Known(needs_reset="XID 95"), "XID 95", True),
    ],
)
def test_only_what_came_since_the_launch_makes_a_device_unfit(gpu, known, reason, certain):
    found = judge(gpu, known)
    if reason is None:
        assert found is None
    else:
        assert found is not None and reason in found.reason and found.certain is certain


def test_what_a_device_was_launched_with_is_no_finding():
    book = HealthBook()
    book.look([sample(remap_failed=True, remap_pending=True, ecc_uncorrected=7)], 1.0)
    assert book.end_attempt([DEVICE]) == {}


def test_memory_errors_are_counted_by_attempt():
    book = HealthBook()
    book.look([sample()], 1.0)
    book.begin_attempt()
    book.look([sample(ecc_uncorrected=1)], 2.0)
    assert book.end_attempt([DEVICE])["GPU-2"].certain is False
    book.begin_attempt()
    assert book.end_attempt([DEVICE]) == {}
    book.look([sample(ecc_uncorrected=2)], 3.0)
    assert book.end_attempt([DEVICE])["GPU-2"].certain is True


def test_a_lost_device_that_is_back_is_offered_after_a_while():
    book = HealthBook()
    book.look([sample(lost=True)], 1.0)
    book.set_aside(DEVICE, Unfit("lost", certain=True))
    book.look([sample(xid=[79])], 10.0)  # the report of its loss is old
    assert book.is_fit(DEVICE) and not book.is_well_again(DEVICE, 10.0)
    book.look([sample(lost=True, xid=[79])], 11.0)
    book.look([sample(xid=[79, 79])], 12.0)
    assert not book.is_well_again(DEVICE, 11.0 + HEALTHY_AFTER_S)
    assert book.is_well_again(DEVICE, 12.0 + HEALTHY_AFTER_S)


def test_a_device_with_a_fatal_xid_is_fit_only_after_a_reset():
    book = HealthBook()
    book.look([sample(xid=[95])], 1.0)
    book.set_aside(DEVICE, Unfit("XID 95", certain=True))
    book.look([sample(xid=[], energy_j=200.0)], 100.0)  # from a restarted sampler
    assert not book.is_fit(DEVICE)
    book.look([sample(xid=[], energy_j=3.0)], 101.0)
    assert book.is_fit(DEVICE)


def test_device_that_returned_unobserved_is_back():
    book = HealthBook()
    book.known["GPU-2"] = Known(needs_reset="lost")
    book.look([sample()], 1.0)
    assert book.is_fit(DEVICE)


def test_the_least_memory_in_use_without_processes_is_kept():
    book = HealthBook()
    there = [GpuProcess(pid=7, mem_used_bytes=70)]
    for used, processes in ((100, there), (20, None), (10, there), (None, None), (900, [])):
        book.look([sample(mem_used_bytes=used, processes=processes)], 1.0)
    assert book.idle_bytes() == {"GPU-2": 20}
    book = HealthBook()
    book.look([sample(mem_used_bytes=100, processes=there)], 1.0)
    assert book.idle_bytes() == {"GPU-2": 30}
