"""Commands without a probe: their output, and the rank that it belongs to."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from tests.e2e.command_jobs import gone
from tests.e2e.conftest import Job

from ddptop_runner.host import procs

pytestmark = [pytest.mark.torch, pytest.mark.tmux, pytest.mark.slow]


def printed_loss(rank: int, step: int) -> float:
    return 5 + rank - step / 4096


def shell_pid(job: Job) -> int:
    return int(job.status()["launcher"]["pid"])


def test_losses_come_from_what_is_printed(start):
    """A C++ backward pass, interpreters without site packages' hooks, and no Python at all."""
    engine = start("--gpus", "none", "--", sys.executable, "engine.py", "4000")
    isolated = start("--gpus", "none", "--", sys.executable, "-I", "printing_spawn.py")
    lines = 'i=0; while :; do i=$((i+1)); echo "step $i/4000 loss 0.5"; sleep 0.1; done'
    shell = start("--gpus", "none", "--", "sh", "-c", lines)

    [row] = engine.told(0)
    assert (row["loss_source"], row["step_source"]) == ("log", "log")
    assert row["loss"] == pytest.approx(printed_loss(0, row["loss_step"]), abs=1e-5)
    assert row["pid"] == engine.status()["launcher"]["pid"]

    rows = isolated.told(0, 1)
    for row in rows:
        assert (row["loss_source"], row["step_source"]) == ("log", "log")
        assert row["loss"] == pytest.approx(printed_loss(row["rank"], row["loss_step"]), abs=1e-5)
        assert (row["has_probe"], row["state"]) == (False, "running")
    began = [procs.start_ticks(row["pid"]) or 0 for row in rows]  # PIDs wrap around some day
    assert 0 < began[0] <= began[1]
    launcher = isolated.status()["launcher"]
    assert launcher["name"] == "mp.spawn" and launcher["pid"] not in [row["pid"] for row in rows]
    assert "rank inferred from start order" in isolated.cli("status", isolated.name).stdout

    # its guardian dies, and what was read from its output is known again
    before = rows[1]["step"]
    os.kill(isolated.processes()["supervisor"], signal.SIGKILL)
    isolated.wait_until(
        lambda: (isolated.told(0, 1)[1]["step"] or 0) > before + 20,
        what="losses after the supervisor's death",
    )
    assert [row["pid"] for row in isolated.told(0, 1)] == [row["pid"] for row in rows]

    [row] = shell.told(0)
    assert (row["loss"], row["loss_source"], row["pid"]) == (0.5, "log", shell_pid(shell))
    assert shell.status()["progress"]["total"] == 4000 and 0 < row["step"] < 4000
    pids = [row["pid"] for row in rows] + [shell_pid(shell)]
    for job in (engine, isolated, shell):
        job.wait_until(lambda job=job: job.status()["progress"]["eta_s"], what="the time left")
        assert job.status()["progress"]["source"] == "log"
        assert job.cli("stop", job.name).returncode == 0
    assert gone(pids)
