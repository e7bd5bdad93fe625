"""The planner: a budget over supervisors, and devices that are set aside."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from ddptop_runner.judge.restarts.planner import NextAttempt, RestartPlanner
from tests.runner.builders import make_spec

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.judge.restarts import planner as planner_module
from ddptop_runner.judge.restarts.fitness import HEALTHY_AFTER_S
from ddptop_runner.judge.restarts.policy import AttemptOutcome
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, JobSpec

DEVICES = [Device(index=n, uuid=f"GPU-{n}", name="H100") for n in range(4)]


def killed(attempt: int, steps: int = 9) -> AttemptOutcome:
    return AttemptOutcome(attempt, 5.0, steps, None, "SIGKILL", None)


def spec(**changes: object) -> JobSpec:
    return msgspec.structs.replace(make_spec(), **changes)


def report(*lost: int, at_s: float | None = None) -> DeviceReport:
    gpus = [GpuSample(index=d.index, uuid=d.uuid, lost=d.index in lost) for d in DEVICES]
    at_s = boottime_s() if at_s is None else at_s
    return DeviceReport(ts=utc_now(), boottime_s=at_s, source="nvml", gpus=gpus)


def prepare(planner: RestartPlanner, *lost: int) -> NextAttempt:
    return asyncio.run(planner.prepare(lambda: report(*lost)))


def again(planner: RestartPlanner, spec: JobSpec) -> RestartPlanner:
    """The planner of the next supervisor."""
    following = RestartPlanner(spec)
    following.recall(json.loads(json.dumps(planner.remember())))
    return following


def test_an_attempt_counts_once_however_often_it_is_asked_about():
    job = spec(max_restarts=2)
    planner = RestartPlanner(job)
    assert planner.failed(killed(0))
    decision = planner.decide()
    for _ in range(3):
        assert planner.used == 1
        assert not planner.failed(killed(0, steps=12))
        assert planner.decide() == decision
        planner = again(planner, job)
    planner.begin_attempt()
    assert planner.failed(killed(1))
    assert planner.decide().restart and planner.left == 0
    planner.begin_attempt()
    planner.failed(killed(2))
    assert not again(planner, job).decide().restart


def test_a_restart_that_a_person_asks_for_costs_nothing():
    planner = RestartPlanner(spec(max_restarts=2))
    planner.failed(killed(0))
    planner.decide()
    planner.asked()  # during the wait
    assert planner.used == 0
    planner.begin_attempt()
    planner.asked()  # of a job that runs
    assert planner.used == 0


@pytest.mark.parametrize(
    "memory",
    [{}, {"history": 3, "decided": [1], "set_aside": "x"}, {"known": {"GPU-0": {"n": []}}}],
)
def test_a_malformed_memory_is_left_out(memory):
    planner = RestartPlanner(spec())
    planner.recall(memory)
    assert (planner.used, planner.set_aside) == (0, [])


def test_a_lost_device_ends_a_job_that_needs_it():
    planner = RestartPlanner(spec(devices=DEVICES, nproc=4))
    planner.failed(killed(0))
    found = prepare(planner, 2)
    assert found.refused is not None
    assert "GPU 2 (H100): lost" in found.refused and "--allow-shrink" in found.refused
    assert planner.set_aside == []


def test_or_is_set_aside_where_that_is_allowed_and_offered_when_it_is_back():
    job = spec(devices=DEVICES, nproc=8, allow_shrink=True)
    planner = RestartPlanner(job)
    planner.begin_attempt()
    planner.failed(killed(0))
    found = prepare(planner, 2)
    assert found.refused is None
    assert found.spec.nproc == 6
    assert [device.index for device in found.spec.devices or []] == [0, 1, 3]
    assert "with 6 ranks on GPUs 0, 1, 3 instead of 8: the global batch is 6/8" in found.notes[0]
    assert planner.needs_new_agent
    planner = again(planner, job)
    assert planner.needs_new_agent and planner.spec == found.spec
    planner.begin_attempt()
    assert not planner.needs_new_agent
    (finding,) = planner.look(report(2))
    assert finding.severity == "warning" and "GPU 2 is set aside (lost)" in finding.message
    now_s = boottime_s() + 100
    planner.look(report(at_s=now_s))
    assert planner.take_back() and planner.spec == job
    planner.set_aside = [DEVICES[2]]
    (finding,) = planner.look(report(at_s=now_s + HEALTHY_AFTER_S))
    assert finding.severity == "info" and "is healthy again: run `ddptop restart" in finding.message


def test_a_device_that_is_still_lost_is_not_taken_back():
    planner = RestartPlanner(spec(devices=DEVICES, nproc=4, allow_shrink=True))
    planner.failed(killed(0))
    prepare(planner, 2)
    planner.look(report(2, at_s=boottime_s() + 50))
    assert planner.take_back() == []


def test_at_least_one_device_is_needed():
    planner = RestartPlanner(spec(devices=DEVICES[:1], nproc=1, allow_shrink=True))
    planner.failed(killed(0))
    refused = prepare(planner, 0).refused
    assert refused is not None and "no devices are left" in refused


def test_a_sampler_that_does_not_answer_is_no_reason_to_end(monkeypatch):
    monkeypatch.setattr(planner_module, "FRESH_WAIT_S", 0.01)
    planner = RestartPlanner(spec(devices=DEVICES, nproc=4))
    planner.failed(killed(0))
    old = report(at_s=boottime_s() - 60)
    assert asyncio.run(planner.prepare(lambda: old)).refused is None
    assert asyncio.run(planner.prepare(lambda: None)).refused is None


def test_a_job_on_cpus_looks_at_no_device():
    job = spec()
    planner = RestartPlanner(job)
    planner.failed(killed(0))
    assert asyncio.run(planner.prepare(lambda: pytest.fail("asked"))) == NextAttempt(job)
