"""Check that the memory of sampler and viewer stays flat, over two accelerated hours.

    python benchmarks/soak.py [--ticks 7200] [--gpus 8] [sampler | viewer]

Throughout, devices are lost and return, and processes start and exit. The sampler creates its
reports with a clock that advances one second per tick. The viewer runs in a pty and refreshes as
fast as it can. RSS after the first 600 ticks is compared with the maximum afterward.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the stub driver in tests/

from common import Screen
from tests.support.nvml_stub import StubDriver, StubProcess

SETTLED_AFTER = 600
ALLOWED_BYTES = 5 << 20

SAMPLER = """
import sys
from ddptop_runner.devices import sampler
from ddptop_runner.devices.sampler import open_backend
from ddptop_runner.model.snapshot import encode
now_s = [1000.0]
sampler.boottime_s = lambda: now_s[0]
backend = open_backend(None)
for line in sys.stdin:
    now_s[0] += 1.0
    report = sampler.report(backend)
    encode(report)
    print(len(report.gpus), flush=True)
"""

VIEWER = """
import sys
from ddptop.sources import devices
from ddptop.tui.app import DdptopApp
from ddptop_runner.devices.feed import DeviceFeed
devices.DeviceFeed = lambda *a, **k: DeviceFeed(*a, **{**k, "interval_s": 0.1})
counted = open(sys.argv[1], "ab", 0)
class Counting(DdptopApp):
    def on_answered(self, message):
        super().on_answered(message)
        counted.write(b".")
app = Counting(tick_s=0.02)
app.run()
"""


class Churn:
    """Change a stub driver: figures on every tick, devices and processes at random."""

    def __init__(self, driver: StubDriver) -> None:
        self._driver = driver
        self._rng = random.Random(1)
        self._processes: list[subprocess.Popen[bytes]] = []

    def tick(self) -> None:
        """Apply the changes of one second."""
        rng = self._rng
        if rng.random() < 0.2 and len(self._processes) < 12:
            self._processes.append(
                subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
            )
        elif rng.random() < 0.2 and self._processes:
            self._kill(self._processes.pop(rng.randrange(len(self._processes))))
        with self._driver.together():
            for gpu in self._driver.gpus:
                if rng.random() < 0.01:
                    gpu.lost = 1 - gpu.lost
                if rng.random() < 0.01:
                    self._driver.raise_xid(gpu.index, rng.choice([31, 48, 79, 94]))
                    del gpu.xids[:-4]
                gpu.util = rng.randint(0, 100)
                gpu.mem_used = rng.randrange(70 << 30)
                gpu.power_mw = rng.randint(90_000, 690_000)
                gpu.processes = [
                    StubProcess(process.pid, rng.randrange(1 << 30), sm_util=gpu.util)
                    for process in self._processes
                    if rng.random() < 0.4
                ]

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def close(self) -> None:
        """Kill the processes that are left."""
        for process in self._processes:
            self._kill(process)


def rss_bytes(pid: int) -> int:
    """Return the resident memory of one process."""
    return int(psutil.Process(pid).memory_info().rss)


def verdict(name: str, ticks: int, settled: int, end: int, most: int) -> bool:
    """Print the result; return whether memory growth stayed within ALLOWED_BYTES."""
    is_flat = max(end, most) - settled <= ALLOWED_BYTES
    print(
        f"{name}: {ticks} ticks, RSS {settled / 2**20:.1f} MiB after {SETTLED_AFTER}, "
        f"{end / 2**20:.1f} MiB at the end, maximum {most / 2**20:.1f} MiB "
        f"(limit: +{ALLOWED_BYTES / 2**20:.0f} MiB){'' if is_flat else '  EXCEEDED'}",
        flush=True,
    )
    return is_flat


def soak_sampler(driver: StubDriver, churn: Churn, ticks: int) -> bool:
    """Run the sampler's report loop for `ticks`."""
    settled = most = 0
    with subprocess.Popen(
        [sys.executable, "-c", SAMPLER],
        env=driver.env(log=False),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        for tick in range(1, ticks + 1):
            churn.tick()
            child.stdin.write(b"\n")
            child.stdin.flush()
            if int(child.stdout.readline() or -1) != len(driver.gpus):
                raise SystemExit(f"the sampler exited or lacks a device at tick {tick}")
            if tick == SETTLED_AFTER:
                settled = rss_bytes(child.pid)
            elif tick > SETTLED_AFTER and tick % 50 == 0:
                most = max(most, rss_bytes(child.pid))
        end = rss_bytes(child.pid)
        child.stdin.close()
    return verdict("sampler", ticks, settled, end, most)


def soak_viewer(driver: StubDriver, churn: Churn, ticks: int, folder: Path) -> bool:
    """Run the overview in a pty for `ticks` refreshes."""
    counted = folder / "refreshes"
    env = {**driver.env(log=False), "DDPTOP_HOME": str(folder / "home"), "TERM": "xterm-256color"}
    screen = Screen([sys.executable, "-c", VIEWER, str(counted)], env)
    settled = most = refreshes = 0
    began = time.monotonic()
    try:
        while refreshes < ticks:
            churn.tick()
            screen.drain(0.1)
            refreshes = counted.stat().st_size if counted.exists() else 0
            if refreshes >= SETTLED_AFTER and not settled:
                settled = rss_bytes(screen.pid)
            elif settled:
                most = max(most, rss_bytes(screen.pid))
        end = rss_bytes(screen.pid)
    finally:
        screen.close()
    print(f"  {refreshes} refreshes in {time.monotonic() - began:.0f} s", flush=True)
    return verdict("viewer", refreshes, settled, end, most)


def main() -> None:
    """Run one or both soaks; exit with 1 if memory grew beyond the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("sampler", "viewer"))
    parser.add_argument("--ticks", type=int, default=7200)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    driver = StubDriver(folder, options.gpus)
    churn = Churn(driver)
    os.environ["PYTHONWARNINGS"] = "error"
    try:
        is_flat = options.what == "viewer" or soak_sampler(driver, churn, options.ticks)
        if options.what != "sampler":
            is_flat = soak_viewer(driver, churn, options.ticks, folder) and is_flat
    finally:
        churn.close()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if is_flat else 1)


if __name__ == "__main__":
    main()
