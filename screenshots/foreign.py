"""Takes the pictures of training that ddptop did not start: `python screenshots/foreign.py`.

Two real torchrun jobs run on CPUs; the stand-in driver of the tests says that they hold eight
devices. On one job three ranks hold a little on the first rank's device, as happens without
torch.cuda.set_device. Takes about a minute and leaves nothing running.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from ddptop.tui.app import DdptopApp
from world import GIB, SIZE, StubDriver, StubProcess, only, press, without_fonts, write

MIB = 1 << 20
RANKS = 4
WATCHED_S = 22.0

TRAINING = """
import sys, time, torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
for step in range(100_000):
    data = torch.randn(32, 64)
    loss = cross_entropy(model(data), (data.sum(1) > 0).long())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    time.sleep(0.15)
"""


def start(work: Path, name: str, rate: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A torchrun as a person starts it, with its output in a file."""
    (work / name).write_text(TRAINING, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", name, "--lr", rate]
    with (work / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=work, env=env, stdout=log, stderr=log, start_new_session=True
        )


def ranks_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    """Pids of its ranks in order, once all are there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = {
            int(child.environ()["RANK"]): child.pid
            for child in psutil.Process(launcher.pid).children()
            if "RANK" in child.environ()
        }
        if len(found) == RANKS:
            return [found[rank] for rank in sorted(found)]
        time.sleep(0.2)
    raise SystemExit("torchrun did not start its ranks")


def hold(driver: StubDriver, even: Sequence[int], uneven: Sequence[int]) -> None:
    """Let the driver say who holds which device, and how they work."""
    chance = random.Random(7)
    with driver.together():
        for index, pid in enumerate([*even, *uneven]):
            gpu = driver.gpu(index)
            used = int((61.2 if index < RANKS else 47.5) * GIB)
            gpu.processes = [StubProcess(pid, used, sm_util=96)]
            if index == RANKS:
                gpu.processes += [StubProcess(pid, 514 * MIB, sm_util=0) for pid in uneven[1:]]
            gpu.mem_used = sum(process.mem_bytes or 0 for process in gpu.processes)
            gpu.util = chance.randint(94, 99)
            gpu.power_mw = chance.randint(596_000, 655_000)
            gpu.temperature = chance.randint(58, 67)


async def take(name: str, title: str, *keys: str) -> None:
    """One picture of the overview, after `keys`."""
    app = DdptopApp(readonly=True)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(3.0)
        await press(pilot, keys)
        await pilot.pause(WATCHED_S)
        svg = without_fonts(app.export_screenshot(title=title))
    write(name, svg)


async def take_all() -> None:
    """All pictures, one after the other."""
    await take("foreign", "ddptop --readonly")
    await take("watch", "ddptop watch --readonly", "enter")


def main() -> None:
    """Start the jobs and the driver, and take the pictures in a program that finds both."""
    if len(sys.argv) > 1:
        only([int(pid) for pid in sys.argv[1:]])
        asyncio.run(take_all())
        return
    with tempfile.TemporaryDirectory(prefix="ddptop-shots-") as folder:
        work = Path(folder)
        driver = StubDriver(work, 2 * RANKS)
        env = driver.env({**os.environ, "OMP_NUM_THREADS": "1"}, log=False)
        env["DDPTOP_HOME"] = str(work / "state")
        launchers = [start(work, name, rate, env) for name, rate in JOBS]
        try:
            even, uneven = (ranks_of(launcher) for launcher in launchers)
            hold(driver, even, uneven)
            pids = [str(launcher.pid) for launcher in launchers]
            subprocess.run([sys.executable, __file__, *pids], env=env, check=True)
        finally:
            for launcher in launchers:
                launcher.terminate()
            for launcher in launchers:
                launcher.wait()


JOBS = (("pretrain.py", "0.05"), ("finetune.py", "0.01"))

if __name__ == "__main__":
    main()
