"""A device is lost: the job continues without it, and uses it again after a manual restart."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal

import pytest
from tests.support.nvml_stub import StubProcess
from tests.support.nvml_stub.driver import GIB
from tests.support.real_jobs import Job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.job.processes import rank_processes
from ddptop_runner.model.snapshot import decode_snapshot

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

TRAINER = """
import os, time
import ddptop
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], "world", os.environ["WORLD_SIZE"], flush=True)
while True:
    ddptop.report(loss=0.5)
    time.sleep(0.05)
"""


def age_s(job: Job, since: dt.datetime) -> float:
    """How much later than `since` the job's snapshot is."""
    node = next((job.folder() / "nodes").glob("*.json"))
    return (decode_snapshot(node.read_bytes()).ts - since).total_seconds()


def test_lost_device_is_set_aside_and_used_again(stub, launch_script, wait_until, ddptop_home):
    job = launch_script(TRAINER, "--gpus", "0-2", "--allow-shrink", nproc=3)

    wait_until(lambda: job.trains(), what="three ranks that train")
    wait_until(
        lambda: [gpu["mem_used_bytes"] for gpu in job.status()["gpus"]] == [0, 0, 0],
        what="what the devices hold of others",
    )
    pids = [job.rank(rank)["pid"] for rank in range(3)]
    with stub.together():  # rank 0's memory takes time to be released
        stub.set(0, mem_used=9 * GIB, processes=[StubProcess(pids[0], 8 * GIB)])
        stub.lose(1)
    wait_until(lambda: job.events("gpu_lost"), what="the loss of a device")
    os.kill(pids[1], signal.SIGKILL)
    told = wait_until(
        lambda: [e for e in job.events("alert") if "set aside" in e["message"]],
        what="the device set aside",
    )[0]["message"]
    assert "GPU 1 (NVIDIA H100 80GB HBM3): lost" in told
    assert "with 2 ranks on GPUs 0, 2 instead of 3: the global batch is 2/3" in told
    job_id = json.loads((job.folder() / "job.json").read_text())["job_id"]
    wait_until(lambda: not rank_processes(job_id), what="the end of the ranks")
    ended_at = utc_now()
    wait_until(lambda: age_s(job, ended_at) > 3, what="samples with memory in use")
    assert job.status()["attempt"] == 0  # it waits for GPU 0 to release memory
    stub.set(0, mem_used=0, processes=[])
    wait_until(lambda: job.trains(attempt=1), what="two ranks that train")
    # by UUID: if a device is lost, CUDA numbers only the remaining ones
    uuids = f"{stub.gpu(0).uuid},{stub.gpu(2).uuid}"
    assert f"sees {uuids} world 2" in job.log(attempt=1)
    assert job.events("gpu_memory")[0]["message"].endswith("for GPU 0 to release memory")
    status = job.status()
    assert (status["world_size"], status["set_aside"]) == (2, [1])
    assert [rank["gpu"] for rank in status["ranks"]] == [0, 2]
    assert status["restarts_used"] == 1
    assert {"set-aside-1"} == {alert["id"] for alert in status["alerts"]}

    # a restarted supervisor continues with the remaining devices
    os.kill(job.processes()["supervisor"], signal.SIGKILL)
    wait_until(lambda: job.events("supervisor_restarted"), what="another supervisor")
    stub.restore(1)
    wait_until(
        lambda: [gpu["lost"] for gpu in job.status()["gpus"]] == [False] * 3,
        what="the device that is back",
    )
    status = job.status()
    assert (status["attempt"], status["world_size"], status["set_aside"]) == (1, 2, [1])
    (alert,) = status["alerts"]
    assert alert["id"] == "set-aside-1"
    assert f"`ddptop restart {job.name}` tries it again" in alert["message"]
    assert job.cli("restart", job.name).returncode == 0
    wait_until(lambda: job.trains(attempt=2), what="three ranks that train again")
    uuids = ",".join(stub.gpu(index).uuid for index in range(3))
    assert f"sees {uuids} world 3" in job.log(attempt=2)
    status = job.status()
    assert (status["world_size"], status["set_aside"], status["restarts_used"]) == (3, [], 1)
    assert "back in use" in job.events("group_restart")[-1]["message"]

    assert len(rank_processes(job_id)) == 3
    job.cli("kill", job.name)
    assert rank_processes(job_id) == []
