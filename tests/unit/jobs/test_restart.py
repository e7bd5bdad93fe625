"""What an ended job waits for once it is started again."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from tests.support.builders import put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs import launch
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, JobSpec, Predecessor, Waiting

BEFORE = utc_now() - dt.timedelta(hours=1)
GPU = Device(index=0, uuid="GPU-0")


@pytest.fixture(autouse=True)
def only_written(ddptop_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, and the device is free."""
    free = GpuSample(index=0, uuid="GPU-0", mem_used_bytes=0, mem_total_bytes=1 << 34, processes=[])
    monkeypatch.setattr(launch.launch_devices, "present_devices", lambda _: ([free], None))
    monkeypatch.setattr(launch, "start_guardian", lambda *_, **__: None)
    monkeypatch.setattr(launch, "_wait_for_attempt", lambda folder, _: read_job(folder))


def restarted(state: str, queue: Waiting, *, force: bool = False, **spec: object) -> JobSpec:
    command = {"kind": "command", "target": "true", "python": "/bin/sh", "nproc": 1}
    folder = put_job("job", {"state": state}, queue=queue, **command, **spec)
    return launch.restart_ended(read_job(folder), os.environ, force=force)[0].spec


@pytest.mark.parametrize("force", [False, True])
def test_a_job_of_a_sweep_waits_for_its_devices_in_turn(force: bool) -> None:
    queue = Waiting(candidates=[GPU], count=1, since=BEFORE, over_at=BEFORE)
    spec = restarted("failed", queue, force=force, devices=[GPU], group="s", parallel=1)
    assert (spec.is_queued, spec.devices) == ((False, [GPU]) if force else (True, None))
    assert spec.queue is None or (spec.queue.candidates, spec.queue.count) == ([GPU], 1)


@pytest.mark.parametrize(("state", "keeps_place"), [("running", True), ("stopped", False)])
def test_a_job_that_ended_in_the_queue_waits_for_the_same(state: str, keeps_place: bool) -> None:
    later = utc_now() + dt.timedelta(hours=1)
    after = [Predecessor(job="first", job_id="first@1", any_end=True)]
    queue = Waiting(
        candidates=[GPU], count=1, since=BEFORE, place=BEFORE, after=after, not_before=later
    )
    now = restarted(state, queue).queue
    assert now is not None and (now.after, now.not_before, now.over_at) == (after, later, None)
    assert (now.since == BEFORE, now.place == BEFORE) == (keeps_place, keeps_place)
