"""Kill one rank again and again: how many restarts come up on the first try, and what is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from common import TORCHRUN, Home

STEP_TIMEOUT_S = 90.0
TRAINER = """
import os, sys, time, datetime
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100000):
    model(torch.randn(2, 4)).mean().backward()
    optimizer.step()
    if step == 3:
        open(f"{sys.argv[1]}/up-{attempt}-{rank}", "w").write(str(os.getpid()))
    time.sleep(0.02)
"""


def _pid_of_next(folder: Path, attempts: set[int]) -> tuple[int, int] | None:
    """(attempt, pid of rank 1) of an attempt that trains and was not seen yet."""
    for file in folder.glob("up-*-1"):
        attempt = int(re.findall(r"\d+", file.name)[0])
        text = file.read_text(encoding="utf-8")
        if attempt not in attempts and text and (folder / f"up-{attempt}-0").exists():
            return attempt, int(text)
    return None


def _kill_repeatedly(folder: Path, kills: int) -> tuple[int, int]:
    """(restarts that came up, attempts they took)."""
    seen: set[int] = set()
    for _ in range(kills + 1):
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while (found := _pid_of_next(folder, seen)) is None:
            if time.monotonic() > deadline:
                return len(seen) - 1, max(seen)
            time.sleep(0.02)
        attempt, pid = found
        seen.add(attempt)
        if len(seen) <= kills:
            os.kill(pid, signal.SIGKILL)
    return len(seen) - 1, max(seen)


def ddptop(home: Home, kills: int) -> None:
    """The same under ddptop."""
    folder = home.path / "ddptop"
    folder.mkdir()
    home.ddptop(
        *["launch", "-d", "--nproc", "2", "--name", "kills", "--max-restarts", str(kills)],
        *[str(home.path / "kill.py"), str(folder)],
    )
    started = time.monotonic()
    came_up, attempts = _kill_repeatedly(folder, kills)
    took_s = time.monotonic() - started
    status: dict[str, Any] = home.status("kills")
    spec = json.loads((home.path / "home/runs/kills/job.json").read_text(encoding="utf-8"))
    home.ddptop("kill", "kills")
    left = [p.pid for p in psutil.process_iter() if _job_of(p) == spec["job_id"]]
    print(
        f"ddptop: {kills} kills, {came_up} restarts came up in {attempts} attempts, "
        f"{status['restarts_used']} of the budget used, {took_s / kills:.1f} s each, "
        f"{len(left)} processes left"
    )


def _job_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("DDPTOP_JOB_ID")
    except psutil.Error:
        return None


def torchrun(home: Home, kills: int) -> None:
    """The same under torchrun, with the same budget."""
    folder = home.path / "torchrun"
    folder.mkdir()
    command = [*TORCHRUN, "--max-restarts", str(kills), str(home.path / "kill.py"), str(folder)]
    launcher = subprocess.Popen(
        command, env=home.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    started = time.monotonic()
    came_up, attempts = _kill_repeatedly(folder, kills)
    took_s = time.monotonic() - started
    alive = launcher.poll() is None
    ranks = psutil.Process(launcher.pid).children(recursive=True) if alive else []
    launcher.terminate()
    launcher.wait()
    _, left = psutil.wait_procs(ranks, timeout=40)
    for process in left:
        process.kill()
    print(
        f"torchrun: {kills} kills wanted, {came_up} restarts came up in {attempts} attempts, "
        f"{took_s / max(1, came_up):.1f} s each, launcher {'alive' if alive else 'dead'} at the end"
    )


def main(kills: int = 20) -> None:
    """ddptop, then torchrun."""
    home = Home()
    (home.path / "kill.py").write_text(TRAINER, encoding="utf-8")
    ddptop(home, kills)
    torchrun(home, kills)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
