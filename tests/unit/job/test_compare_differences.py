"""The options of jobs, and how they are compared. Pure functions."""

from __future__ import annotations

import datetime as dt

import pytest
from ddptop.job.compare import (
    LossCurve,
    Run,
    companions,
    compare,
    differences,
    losses_at_common_steps,
    options_of,
)
from ddptop.job.record import Job, own_job
from ddptop.job.series import Points

from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.registry import JobView
from ddptop_runner.model.spec import Device, JobSpec

NOW = dt.datetime(2026, 3, 14, 12, tzinfo=dt.timezone.utc)


def view(job: str = "a", *args: str, minutes: float = 0, **more: object) -> Job:
    values: dict[str, object] = {
        "job": job,
        "job_id": f"{job}@1",
        "host": "h",
        "created_at": NOW + dt.timedelta(minutes=minutes),
        "kind": "script",
        "target": "train.py",
        "python": "/env/bin/python",
        "cwd": "/code",
        "nproc": 2,
        "args": list(args),
    }
    spec = JobSpec(**{**values, **more})
    return own_job(JobView(run_folder(job), spec, None, read_at=NOW))


def run(job: str, losses: list[float], *args: str, **more: object) -> Run:
    times = [float(i) for i in range(len(losses))]
    steps = [i * 10 for i in range(len(losses))]
    points = Points(times, losses, losses, losses, (), steps, [0] * len(losses))
    return Run(view(job, *args, **more), LossCurve(points))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--lr", "1e-3"], {"--lr": "1e-3"}),
        (["--lr=1e-3", "--amp"], {"--lr": "1e-3", "--amp": "yes"}),
        (["--bias", "-0.5", "-v"], {"--bias": "-0.5", "-v": "yes"}),
        (
            ["data", "--gpus", "x", "out"],
            {"argument 1": "data", "--gpus": "x", "argument 2": "out"},
        ),
        (["--tag", "a", "--tag", "b"], {"--tag": "a b"}),
        (["-", "--"], {"argument 1": "-", "--": "yes"}),
    ],
)
def test_options_out_of_words(args: list[str], expected: dict[str, str]) -> None:
    assert options_of(view("a", *args).spec) == expected


def test_only_differences_are_shown() -> None:
    one = run("a", [1], "--lr", "1", "--seed", "7", env_overrides=["NCCL_DEBUG"])
    other = run("b", [1], "--lr", "2", "--seed", "7", "--amp", python="/other/python")
    found = {each.what: each.values for each in differences([one, other])}
    assert found == {
        "--lr": ("1", "2"),
        "--amp": (None, "yes"),
        "python": ("/env/bin/python", "/other/python"),
        "--env NCCL_DEBUG": ("given", None),
    }
    assert differences([one, one]) == []


def test_jobs_are_compared_at_the_last_step_that_all_came_to() -> None:
    comparison = compare([run("a", [4, 3, 2, 1]), run("b", [4, 2.5, 1.5])])
    found = comparison.loss
    assert (found.step, found.after_s) == (20, 2.0)
    assert found.losses == (2.0, 1.5)
    assert (found.best, found.best_by) == (1, 0.25)
    steps = losses_at_common_steps(comparison, 4)
    assert [one.step for one in steps] == [5, 10, 15, 20]
    assert steps[1].values == (3.0, 2.5)


def test_single_job_is_better_than_none() -> None:
    alone = compare([run("a", [2, 1])]).loss
    assert (alone.best, alone.step) == (None, 10)
    nothing = compare([run("a", []), run("b", [1, 2])])
    by = nothing.loss
    assert (by.step, by.losses, by.best) == (None, (None, None), None)
    assert losses_at_common_steps(nothing) == []


def test_companions_of_the_same_script_come_first_and_the_newest_of_them() -> None:
    jobs = [
        view("first", minutes=0),
        view("old", minutes=1),
        view("new", minutes=5),
        view("other", minutes=9, target="fit.py"),
    ]
    assert [one.name for one in companions(jobs, "first")] == ["new", "old", "other"]
    assert next(one.name for one in companions(jobs, "gone")) == "other"


def test_facts_of_a_run() -> None:
    devices = [Device(index=i, name="NVIDIA H100") for i in range(2)]
    one = Run(view("a", devices=devices, kind="module", target="pkg.train"))
    assert (one.devices, one.script) == ("2x H100", "-m pkg.train")
    assert Run(view()).devices == "CPU"
