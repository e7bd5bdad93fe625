"""Commands without torch: shells, single processes, commands that wait for a GPU."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from tests.support.command_jobs import gone, launcher_of, pids_of
from tests.support.nvml_stub import NoCompilerError, StubDriver, StubGpu, StubProcess
from tests.support.nvml_stub.driver import GIB
from tests.support.real_jobs import Job

from ddptop_runner.host import procs

pytestmark = pytest.mark.tmux

REPORTS = """
import os, time, ddptop
for step in range(1, 10**6):
    ddptop.report(loss=1 / step, step=step, total=1000)
    time.sleep(0.02)
"""


def log_of(job: Job) -> str:
    return job.cli("logs", job.name).stdout


def test_command_that_exits_with_0_at_once(launch_command):
    job = launch_command(["sh", "-c", "echo all is well"])
    assert job.wait() == 0
    status = job.status()
    assert (status["state"], status["exit_code"], status["ranks"]) == ("finished", 0, [])
    assert (status["world_size"], launcher_of(job)["exit_code"]) == (None, 0)
    assert "all is well" in log_of(job)
    types = [event["type"] for event in job.events()]
    assert types == ["launched", "attempt_started", "launcher_exited", "finished"]


def test_failed_command_is_explained_by_its_last_lines(launch_command):
    job = launch_command(["sh", "-c", "echo no license; exit 3"], "--max-restarts", "0")
    assert job.wait() == 1
    cause = job.status()["cause"]
    assert (cause["kind"], cause["rank"], cause["exit_code"]) == ("exit_code", None, 3)
    assert cause["summary"].startswith("The command (pid ")
    assert "'no license'" in cause["summary"]


def test_one_process_that_reports_is_rank_0(launch_command, wait_until):
    job = launch_command(
        ["sh", "-c", 'echo shell; "$0" -c "$1"; echo "then $?"', sys.executable, REPORTS]
    )
    wait_until(
        lambda: [r["step"] for r in job.status()["ranks"] if (r["step"] or 0) > 5], what="steps"
    )
    (rank,) = job.status()["ranks"]
    assert (rank["rank"], rank["loss_source"], job.status()["world_size"]) == (0, "api", 1)
    assert rank["pid"] != launcher_of(job)["pid"]
    pids = [*pids_of(job), launcher_of(job)["pid"]]
    assert job.cli("kill", job.name).returncode == 0
    assert gone(pids)
    assert job.status()["ranks"][0]["signal"] == "SIGKILL"
    assert "then" not in log_of(job)


def test_leftover_processes_end_with_the_command(launch_command, wait_until):
    job = launch_command(
        ["sh", "-c", "(trap '' TERM; echo $$; exec sleep 600) & sleep 0.3; exit 0"]
    )
    assert job.wait() == 0
    job_id = json.loads((job.folder() / "job.json").read_text())["job_id"]
    assert [
        procs.argv(pid) for pid in procs.pids_of_job(job_id) if "sleep" in procs.argv(pid)
    ] == []


def test_command_waits_for_its_gpu_and_sees_only_that(
    tmp_path, monkeypatch, ddptop_home, ddptop_cli, wait_until
):
    folder = tmp_path / "nvml"
    folder.mkdir()
    try:
        stub = StubDriver(folder, [StubGpu(index=index, mem_used=0, util=0) for index in range(2)])
    except NoCompilerError as error:
        pytest.skip(str(error))
    for name, value in stub.env(log=False).items():
        monkeypatch.setenv(name, value)
    stub.set(1, mem_used=30 * GIB, processes=[StubProcess(os.getpid(), 30 * GIB)])
    options = ["--wait-gpus", "--gpus", "1", "--name", "patient"]
    command = ["sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; exec sleep 600"]
    answer = ddptop_cli("launch", "-d", *options, "--", *command)
    assert answer.returncode == 0, answer.stderr
    job = Job("patient", ddptop_cli)
    wait_until(lambda: job.status()["state"] == "queued", what="the queue")
    assert launcher_of(job)["pid"] is None
    stub.set(1, mem_used=0, processes=[])
    wait_until(lambda: "sees 1" in job.log(), what="the device")
    os.kill(wait_until(lambda: launcher_of(job)["pid"], what="its pid"), signal.SIGKILL)
    wait_until(lambda: job.status()["attempt"] == 1 and launcher_of(job)["pid"], what="attempt 1")
    assert job.cli("stop", job.name).returncode == 0
