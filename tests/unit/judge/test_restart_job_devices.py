"""Which devices the next attempt uses, and which are set aside."""

from __future__ import annotations

import asyncio

import msgspec
from tests.support.builders import make_spec

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.judge.restarts import devices as devices_module
from ddptop_runner.judge.restarts.devices import Choice, JobDevices, without
from ddptop_runner.model.events import SetAside
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, JobSpec

DEVICES = [Device(index=n, uuid=f"GPU-{n}", name="H100") for n in range(4)]


def spec(**changes: object) -> JobSpec:
    return msgspec.structs.replace(make_spec(), **changes)


def report(*lost: int, at_s: float | None = None) -> DeviceReport:
    gpus = [GpuSample(index=d.index, uuid=d.uuid, lost=d.index in lost) for d in DEVICES]
    at_s = boottime_s() if at_s is None else at_s
    return DeviceReport(ts=utc_now(), boottime_s=at_s, source="nvml", gpus=gpus)


def choose(devices: JobDevices, *lost: int) -> Choice:
    return asyncio.run(devices.choose(lambda: report(*lost), [], boottime_s() - 1.0))


def test_a_lost_device_ends_a_job_that_needs_it():
    found = choose(JobDevices(spec(devices=DEVICES, nproc=4)), 2)
    assert found.refused is not None and found.aside == []
    assert "GPU 2 (H100): lost" in found.refused and "--allow-shrink" in found.refused


def test_or_is_set_aside_where_that_is_allowed_until_a_restart():
    job = spec(devices=DEVICES, nproc=8, allow_shrink=True)
    devices = JobDevices(job)
    found = choose(devices, 2)
    assert found.refused is None
    assert found.aside == [SetAside(device=DEVICES[2], reason="lost")]
    after = without(job, found.aside)
    assert after.nproc == 6
    assert [device.index for device in after.devices or []] == [0, 1, 3]
    assert "with 6 ranks on GPUs 0, 1, 3 instead of 8: the global batch is 6/8" in found.notes[0]
    following = JobDevices(job)
    (finding,) = following.update(report(2), found.aside)
    assert finding.severity == "warning" and "GPU 2 is set aside (lost)" in finding.message
    assert "`ddptop restart" in finding.message
    assert following.fit_again(found.aside) == []
    now_s = boottime_s() + 100
    following.update(report(at_s=now_s), found.aside)
    assert following.fit_again(found.aside) == [DEVICES[2]]


def test_a_report_from_after_the_failure_is_requested(monkeypatch):
    monkeypatch.setattr(devices_module, "FRESH_WAIT_S", 60.0)
    devices, latest = JobDevices(spec(devices=DEVICES, nproc=4)), [report(at_s=1.0)]
    request = lambda: latest.append(report(2))  # noqa: E731
    began_s = boottime_s()
    found = asyncio.run(devices.choose(lambda: latest[-1], [], began_s, request))
    assert found.refused is not None and "GPU 2 (H100): lost" in found.refused
    free = devices.wait_for_memory(
        lambda: latest[-1], [], lambda pid: False, lambda: False, request
    )
    assert asyncio.run(free).left == () and len(latest) == 3
    assert boottime_s() - began_s < 30
