"""`ddptop launch -- COMMAND`: another launcher, and its ranks as they appear."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import Job

from ddptop_runner import procs

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def launch_command(ddptop_cli) -> Callable[..., Job]:
    """`launch_command(argv, *options)` starts a command, detached."""

    def start(argv: list[str], *options: str) -> Job:
        answer = ddptop_cli("launch", "-d", *options, "--", *argv)
        assert answer.returncode == 0, answer.stderr
        return Job(answer.stdout.strip(), ddptop_cli)

    return start


def test_torchrun_its_ranks_and_its_end(launch_command, trainer, wait_until):
    script = [str(trainer / "train.py"), "10000", "0.03", str(trainer)]
    job = launch_command([*TORCHRUN, *script])
    wait_until(job.trains, what="both ranks to train")
    status = job.status()
    assert (status["world_size"], [rank["rank"] for rank in status["ranks"]]) == (2, [0, 1])
    assert {rank["loss_source"] for rank in status["ranks"]} == {"probe"}
    pids = [rank["pid"] for rank in status["ranks"]]
    assert "rank 1 attempt 0 step" in Path(job.folder(), "logs/attempt-0/launcher.log").read_text()
    assert job.cli("stop", job.name).returncode == 0
    assert [pid for pid in pids if procs.state_letter(pid) not in (None, "Z")] == []
    assert job.status()["state"] == "stopped"
