"""Measure how long a frame takes with 64 devices and 512 processes on them.

    python benchmarks/many_devices.py [--gpus 64] [--processes 512] [--seconds 30]

The processes are real and look like ranks of jobs with eight ranks each; all device figures change
every second. A frame is the UI thread's work for one update: handling the answer, layout, and
drawing. Reading happens in another thread and is reported separately.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the stub driver in tests/

from common import Screen
from tests.support.nvml_stub import StubDriver, StubProcess

ALLOWED_S = 0.1
RANKS_PER_JOB = 8
SKIP = 5
"""Number of frames after the start that are not counted."""

VIEWER = """
import sys, time
from ddptop.tui.app import DdptopApp
from ddptop.sources.collector import Collector
log = open(sys.argv[1], "a", 1)
answer = Collector.answer
def timed(self, query):
    began = time.perf_counter()
    try:
        return answer(self, query)
    finally:
        log.write(f"read {time.perf_counter() - began}\\n")
Collector.answer = timed
class Timed(DdptopApp):
    def on_answered(self, message):
        began = time.perf_counter()
        super().on_answered(message)
        self.call_after_refresh(lambda: log.write(f"frame {time.perf_counter() - began}\\n"))
app = Timed()
app.run()
"""


def start_ranks(folder: Path, number: int) -> list[subprocess.Popen[bytes]]:
    """Start sleeping processes with the name, arguments, and environment of ranks."""
    python = folder / "python3"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", python)
    processes = []
    for index in range(number):
        job, rank = divmod(index, RANKS_PER_JOB)
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS_PER_JOB),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20_000 + job),
            "TORCHELASTIC_RUN_ID": f"job{job}",
        }
        processes.append(subprocess.Popen([str(python), "3600"], env=variables))
    return processes


def main() -> None:
    """Measure; exit with 1 if the median frame takes longer than ALLOWED_S."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--processes", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--keys", default="", help="keys to send before measuring")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    driver = StubDriver(folder, options.gpus)
    ranks = start_ranks(folder, options.processes)
    times_file = folder / "times"
    env = {**driver.env(log=False), "DDPTOP_HOME": str(folder / "home"), "TERM": "xterm-256color"}
    screen = Screen([sys.executable, "-c", VIEWER, str(times_file)], env, rows=60, columns=200)
    rng = random.Random(1)
    try:
        screen.drain(3.0)
        screen.type(options.keys)
        deadline = time.monotonic() + options.seconds
        while time.monotonic() < deadline:
            with driver.together():
                for gpu in driver.gpus:
                    gpu.util, gpu.power_mw = rng.randint(50, 100), rng.randint(1, 7) * 100_000
                    gpu.mem_used = rng.randrange(70 << 30)
                    gpu.processes = [
                        StubProcess(process.pid, rng.randrange(8 << 30), sm_util=10)
                        for process in ranks[gpu.index :: options.gpus]
                    ]
            screen.drain(1.0)
        lines = [line.split() for line in times_file.read_text(encoding="utf-8").splitlines()]
    finally:
        screen.close()
        for process in ranks:
            process.kill()
            process.wait()
        shutil.rmtree(folder)
    times = {
        kind: [float(value) for name, value in lines if name == kind][SKIP:]
        for kind in ("frame", "read")
    }
    for kind, values in times.items():
        print(
            f"{options.gpus} devices, {options.processes} processes: {kind} median "
            f"{1000 * statistics.median(values):.0f} ms, max {1000 * max(values):.0f} ms of "
            f"{len(values)}" + (f" (limit: {1000 * ALLOWED_S:.0f} ms)" * (kind == "frame"))
        )
    sys.exit(statistics.median(times["frame"]) > ALLOWED_S)


if __name__ == "__main__":
    main()
