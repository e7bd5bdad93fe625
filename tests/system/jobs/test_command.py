"""`ddptop launch -- COMMAND`: another launcher, the ranks that it starts, and their failures."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from tests.support.command_jobs import gone, launcher_of, pids_of, steps_of
from tests.support.real_jobs import MEETING

from ddptop_runner.host import tree

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

TRAINER = '''
"""Ranks of torchrun's that need no torch themselves."""
import os, sys, time
import ddptop
from meeting import Meeting

rank, meeting = int(os.environ["RANK"]), Meeting()
for step in range(1, 100_000):
    meeting.meet()
    ddptop.report(loss=1 / step)
    print(f"rank {rank} step {step}", flush=True)
    if rank == 1 and os.path.exists(sys.argv[1]):
        raise ValueError(f"no more data, says {rank}")
    time.sleep(0.03)
'''


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    """A training script and its argument; it fails once that file exists."""
    shutil.copy(MEETING, tmp_path)
    (tmp_path / "train.py").write_text(TRAINER)
    return [str(tmp_path / "train.py"), str(tmp_path / "fail")]


def test_torchrun_survives_ddptops_processes_and_restarts_its_own_ranks(
    launch_command, script, wait_until
):
    job = launch_command([*TORCHRUN, "--max-restarts", "1", *script])
    wait_until(job.trains, what="both ranks to train")
    status, pids = job.status(), pids_of(job)
    assert (status["world_size"], [rank["rank"] for rank in status["ranks"]]) == (2, [0, 1])
    assert {rank["loss_source"] for rank in status["ranks"]} == {"api"}
    launcher = launcher_of(job)
    assert (launcher["name"], launcher["state"]) == ("torchrun", "running")
    assert tree.descends_from(pids[0], launcher["pid"])

    for role in ("supervisor", "agent"):  # ranks and launcher continue, and are discovered again
        os.kill(job.processes()[role], signal.SIGKILL)
        before = steps_of(job)
        wait_until(
            lambda before=before: min(steps_of(job), default=0) > max(before) + 5,
            what=f"progress after the death of the {role}",
        )
        assert (pids_of(job), launcher_of(job)["pid"]) == (pids, launcher["pid"])

    os.kill(pids[1], signal.SIGKILL)  # the launcher decides what to do
    wait_until(
        lambda: not set(pids_of(job)) & set(pids) and min(steps_of(job), default=0) > 3,
        what="the launcher's new ranks",
    )
    assert (job.status()["attempt"], launcher_of(job)["pid"]) == (0, launcher["pid"])
    told = [event for event in job.events("rank_exited") if event["pid"] == pids[1]]
    assert [(event["rank"], event["signal"]) for event in told] in ([(1, "SIGKILL")], [(1, None)])

    orphans = pids_of(job)
    os.kill(launcher["pid"], signal.SIGKILL)  # its ranks would keep training
    wait_until(lambda: job.trains(attempt=1), what="attempt 1")
    assert gone(orphans)
    assert job.status()["previous_cause"]["signal"] == "SIGKILL"

    pids = pids_of(job)
    Path(script[1]).touch()  # the launcher restarts its ranks once, and then gives up
    wait_until(lambda: job.status()["attempt"] == 2, what="attempt 2")
    Path(script[1]).unlink(missing_ok=True)
    cause = job.status()["previous_cause"] or job.status()["cause"]
    assert (cause["rank"], cause["exception"]) == (1, "ValueError")
    assert "no more data, says 1" in cause["summary"]
    assert gone(pids)

    wait_until(lambda: job.trains(attempt=2), what="attempt 2 to train")
    pids = [*pids_of(job), launcher_of(job)["pid"]]
    assert job.cli("stop", job.name).returncode == 0
    assert gone(pids)
    status = job.status()
    signal_name = status["ranks"][0]["signal"]  # unknown if torchrun reaps the rank first
    assert (status["state"], signal_name) in (("stopped", "SIGTERM"), ("stopped", None))
