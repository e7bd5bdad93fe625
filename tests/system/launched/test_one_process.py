"""Commands that are not launchers: two trainings at once, and one process on two devices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.command_jobs import gone
from tests.support.nvml_stub import NoCompilerError, StubDriver, StubGpu, StubProcess
from tests.support.nvml_stub.driver import GIB

pytestmark = [pytest.mark.torch, pytest.mark.tmux, pytest.mark.slow]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ddptop_home: Path) -> StubDriver:
    """Four idle devices."""
    (tmp_path / "nvml").mkdir()
    try:
        stub = StubDriver(tmp_path / "nvml", [StubGpu(index=i, mem_used=0) for i in range(4)])
    except NoCompilerError as error:
        pytest.skip(str(error))
    for name, value in stub.env().items():
        monkeypatch.setenv(name, value)
    return stub


def test_a_script_that_starts_two_trainings_at_once(start):
    """Each is a rank, numbered as it reports; the losses of its optimizers are separate."""
    wait = "until [ -s notes/gan.jsonl ]; do sleep 0.1; done"
    lines = f"{sys.executable} gan.py & {wait}; {sys.executable} lbfgs.py & wait"
    job = start("--gpus", "none", "--", "bash", "-c", lines)
    steps: set[int] = set()

    def compared() -> bool:
        gan, lbfgs = job.told(0, 1)
        note = job.note("gan", gan["loss_step"])
        assert (gan["pid"], gan["loss"]) == (note["pid"], pytest.approx(note["loss"], rel=1e-5))
        assert (gan["loss_parts"], gan["loss_is"]) == (2, "mean")
        assert {name.split()[0] for name in gan["losses"]} <= {"SGD", "Adam"}
        if len(gan["losses"]) == 2:
            makers = [v for name, v in gan["losses"].items() if name.startswith("Adam")]
            # between the two steps of an iteration, the generator's is that of the previous one
            near = [job.note("gan", gan["loss_step"] - i)["maker"] for i in (0, 1)]
            assert makers in [[pytest.approx(loss, rel=1e-5)] for loss in near]
        note = job.note("lbfgs", lbfgs["loss_step"])
        assert (lbfgs["pid"], lbfgs["loss"]) == (note["pid"], pytest.approx(note["loss"], rel=1e-5))
        assert note["closures"] > 1 and lbfgs["losses"] == {}
        steps.add(lbfgs["loss_step"])
        return len(steps) >= 3 and len(gan["losses"]) == 2

    job.wait_until(compared, what="three losses of each training")
    told = job.cli("status", job.name).stdout
    assert "losses SGD 1 " in told and "rank 0: " in told and "mean of 2 backward" in told
    pids = [row["pid"] for row in job.status()["ranks"]]
    assert job.cli("stop", job.name).returncode == 0
    assert gone(pids)


def test_one_process_on_two_devices(start, stub):
    """DataParallel, as a command and as ddptop's own only rank: both devices belong to its rank."""
    command = start("--gpus", "0,1", "--", sys.executable, "parallel.py")
    own = start("--gpus", "2,3", "--nproc", "1", "parallel.py")
    for job in (command, own):
        job.told(0)
    pids = [job.status()["ranks"][0]["pid"] for job in (command, own)]
    with stub.together():
        for index in range(4):
            held = StubProcess(pids[index // 2], (8 + index) * GIB)
            stub.set(index, mem_used=(9 + index) * GIB, processes=[held])
    for job, uuids, gib in ((command, (0, 1), 17), (own, (2, 3), 21)):
        expected = [f"GPU-{index:08x}" for index in uuids]
        job.wait_until(
            lambda job=job, gib=gib: job.status()["ranks"][0]["gpu_mem_used_bytes"] == gib * GIB,
            what="the memory of both devices",
        )
        [row] = job.status()["ranks"]
        assert [uuid[:12] for uuid in row["gpus"]] == expected
        assert (row["loss_source"], row["state"]) == ("probe", "running")
        assert job.cli("kill", job.name).returncode == 0
    assert gone(pids)
