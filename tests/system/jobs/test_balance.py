"""Findings about the balance of a real job, from the driver to the status and the events."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.nvml_stub import NoCompilerError, StubDriver, StubGpu, StubProcess
from tests.support.nvml_stub.driver import GIB

pytestmark = [pytest.mark.torch, pytest.mark.tmux]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ddptop_home: Path) -> StubDriver:
    """Two devices."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    try:
        stub = StubDriver(folder, [StubGpu(index=index, mem_used=0) for index in range(2)])
    except NoCompilerError as error:
        pytest.skip(str(error))
    for name, value in stub.env().items():
        monkeypatch.setenv(name, value)
    return stub


STRANGER = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    library = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
time.sleep(600)
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[int]:
    """The PID of a process outside the job that has CUDA's library mapped."""
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(b"not CUDA")
    with subprocess.Popen([sys.executable, "-c", STRANGER, str(library)]) as process:
        yield process.pid
        process.kill()


def test_stray_contexts_and_other_processes_raise_alerts_with_evidence(
    stub, stranger, launch_script, wait_until
):
    job = launch_script("import time\ntime.sleep(600)\n", "--gpus", "0,1")
    wait_until(lambda: job.rank(1)["pid"], what="the ranks")
    pids = [job.rank(rank)["pid"] for rank in range(2)]
    with stub.together():
        for rank in range(2):
            stub.set_processes(rank, [StubProcess(pids[rank], 30 * GIB)])
    wait_until(lambda: job.rank(1)["gpu_mem_used_bytes"], what="the ranks on their devices")
    assert job.status()["alerts"] == []
    with stub.together():
        stub.set_processes(0, [StubProcess(pids[0], 30 * GIB), StubProcess(pids[1], GIB // 2)])
        stub.set_processes(1, [StubProcess(pids[1], 30 * GIB), StubProcess(stranger, 9 * GIB)])
    wait_until(lambda: len(job.status()["alerts"]) == 2, what="both alerts")
    alerts = {alert["id"]: alert for alert in job.status()["alerts"]}
    stray = alerts["stray-context-0"]
    assert (stray["severity"], stray["ranks"], stray["gpus"]) == ("warning", [1], [0])
    assert stray["message"].startswith("rank 1 uses 512 MiB on GPU 0, which belongs to rank")
    other = alerts["other-process-1"]
    assert (other["ranks"], other["gpus"]) == ([1], [1])
    assert other["message"].startswith(f"pid {stranger} (")
    assert "not part of this job, uses 9.0 GiB on GPU 1 (rank 1)" in other["message"]
    wait_until(lambda: len(job.events("alert")) == 2, what="both events")
    told = {event["message"] for event in job.events("alert")}
    assert told == {stray["message"], other["message"]}
    job.cli("kill", job.name)
