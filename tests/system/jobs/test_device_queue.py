"""Busy devices, and jobs that wait for free ones: real guardians on the simulated driver."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.nvml_stub import StubDriver, StubProcess
from tests.support.nvml_stub.driver import GIB
from tests.support.real_jobs import Job

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

SCRIPT = """
import os, time
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
time.sleep(600)
"""
COMMAND = ["--", "sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES and $LR; exec sleep 600"]
"""Serves as a script here, and needs no torch."""


def occupy(stub: StubDriver, index: int) -> None:
    gib = 30 + index
    stub.set(index, mem_used=gib * GIB, processes=[StubProcess(os.getpid(), gib * GIB)])


@pytest.fixture
def stub(stub: StubDriver) -> StubDriver:
    """Of the four devices, this test's own process uses GPU 0 and GPU 1."""
    with stub.together():
        occupy(stub, 0)
        occupy(stub, 1)
    return stub


def free(stub: StubDriver, index: int) -> None:
    stub.set(index, mem_used=0, processes=[])


@pytest.fixture
def queue(ddptop_cli) -> Callable[..., Job]:
    """`queue(name, *options)` launches a command that prints its devices and waits."""

    def start(name: str, *options: str, what: Sequence[str] = COMMAND) -> Job:
        answer = ddptop_cli("launch", "-d", "--wait-gpus", "--name", name, *options, *what)
        assert answer.returncode == 0, answer.stderr
        assert f"{name} is queued; to cancel, run ddptop stop {name}" in answer.stderr
        return Job(answer.stdout.strip(), ddptop_cli)

    return start


def node_of(job: Job) -> dict[str, Any]:
    node: dict[str, Any] = json.loads(next((job.folder() / "nodes").glob("*.json")).read_text())
    return node


def waits_for(job: Job) -> str:
    return " ".join(a["message"] for a in job.status()["alerts"] if a["id"] == "queued")


def test_job_without_memory_in_use_has_its_devices_reserved(stub, ddptop_cli, tmp_path):
    launched = ddptop_cli("launch", "-d", "--gpus", "2-3", "--name", "first", *COMMAND)
    assert launched.returncode == 0, launched.stderr
    job = Job("first", ddptop_cli)
    (tmp_path / "s.py").write_text("")
    answer = ddptop_cli("launch", "-d", "--gpus", "3", str(tmp_path / "s.py"))
    assert answer.returncode == 2
    assert "GPU 3 is busy: reserved by job first; pass --wait-gpus" in answer.stderr
    job.cli("kill", job.name)
    restarted = ddptop_cli("restart", "first")
    assert restarted.returncode == 0, restarted.stderr
    job.cli("kill", job.name)
    occupy(stub, 3)
    refused = ddptop_cli("restart", "first")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "GPU 3 is busy" in refused.stderr
    assert job.status()["state"] == "stopped"
    waiting = ddptop_cli("restart", "--wait-gpus", "first")
    assert waiting.returncode == 0, waiting.stderr
    assert "first is queued" in waiting.stderr
    assert job.status()["state"] == "queued"
    assert job.status()["attempt"] == 2
    assert ddptop_cli("stop", "first").returncode == 0
    assert job.status()["state"] == "stopped"


def test_queued_job_starts_when_its_devices_are_free_despite_killed_processes(
    stub, queue, wait_until, tmp_path
):
    (tmp_path / "waiting.py").write_text(SCRIPT)
    job = queue("waiting", "--gpus", "1,0", what=[str(tmp_path / "waiting.py")])
    wait_until(lambda: "GPU 1: " in waits_for(job), what="who has the devices")
    status = job.status()
    assert (status["state"], status["ranks"], status["attempt"]) == ("queued", [], 0)
    assert "waiting for GPUs 0, 1; GPU 1: " in waits_for(job)
    assert f"pid {os.getpid()}) uses 30.0 GiB" in waits_for(job)
    assert [gpu["index"] for gpu in status["gpus"]] == [0, 1]
    assert status["imbalance"]["memory"] is None
    assert job.cli("restart", job.name).returncode == 1  # nothing to restart yet
    before = job.processes()
    os.kill(before["supervisor"], signal.SIGKILL)
    wait_until(lambda: job.processes()["supervisor"] != before["supervisor"], what="another one")
    wait_until(lambda: "GPU 0: " in waits_for(job), what="who has the devices")
    assert "agent" not in job.processes()
    free(stub, 0)
    wait_until(lambda: "GPU 0: " not in waits_for(job), what="the change")
    assert job.status()["state"] == "queued"  # one of two is not enough
    free(stub, 1)
    wait_until(lambda: "sees 1,0" in job.log(), what="the ranks")
    wait_until(lambda: job.events("attempt_started"), what="the agent's report")
    status = job.status()
    assert [rank["gpu"] for rank in status["ranks"]] == [1, 0]
    assert status["alerts"] == []
    told = [event["type"] for event in job.events()]
    assert told[:4] == ["queued", "supervisor_restarted", "launched", "attempt_started"]
    assert job.events("launched")[0]["message"].endswith("with 2 ranks on GPUs 0, 1")
    assert node_of(job)["guardian"]["pid"] == before["guardian"]
    assert job.cli("kill", job.name).returncode == 0


def test_a_queued_job_can_be_stopped_and_started_again(stub, queue, wait_until, monkeypatch):
    monkeypatch.setenv("LR", "7")  # for the restart
    job = queue("waiting", "--gpus", "0", "--env", "LR=7")
    assert job.cli("stop", job.name).returncode == 0
    status = job.status()
    assert (status["state"], status["ranks"], status["cause"]) == ("stopped", [], None)
    assert job.events("stopped")[0]["message"] == "stopped in the queue"
    assert job.wait() == 4
    answer = job.cli("restart", job.name)
    assert answer.returncode == 0, answer.stderr
    assert job.status()["state"] == "queued"
    before = job.processes()["guardian"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: node_of(job)["guardian"]["pid"] != before, what="a new guardian")
    assert job.status()["state"] == "queued"
    free(stub, 0)
    wait_until(lambda: "sees 0 and 7" in job.log(), what="the ranks")
    assert job.cli("kill", job.name).returncode == 0
