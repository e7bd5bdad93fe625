"""Commands whose probe reports nothing: their output counts."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from tests.support.command_jobs import gone
from tests.support.real_jobs import Job

pytestmark = [pytest.mark.torch, pytest.mark.tmux, pytest.mark.slow]


def printed_loss(rank: int, step: int) -> float:
    return 5 + rank - step / 4096


def shell_pid(job: Job) -> int:
    return int(job.status()["launcher"]["pid"])


def test_losses_come_from_what_is_printed(start):
    """A C++ backward pass, and no Python at all: the command is rank 0."""
    engine = start("--gpus", "none", "--", sys.executable, "engine.py", "4000")
    lines = 'i=0; while :; do i=$((i+1)); echo "step $i/4000 loss 0.5"; sleep 0.1; done'
    shell = start("--gpus", "none", "--", "sh", "-c", lines)

    [row] = engine.told(0)
    assert (row["loss_source"], row["step_source"]) == ("log", "log")
    assert row["loss"] == pytest.approx(printed_loss(0, row["loss_step"]), abs=1e-5)
    assert row["pid"] == engine.status()["launcher"]["pid"]

    # its supervisor dies, and what was read from its output is known again
    os.kill(engine.processes()["supervisor"], signal.SIGKILL)
    engine.wait_until(
        lambda: (engine.told(0)[0]["step"] or 0) > row["step"] + 20,
        what="losses after the supervisor's death",
    )
    assert engine.told(0)[0]["pid"] == row["pid"]

    [row] = shell.told(0)
    assert (row["loss"], row["loss_source"], row["pid"]) == (0.5, "log", shell_pid(shell))
    assert shell.status()["progress"]["total"] == 4000 and 0 < row["step"] < 4000
    pids = [row["pid"], shell_pid(shell)]
    for job in (engine, shell):
        job.wait_until(lambda job=job: job.status()["progress"]["eta_s"], what="the time left")
        assert job.status()["progress"]["source"] == "log"
        assert job.cli("stop", job.name).returncode == 0
    assert gone(pids)
