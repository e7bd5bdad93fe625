"""Two hours of watching, accelerated: whether sampler and viewer keep their memory.

    python benchmarks/soak.py [--ticks 7200] [--gpus 8] [sampler | viewer]

Devices are lost and come back, and processes come and go, all the while. The sampler's own report
is made with a clock that jumps a second per tick; the viewer is the real one in a pty, looking as
fast as it can. Memory after the first 600 ticks is compared with the most of all later ones.
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

sys.path.insert(0, str(Path(__file__).parents[1]))  # the stand-in driver belongs to the tests

from common import Screen
from tests.nvml_stub import StubDriver, StubProcess

SETTLED_AFTER = 600
ALLOWED_BYTES = 5 << 20

SAMPLER = """
import sys
from ddptop_runner.devices import sampler
from ddptop_runner.devices.sampler import open_backend
from ddptop_runner.model.snapshot import encode
now_s = [1000.0]
sampler.boottime_s = lambda: now_s[0]
backend, cost = open_backend(None), sampler.Cost()
for line in sys.stdin:
    now_s[0] += 1.0
    report = sampler.report(backend, cost)
    encode(report)
    print(len(report.gpus), flush=True)
"""

VIEWER = """
import sys
from ddptop.tui import sources
from ddptop.tui.app import DdptopApp
from ddptop_runner.devices.feed import DeviceFeed
sources.DeviceFeed = lambda *a, **k: DeviceFeed(*a, **{**k, "interval_s": 0.1})
counted = open(sys.argv[1], "ab", 0)
class Counting(DdptopApp):
    def on_snapshot_ready(self, message):
        super().on_snapshot_ready(message)
        counted.write(b".")
app = Counting(tick_s=0.02)
app.run()
"""


class Weather:
    """Changes a stand-in driver: figures each time, devices and processes now and then."""

    def __init__(self, driver: StubDriver) -> None:
        self._driver = driver
        self._chance = random.Random(1)
        self._processes: list[subprocess.Popen[bytes]] = []

    def change(self) -> None:
        """One more second has passed."""
        chance = self._chance
        if chance.random() < 0.2 and len(self._processes) < 12:
            self._processes.append(
                subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
            )
        elif chance.random() < 0.2 and self._processes:
            self._end(self._processes.pop(chance.randrange(len(self._processes))))
        with self._driver.together():
            for gpu in self._driver.gpus:
                if chance.random() < 0.01:
                    gpu.lost = 1 - gpu.lost
                if chance.random() < 0.01:
                    self._driver.raise_xid(gpu.index, chance.choice([31, 48, 79, 94]))
                    del gpu.xids[:-4]
                gpu.util = chance.randint(0, 100)
                gpu.mem_used = chance.randrange(70 << 30)
                gpu.power_mw = chance.randint(90_000, 690_000)
                gpu.processes = [
                    StubProcess(process.pid, chance.randrange(1 << 30), sm_util=gpu.util)
                    for process in self._processes
                    if chance.random() < 0.4
                ]

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def close(self) -> None:
        """End what was started."""
        for process in self._processes:
            self._end(process)


def rss_bytes(pid: int) -> int:
    """Resident memory of one process."""
    return int(psutil.Process(pid).memory_info().rss)


def verdict(name: str, ticks: int, settled: int, end: int, most: int) -> bool:
    """Print one line; whether memory stayed within what is allowed."""
    held = max(end, most) - settled <= ALLOWED_BYTES
    print(
        f"{name}: {ticks} ticks, RSS {settled / 2**20:.1f} MiB after {SETTLED_AFTER}, "
        f"{end / 2**20:.1f} MiB at the end, {most / 2**20:.1f} MiB at most "
        f"(allowed: +{ALLOWED_BYTES / 2**20:.0f} MiB){'' if held else '  NOT HELD'}",
        flush=True,
    )
    return held


def soak_sampler(driver: StubDriver, weather: Weather, ticks: int) -> bool:
    """Tick the sampler's own report loop."""
    settled = most = 0
    with subprocess.Popen(
        [sys.executable, "-c", SAMPLER],
        env=driver.env(log=False),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        for tick in range(1, ticks + 1):
            weather.change()
            child.stdin.write(b"\n")
            child.stdin.flush()
            if int(child.stdout.readline() or -1) != len(driver.gpus):
                raise SystemExit(f"the sampler ended, or misses a device, at tick {tick}")
            if tick == SETTLED_AFTER:
                settled = rss_bytes(child.pid)
            elif tick > SETTLED_AFTER and tick % 50 == 0:
                most = max(most, rss_bytes(child.pid))
        end = rss_bytes(child.pid)
        child.stdin.close()
    return verdict("sampler", ticks, settled, end, most)


def soak_viewer(driver: StubDriver, weather: Weather, ticks: int, folder: Path) -> bool:
    """Run the overview in a pty until it has taken so many looks."""
    counted = folder / "looks"
    env = {**driver.env(log=False), "DDPTOP_HOME": str(folder / "home"), "TERM": "xterm-256color"}
    screen = Screen([sys.executable, "-c", VIEWER, str(counted)], env)
    settled = most = looks = 0
    began = time.monotonic()
    try:
        while looks < ticks:
            weather.change()
            screen.drain(0.1)
            looks = counted.stat().st_size if counted.exists() else 0
            if looks >= SETTLED_AFTER and not settled:
                settled = rss_bytes(screen.pid)
            elif settled:
                most = max(most, rss_bytes(screen.pid))
        end = rss_bytes(screen.pid)
    finally:
        screen.close()
    print(f"  {looks} looks in {time.monotonic() - began:.0f} s", flush=True)
    return verdict("viewer", looks, settled, end, most)


def main() -> None:
    """Soak one or both; exit status 1 when memory was not held."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("sampler", "viewer"))
    parser.add_argument("--ticks", type=int, default=7200)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    driver = StubDriver(folder, options.gpus)
    weather = Weather(driver)
    os.environ["PYTHONWARNINGS"] = "error"
    try:
        held = options.what == "viewer" or soak_sampler(driver, weather, options.ticks)
        if options.what != "sampler":
            held = soak_viewer(driver, weather, options.ticks, folder) and held
    finally:
        weather.close()
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
