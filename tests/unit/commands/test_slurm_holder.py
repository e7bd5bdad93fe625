"""A job in a Slurm allocation, held by its batch step, with fake Slurm commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import run_folder
from ddptop_runner.base.start import own_command
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs.slurm_holder import Requeues, read_requeues

TRAIN = """
import os, time, ddptop
for step in range(1, 10**6):
    ddptop.report(step=step, loss=1.0)
    time.sleep(0.05)
    if ddptop.checkpoint_requested():
        open("saved", "w").write(str(step))
        if os.path.exists("end-once-saved"):
            break
    if os.path.exists("fail"):
        raise RuntimeError("told to fail")
    if os.path.exists("end"):
        break
"""


@pytest.fixture
def batch(tmp_path, ddptop_home, monkeypatch):
    """`batch(*options, **variables)` is the batch step; `calls()` returns its calls of Slurm
    commands."""
    (tmp_path / "train.py").write_text(TRAIN)
    programs = tmp_path / "bin"
    programs.mkdir()

    def ends_in(seconds):
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
        for name in ("scontrol", "squeue"):
            (programs / name).write_text(
                f"#!/bin/sh\necho {name} $* >>{tmp_path}/calls\necho {end}\n"
            )
            (programs / name).chmod(0o755)

    ends_in(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    started = []

    def start(*options, **variables):
        env = {
            **os.environ,
            "SLURM_JOB_ID": "41",
            "SLURM_JOB_NODELIST": "n1",
            "SLURMD_NODENAME": "n1",
            "SLURM_TASK_PID": "1",
            **variables,
        }
        argv = ["launch", "--slurm", "--name", "held", "--nproc", "2", *options, "train.py"]
        with (tmp_path / "said").open("ab") as said:
            step = subprocess.Popen(
                own_command("ddptop", *argv),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        started.append(step)
        return step

    start.folder = tmp_path
    start.ends_in = ends_in
    start.calls = lambda: (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
    start.said = lambda: (tmp_path / "said").read_text()
    yield start
    (tmp_path / "end").touch()
    for step in started:
        try:
            step.wait(timeout=20)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()


def view(name="held"):
    return read_job(run_folder(name))


def is_training(name="held"):
    folder = run_folder(name)
    return folder.spec_file.exists() and (read_job(folder).snapshot or view) and _steps(name) > 0


def _steps(name):
    snapshot = view(name).snapshot
    return 0 if snapshot is None or snapshot.state != "running" else snapshot.step or 0


def end_like_slurm(step, name="held"):
    """Like Slurm: all processes of the job get SIGTERM."""
    from ddptop_runner.host import procs

    for pid in [step.pid, *procs.pids_of_job(view(name).spec.job_id)]:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass


@pytest.mark.torch
def test_a_time_limit_saves_requeues_and_the_job_continues(batch, wait_until):
    step = batch()
    wait_until(is_training)
    assert view().spec.backing == "held"
    assert view().spec.slurm_job == "41"
    step.send_signal(signal.SIGUSR1)
    wait_until(lambda: "scontrol requeue 41" in batch.calls())
    assert (batch.folder / "saved").exists(), "requeued before the checkpoint"
    end_like_slurm(step)
    assert step.wait(timeout=20) == 143
    assert "scontrol update JobId=41 StartTime=now+" in batch.calls()
    first = view()
    counts = read_requeues(first.folder, "41")
    assert (counts.count, counts.without_progress) == (1, 0)

    batch(SLURM_RESTART_COUNT="1")
    wait_until(lambda: view().snapshot.attempt == 1 and is_training())
    assert view().spec.job_id == first.spec.job_id, "the requeued job did not continue"
    assert not run_folder("held-2").path.exists()


@pytest.mark.torch
def test_a_time_limit_waits_for_ranks_that_start_and_a_job_that_then_ends_is_not_requeued(
    batch, wait_until
):
    (batch.folder / "end-once-saved").touch()
    batch.ends_in(80)
    step = batch()
    wait_until(run_folder("held").spec_file.exists)
    step.send_signal(signal.SIGUSR1)
    assert step.wait(timeout=70) == 0
    assert (batch.folder / "saved").exists()
    assert view().state == "finished"
    assert "scontrol requeue" not in batch.calls()


@pytest.mark.torch
def test_a_guardian_that_is_killed_is_replaced(batch, wait_until):
    step = batch()
    wait_until(is_training)
    guardian = view().snapshot.guardian
    os.kill(guardian.pid, signal.SIGKILL)
    wait_until(lambda: view().snapshot.guardian.pid != guardian.pid and view().guarded)
    assert view().snapshot.attempt == 0
    (batch.folder / "end").touch()
    assert step.wait(timeout=20) == 0
    assert view().state == "finished"


@pytest.mark.torch
def test_a_failure_that_would_recur_is_not_requeued(batch):
    (batch.folder / "fail").touch()
    assert batch("--max-restarts", "1").wait(timeout=60) == 93
    assert "requeue" not in batch.calls()
    assert "held failed, and would fail again; not requeued" in batch.said()


def test_a_spent_budget_ends_a_job_that_slurm_requeued(ddptop_home, batch):
    from tests.support.builders import put_job

    from ddptop_runner.jobs.slurm_holder import write_requeues

    folder = put_job("held", {"state": "running"}, slurm_job="41")
    write_requeues(folder, Requeues(slurm_job="41", count=1))
    step = batch("--max-requeues", "1", SLURM_RESTART_COUNT="2")
    assert step.wait(timeout=20) == 93
    assert "held is not continued: it was requeued 1 times (--max-requeues 1)" in batch.said()


def test_a_requeued_job_whose_nodes_are_not_ready_is_requeued_again(ddptop_home, batch):
    from tests.support.builders import put_job

    put_job("held", {"state": "running"}, slurm_job="41")
    (batch.folder / "train.py").unlink()
    for _ in range(3):
        assert batch(SLURM_RESTART_COUNT="1").wait(timeout=20) == 143
    assert batch.calls().count("scontrol requeue 41") == 3
    assert "no script train.py" in batch.said()
    assert batch(SLURM_RESTART_COUNT="1").wait(timeout=20) == 93
    assert "held is not continued: no progress in the last 3 requeues" in batch.said()


REFUSED = {
    # variables: words in the line
    "no devices": (
        {},
        [],
        "no GPUs; request them with --gpus-per-node=N of sbatch, or pass --nproc N",
    ),
    "several tasks": (
        {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},
        ["--nproc", "1"],
        "without srun",
    ),
    "too few nodes": ({}, ["--nodes", "2"], "--nodes 2, but Slurm job 41 has 1"),
    "options of sbatch": ({}, ["--", "--time=1"], "whose resources are fixed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_in_an_allocation(name, bad_input, monkeypatch):
    variables, options, words = REFUSED[name]
    for key, value in {
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NODELIST": "n1",
        "SLURMD_NODENAME": "n1",
        "SLURM_TASK_PID": "1",
        **variables,
    }.items():
        monkeypatch.setenv(key, value)
    for key in ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(key, raising=False)
    assert words in bad_input(2, "launch", "--slurm", *options, "train.py")


def test_gpus_that_the_allocation_lacks_are_not_replaced_by_the_cpu():
    from ddptop_runner.jobs.slurm import in_allocation
    from ddptop_runner.launch.request import LaunchRequest
    from ddptop_runner.launch.slurm import Allocation

    found = Allocation("41", "n1", on_node=True)
    request = LaunchRequest("script", "train.py", gpus="all", nproc=2)
    with pytest.raises(UsageError, match=r"Slurm job 41 has no GPUs; .*without --gpus"):
        in_allocation(request, found, {"SLURMD_NODENAME": "n1"})


def test_job_without_gpus_in_its_allocation_reports_cpu_training(monkeypatch, capsys):
    from ddptop.commands import launch_slurm

    from ddptop_runner.launch.gpus.choice import DeviceChoice
    from ddptop_runner.launch.request import LaunchPlan, LaunchRequest
    from ddptop_runner.launch.slurm import Allocation

    plan = LaunchPlan(SimpleNamespace(), {}, (), (), choice=DeviceChoice([]), request=None)
    monkeypatch.setattr(launch_slurm.launcher, "prepare", lambda *_: plan)
    monkeypatch.setattr(launch_slurm, "describe", lambda plan: "; ".join(plan.notes))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    request = LaunchRequest("script", "train.py", nproc=2)
    found = Allocation("41", "n1", on_node=True)
    for gpus in (None, "none"):
        launch_slurm.use(replace(request, gpus=gpus), found, {"dry_run": True})
    note = "the allocation of Slurm job 41 has no GPUs; the job trains on CPUs"
    assert capsys.readouterr().out == f"{note}\n\n", "or it is not what was asked for"


def test_a_job_whose_files_are_unreadable_after_its_checkpoint_is_requeued(
    ddptop_home, monkeypatch
):
    from tests.support.builders import put_job

    from ddptop_runner.base.clock import utc_now
    from ddptop_runner.base.errors import DamagedFileError
    from ddptop_runner.jobs import slurm_holder
    from ddptop_runner.jobs.checkpoint import Saved
    from ddptop_runner.launch.slurm import Allocation
    from ddptop_runner.model.snapshot import Checkpoint

    folder = put_job("held", {"state": "running"}, slurm_job="41", host="elsewhere")
    views = iter([read_job(folder)] * 2)

    def read(_):
        try:
            return next(views)
        except StopIteration:
            raise DamagedFileError("damaged", "none") from None

    asked = []
    monkeypatch.setattr(slurm_holder, "read_job", read)
    saved = Saved(Checkpoint(path="saved", at=utc_now()), responded=True)
    monkeypatch.setattr(slurm_holder.checkpoint, "ask", lambda _: None)
    monkeypatch.setattr(slurm_holder.checkpoint, "wait", lambda *_: saved)
    monkeypatch.setattr(slurm_holder, "_ask", lambda *argv, **_: asked.append(argv) or "")
    slurm_holder.JobHolder(folder, Allocation("41", "n1"), None)._save_and_requeue()
    assert asked[-1] == ("scontrol", "requeue", "41")


def test_tasks_of_an_array_are_jobs_of_their_own(ddptop_home, batch):
    from ddptop_runner.jobs.slurm import in_allocation
    from ddptop_runner.launch.request import LaunchRequest
    from ddptop_runner.launch.slurm import allocation

    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    found = allocation({**env, "SLURM_ARRAY_TASK_ID": "3"})
    request = LaunchRequest("script", "train.py", name="sweep", nproc=1, python=sys.executable)
    used = in_allocation(request, found, env)
    assert (used.name, used.gpus) == ("sweep-3", "none"), "or another job's GPUs"
