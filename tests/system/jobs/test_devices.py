"""Jobs on devices: the real pynvml with the simulated driver library."""

from __future__ import annotations

import json

import pytest
from tests.support.nvml_stub import StubProcess
from tests.support.nvml_stub.driver import GIB

pytestmark = [pytest.mark.torch, pytest.mark.tmux]


def test_status_shows_ranks_devices_and_imbalance(stub, launch_script, wait_until, ddptop_cli):
    job = launch_script(
        "import os, time\n"
        "print('sees', os.environ['CUDA_DEVICE_ORDER'], os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "time.sleep(600)\n",
        *["--gpus", "1,3"],
    )
    wait_until(lambda: len(job.status()["gpus"]) == 2, what="the job's devices")
    wait_until(lambda: job.rank(1)["pid"], what="the ranks")
    wait_until(lambda: "sees PCI_BUS_ID 1,3" in job.log(), what="what rank 0 sees")
    with stub.together():
        stub.set(1, mem_used=20 * GIB, processes=[StubProcess(job.rank(0)["pid"], 18 * GIB)])
        stub.set(3, mem_used=40 * GIB, processes=[StubProcess(job.rank(1)["pid"], 36 * GIB)])
    wait_until(lambda: job.rank(1)["gpu_mem_used_bytes"] == 36 * GIB, what="memory per rank")
    status = job.status()
    assert [gpu["index"] for gpu in status["gpus"]] == [1, 3]
    assert [rank["gpu"] for rank in status["ranks"]] == [1, 3]
    assert [rank["cuda_device"] for rank in status["ranks"]] == [0, 1]
    assert "cuda:0 is GPU 1, cuda:1 is GPU 3" in job.cli("status", job.name).stdout
    assert status["ranks"][0]["gpu_util_percent"] == 97
    assert status["imbalance"]["memory"] == pytest.approx(36 / 27 - 1)
    shown = json.loads(ddptop_cli("gpus", "--json").stdout)["gpus"]
    assert shown[3]["processes"][0]["job"] == job.name
    assert shown[3]["processes"][0]["rank"] == 1
    listed = json.loads(ddptop_cli("ls", "--json").stdout)["jobs"]
    assert [rank["gpu"] for rank in listed[0]["ranks"]] == [1, 3]
    stub.lose(3)
    wait_until(lambda: job.status()["gpus"][1]["lost"], what="the loss of a device")
    assert job.status()["gpus"][1]["util_percent"] is None
    assert "gpu-lost" in {alert["id"] for alert in job.status()["alerts"]}
    assert job.events("gpu_lost")[0]["message"] == "GPU 3 is lost"
    assert job.status()["state"] in ("starting", "running")
    job.cli("kill", job.name)
    over = job.events("alert_over")[-1]["message"]
    assert over.startswith("still active when the job ended: ") and "GPU 3 is lost" in over
