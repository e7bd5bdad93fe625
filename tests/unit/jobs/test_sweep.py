"""A sweep of which a job cannot be started after all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from ddptop_runner.base.errors import DdptopError, LaunchInterruptedError, UsageError
from ddptop_runner.jobs import commands, launch, sweep
from ddptop_runner.launch.request import LaunchPlan, LaunchRequest


@pytest.fixture
def request_(ddptop_home: Path, tmp_path: Path) -> LaunchRequest:
    return LaunchRequest("command", "true", ("{n}",), cwd=str(tmp_path), gpus="none")


@pytest.fixture
def plans(request_: LaunchRequest) -> list[LaunchPlan]:
    return sweep.prepare(request_, {"n": ["1", "2", "3"]}, None, os.environ)


def test_jobs_of_which_few_run_at_once_are_queued_in_their_order(request_: LaunchRequest) -> None:
    plans = sweep.prepare(request_, {"n": ["1", "2", "3"]}, 2, os.environ)
    places = [plan.spec.place[0] for plan in plans]
    assert all(plan.spec.is_queued for plan in plans)
    assert places == sorted(set(places))


def test_what_was_launched_and_how_to_stop_it_is_said(
    plans: list[LaunchPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    error: BaseException = DdptopError("the guardian for true-n3 did not start", "doctor")

    def start(plan: LaunchPlan) -> tuple[object, None]:
        if plan.spec.job == "true-n3":
            raise error
        return launch.JobView(Path(), plan.spec, None, plan.spec.created_at), None

    monkeypatch.setattr(launch, "start", start)
    with pytest.raises(DdptopError) as failed:
        sweep.start(plans)
    assert str(failed.value) == (
        "only 2 of 3 jobs of true were launched: the guardian for true-n3 did not start;"
        " to stop them, run ddptop stop true"
    )
    with pytest.raises(DdptopError, match=r"^the guardian for true-n3 did not start"):
        sweep.start(plans[2:])
    error = KeyboardInterrupt()
    with pytest.raises(LaunchInterruptedError, match="only 2 of 3 jobs of true were launched: int"):
        sweep.start(plans)


def test_jobs_of_a_sweep_keep_their_order_and_have_their_own_identity(
    plans: list[LaunchPlan],
) -> None:
    specs = [plan.spec for plan in plans]
    assert [spec.job for spec in specs] == ["true-n1", "true-n2", "true-n3"]
    assert [spec.args for spec in specs] == [["1"], ["2"], ["3"]]
    assert specs == sorted(specs, key=lambda spec: spec.created_at)
    assert [plan.job_env["DDPTOP_JOB_ID"] for plan in plans] == [spec.job_id for spec in specs]
    assert len({spec.job_id for spec in specs}) == 3


def test_what_fails_for_one_job_is_done_to_the_others(plans: list[LaunchPlan]) -> None:
    views = [launch.JobView(Path(), one.spec, None, one.spec.created_at) for one in plans]
    done = []

    def act(view: launch.JobView) -> None:
        if view.job == "true-n1":
            raise DdptopError("true-n1 does not respond", "kill it")
        done.append(view.job)

    with pytest.raises(DdptopError, match="true-n1"):
        commands.on_each(views, act)
    assert done == ["true-n2", "true-n3"]


def test_hosts_are_refused(tmp_path: Path, ddptop_home: Path) -> None:
    from ddptop_runner.launch.request import parse_hosts

    request = LaunchRequest("script", "t.py", ("{n}",), cwd=str(tmp_path))
    with pytest.raises(UsageError, match="--array works on one machine only"):
        sweep.prepare(replace(request, hosts=parse_hosts("a,b")), {"n": ["1"]}, None, {})
