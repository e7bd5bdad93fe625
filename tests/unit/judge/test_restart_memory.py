"""Waiting for the memory of an ended attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from tests.support.builders import make_spec

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.devices import report as device_report
from ddptop_runner.judge.restarts import devices
from ddptop_runner.judge.restarts.devices import Held, JobDevices, Waited, still_held
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device

DEVICE = Device(index=0, uuid="GPU-0")
GIB = 2**30
OURS = GpuProcess(pid=7, user="ann", command="train.py", mem_used_bytes=9 * GIB)
THEIRS = GpuProcess(pid=8, mem_used_bytes=9 * GIB)
SOON_S = 3.0
"""Less than `ANSWER_S` and `LIMIT_S`."""


def gpu(used_gib: float | None, *processes: GpuProcess, **changes: object) -> GpuSample:
    used = None if used_gib is None else int(used_gib * GIB)
    return GpuSample(
        index=0, uuid="GPU-0", mem_used_bytes=used, processes=list(processes), **changes
    )


@pytest.mark.parametrize(
    ("sample", "idle_gib", "held"),
    [
        (gpu(1), 1, False),
        (gpu(1.4), 1, False),
        (gpu(10), 1, True),
        (gpu(10, OURS), 1, True),
        (gpu(1, OURS), 1, True),  # its process exists, whatever the sum
        (gpu(10, THEIRS), 1, False),
        (gpu(19, THEIRS), 1, True),
        (gpu(10), None, False),  # the previous value is unknown
        (gpu(None), 1, False),
        (gpu(10, OURS, lost=True), 1, False),
    ],
)
def test_what_is_still_held(sample, idle_gib, held):
    idle = {} if idle_gib is None else {"GPU-0": idle_gib * GIB}
    found = still_held([sample], [DEVICE], idle, lambda pid: pid == 7)
    assert bool(found) is held


def report(used_gib: float, *, age_s: float = 0.0) -> device_report.DeviceReport:
    return device_report.DeviceReport(
        ts=utc_now(), boottime_s=boottime_s() - age_s, source="nvml", gpus=[gpu(used_gib)]
    )


def waited(reports: Sequence[device_report.DeviceReport | None], skip: bool = False) -> Waited:
    """The notes of the wait, given these reports, the last of which repeats forever."""
    left = list(reports)

    def next_report() -> device_report.DeviceReport | None:
        return left.pop(0) if len(left) > 1 else left[0]

    job = JobDevices(msgspec.structs.replace(make_spec(), devices=[DEVICE]))
    job.update(report(0), [])
    waits = job.wait_for_memory(next_report, [], lambda pid: False, lambda: skip)
    return asyncio.run(waits)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(devices, "POLL_S", 0.001)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(devices, "LIMIT_S", 0.05)


def test_it_waits_for_samples_from_after_the_end_and_until_all_is_back(short):
    later = -1000.0  # created now, for a future time
    reports = [report(0, age_s=5), report(9, age_s=later), report(0, age_s=later)]
    found = waited(reports)
    assert [held.used_bytes for held in found.first] == [9 * GIB]
    assert found.left == ()
    assert waited(reports[:2]).left, "the first sample is too old to count"


def test_it_gives_up_and_names_who_holds_what(short):
    found = waited([report(9, age_s=-1000)])
    assert "GPU 0 still has 9.0 GiB in use" in (found.in_words() or "")
    named = Waited(50.0, left=(Held(DEVICE, 9 * GIB, (OURS,)),)).in_words()
    assert named and "pid 7, ann, train.py" in named and named.startswith("after 50 s")


def test_a_driver_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(devices, "ANSWER_S", 0.01)
    found = waited([report(9, age_s=5)])
    assert found.in_words() is None and found.seconds < SOON_S
