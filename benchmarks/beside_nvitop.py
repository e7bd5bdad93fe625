"""Compare ddptop with nvitop on a stub NVML driver whose figures change every second.

    python benchmarks/beside_nvitop.py [--gpus 8] [--seconds 30] [--rounds 3]

Prints three ratios: the CPU time of the overview and its sampler, NVML queries per second, and the
wall time of one-shot output (`ddptop gpus` vs. `nvitop -1`). Runs of the two alternate. Both use
their default refresh rates, in a 120x40 pty. CPU time is measured with query logging off; queries
are counted in separate runs.
"""

from __future__ import annotations

import argparse
import compileall
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the stub driver in tests/

import ddptop
from common import Screen, cpu_s_of_tree
from tests.support.nvml_stub import StubDriver, StubProcess

import ddptop_runner

NVITOP = [sys.executable, "-m", "nvitop"]
DDPTOP = [sys.executable, "-m", "ddptop"]
WARM_UP_S = 8.0
PRINTS = 15


class Machine:
    """A stub driver whose figures change every second, and processes that occupy its devices."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.driver = StubDriver(folder, gpus)
        self._holders = [
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            for _ in range(gpus)
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._change, daemon=True)
        self._thread.start()

    def _change(self) -> None:
        rng = random.Random(1)
        while True:
            with self.driver.together():
                for gpu, holder in zip(self.driver.gpus, self._holders, strict=True):
                    gpu.util = rng.randint(85, 100)
                    gpu.mem_util = rng.randint(40, 60)
                    gpu.mem_used = (40 << 30) + rng.randrange(1 << 30)
                    gpu.power_mw = rng.randint(380_000, 640_000)
                    gpu.temperature = rng.randint(55, 66)
                    gpu.processes = [StubProcess(holder.pid, gpu.mem_used, sm_util=gpu.util)]
            if self._stop.wait(1.0):
                return

    def close(self) -> None:
        """Stop the driver's updates and kill the processes."""
        self._stop.set()
        self._thread.join()
        for holder in self._holders:
            holder.kill()
            holder.wait()


def watch(command: list[str], env: dict[str, str], seconds: float) -> tuple[float, float, int]:
    """Run a monitor; return its CPU in percent of a core, bytes written per second, and RSS."""
    screen = Screen(command, env)
    try:
        screen.drain(WARM_UP_S)
        before, began = cpu_s_of_tree(screen.pid), time.monotonic()
        drawn = screen.drain(seconds)
        elapsed = time.monotonic() - began
        percent = 100 * (cpu_s_of_tree(screen.pid) - before) / elapsed
        return percent, drawn / elapsed, screen.rss_bytes()
    finally:
        screen.close()


def queries(command: list[str], machine: Machine, env: dict[str, str], seconds: float) -> float:
    """Return a monitor's NVML calls per second, after the warm-up."""
    screen = Screen(command, machine.driver.env(env))
    try:
        screen.drain(WARM_UP_S)
        machine.driver.clear_calls()
        began = time.monotonic()
        screen.drain(seconds)
        return len(machine.driver.calls()) / (time.monotonic() - began)
    finally:
        screen.close()


def print_once(command: list[str], env: dict[str, str]) -> float:
    """Return the wall time of a command in seconds."""
    began = time.perf_counter()
    subprocess.run(command, env=env, capture_output=True, stdin=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Run all measurements and print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for package in (ddptop, ddptop_runner):  # as pip does on install, as for nvitop
        compileall.compile_dir(Path(package.__file__).parent, quiet=2)
    folder = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    base = {**os.environ, "DDPTOP_HOME": str(folder / "home"), "TERM": "xterm-256color"}
    machine = Machine(folder, options.gpus)
    env = machine.driver.env(base, log=False)
    tools = {"nvitop": NVITOP, "ddptop": DDPTOP}
    try:
        cpu: dict[str, list[float]] = {name: [] for name in tools}
        for _ in range(options.rounds):
            for name, command in tools.items():
                percent, drawn, rss = watch(command, env, options.seconds)
                cpu[name].append(percent)
                print(
                    f"  {name}: {percent:.2f} % of a core, {drawn / 1000:.1f} kB/s of output, "
                    f"{rss / 2**20:.0f} MiB"
                )
        per_s = {
            name: queries(command, machine, base, options.seconds)
            for name, command in tools.items()
        }
        once = {"nvitop": [*NVITOP, "-1"], "ddptop": [*DDPTOP, "gpus"]}
        wall: dict[str, list[float]] = {name: [] for name in once}
        for _ in range(PRINTS):
            for name, command in once.items():
                wall[name].append(print_once(command, env))
    finally:
        machine.close()
        shutil.rmtree(folder)
    mine, theirs = statistics.median(cpu["ddptop"]), statistics.median(cpu["nvitop"])
    print(
        f"CPU of the overview and its sampler: {mine:.2f} % of a core, nvitop {theirs:.2f} %, "
        f"ratio {mine / theirs:.2f} (limit: 1.5)"
    )
    print(
        f"NVML queries per second on {options.gpus} devices: {per_s['ddptop']:.1f}, "
        f"nvitop {per_s['nvitop']:.1f}, ratio {per_s['ddptop'] / per_s['nvitop']:.2f} (limit: 1)"
    )
    mine, theirs = statistics.median(wall["ddptop"]), statistics.median(wall["nvitop"])
    print(
        f"ddptop gpus: {mine:.3f} s, nvitop -1: {theirs:.3f} s, "
        f"ratio {mine / theirs:.2f} (limit: 1)"
    )


if __name__ == "__main__":
    main()
