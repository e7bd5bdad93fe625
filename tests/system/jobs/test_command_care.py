"""Features that a command gets like any job: stacks, saves, hang detection, restarts, grace."""

from __future__ import annotations

import os
import shutil
import signal
import sys

import pytest
from tests.support.command_jobs import gone, pids_of
from tests.support.real_jobs import DESCENT

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

SPAWNER = '''
"""Two forked ranks: torch is imported once. Saves if asked, stands still while a file is there."""
import os, signal, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from descent import Descent

def stand_still(path):
    while os.path.exists(path):
        time.sleep(0.05)

def train(rank, store, folder):
    def save(number, frame):
        time.sleep(1.0)
        torch.save({}, f"{folder}/{signal.Signals(number).name}-{rank}.pt")
        if number == signal.SIGTERM:
            sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGUSR1, save)
    dist.init_process_group("gloo", store, rank=rank, world_size=2)
    model = torch.nn.Linear(16, 1)
    optimizer = Descent(model)
    while True:
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.03)
        if rank == 1:
            stand_still(f"{folder}/stand-still")

if __name__ == "__main__":
    print("terminal", sys.stdout.isatty(), flush=True)
    store = f"file://{sys.argv[1]}/store-{os.getpid()}"
    mp.start_processes(train, (store, sys.argv[1]), nprocs=2, start_method="fork")
'''


@pytest.mark.gloo_records
def test_ranks_that_a_script_starts_get_all_features(launch_command, tmp_path, wait_until):
    shutil.copy(DESCENT, tmp_path)
    (tmp_path / "spawn.py").write_text(SPAWNER)
    argv = [sys.executable, str(tmp_path / "spawn.py"), str(tmp_path)]
    job = launch_command(argv, "--pty", "--hang-timeout", "6")
    wait_until(job.trains, what="both ranks to train")
    assert [rank["rank_source"] for rank in job.status()["ranks"]] == ["probe", "probe"]
    assert "terminal True" in job.cli("logs", job.name).stdout

    stacks = job.cli("stacks", job.name).stdout
    assert stacks.count("spawn.py") >= 2, stacks
    asked = job.cli("checkpoint", job.name)
    assert asked.returncode == 0, asked.stderr
    wait_until(lambda: (tmp_path / "SIGUSR1-1.pt").exists(), what="the save that was asked for")

    pids, guards = pids_of(job), job.processes()
    for role in ("guardian", "supervisor", "agent"):
        os.kill(guards[role], signal.SIGKILL)
    wait_until(lambda: gone(list(guards.values())), what="the guards' end")
    assert "ddptop: adopted " in job.cli("ls").stderr
    wait_until(lambda: job.processes().get("supervisor") != guards["supervisor"], what="a guard")
    before = job.status()["step"]
    wait_until(lambda: job.trains(step=before + 5), what="progress")
    assert pids_of(job) == pids

    (tmp_path / "stand-still").touch()
    wait_until(lambda: job.status()["attempt"] == 1, what="the end of the hang")
    (tmp_path / "stand-still").unlink()
    wait_until(lambda: job.trains(attempt=1), what="attempt 1")
    cause = job.status()["previous_cause"]
    assert (cause["kind"], cause["rank"]) == ("hang", 1), cause
    assert "stand_still" in cause["place"]
    assert gone(pids)

    pids = pids_of(job)
    assert job.cli("restart", job.name).returncode == 0
    wait_until(lambda: job.trains(attempt=2), what="attempt 2")
    assert gone(pids)
    assert job.status()["restarts_used"] <= 1

    for saved in tmp_path.glob("SIGTERM-*"):
        saved.unlink()
    assert job.cli("stop", job.name).returncode == 0
    assert sorted(path.name for path in tmp_path.glob("SIGTERM-*")) == [
        "SIGTERM-0.pt",
        "SIGTERM-1.pt",
    ]
    assert [rank["exit_code"] for rank in job.status()["ranks"]] == [0, 0]
