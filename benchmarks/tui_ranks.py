"""Measure CPU, memory, and key latency with a job of 1,024 ranks.

    python benchmarks/tui_ranks.py [--ranks 1024] [--hosts 1] [--seconds 30] [--keys 50]

All figures of the job change every second. With --hosts 128, it is the merged job of a head with
128 nodes, and each rank has a device.

A separate process writes snapshots and history; its cost is not counted. A key moves the cursor;
its latency ends when the first bytes reach the pty. Keys are sent at random times within the
second, including during reads and frames.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from common import Screen, cpu_s_of_tree
from feed import JOB, Feed, Feeder

ALLOWED_PERCENT, ALLOWED_MIB, ALLOWED_KEY_S = 10.0, 200.0, 0.1
DOWN, UP = "\x1b[B", "\x1b[A"
QUIET_S = 0.05
"""An update has been drawn when there is no output for this long."""


def latencies(screen: Screen, count: int) -> list[float]:
    """Return the seconds from each key to the first bytes, sorted."""
    rng, times = random.Random(1), []
    for number in range(count):
        screen.drain(0.1 + rng.random() / 2)
        while screen.drain(QUIET_S):
            pass
        began = time.perf_counter()
        screen.type(DOWN if number // 8 % 2 == 0 else UP)
        screen.drain_until((b"\x1b",), 5.0)
        times.append(time.perf_counter() - began)
    return sorted(times)


def main() -> None:
    """Measure; exit with 1 if CPU, memory, or key latency exceeds its limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--history-s", type=int, default=3600)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--columns", type=int, default=120)
    parser.add_argument(
        "--screen", choices=["job", "overview", "devices", "logs", "story"], default="job"
    )
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    hosts = [f"node-{number:03}" for number in range(options.hosts)] if options.hosts > 1 else []
    gpus = options.ranks if hosts else options.gpus
    step_s = max(1, options.history_s * options.ranks // 60_000)
    feeder = Feeder(
        lambda: Feed(
            *(home, options.ranks, gpus),
            history_s=options.history_s,
            step_s=step_s,
            hosts=hosts,
        )
    )
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "ddptop"]
    command += [] if options.screen in ("overview", "devices") else ["attach", JOB]
    screen = Screen(command, env, rows=options.rows, columns=options.columns)
    try:
        began = time.monotonic()
        if screen.drain_until((JOB.encode(),), 30.0):
            raise SystemExit("the job did not appear within 30 s")
        first_s = time.monotonic() - began
        screen.drain(4.0)
        screen.type({"devices": "v", "logs": "l", "story": "e"}.get(options.screen, ""))
        screen.drain(8.0)
        before, began = cpu_s_of_tree(screen.pid), time.monotonic()
        received = screen.drain(options.seconds)
        elapsed = time.monotonic() - began
        percent = 100 * (cpu_s_of_tree(screen.pid) - before) / elapsed
        rss_mib = screen.rss_bytes() / 2**20
        times = latencies(screen, options.keys)
    finally:
        screen.close()
        feeder.close()
        shutil.rmtree(home)
    slow_s = times[min(len(times) - 1, int(0.95 * len(times)))]
    over = percent > ALLOWED_PERCENT or rss_mib > ALLOWED_MIB or slow_s > ALLOWED_KEY_S
    print(
        f"{options.screen}, {options.ranks} ranks at 1 Hz: shown after {first_s:.1f} s,"
        f" {percent:.1f} % of a core (limit:"
        f" {ALLOWED_PERCENT:.0f} %), {received / elapsed / 1000:.1f} kB/s,"
        f" RSS {rss_mib:.0f} MiB (limit: {ALLOWED_MIB:.0f} MiB)"
    )
    print(
        f"key latency: median {1000 * times[len(times) // 2]:.0f} ms, 95 % of {len(times)} within"
        f" {1000 * slow_s:.0f} ms (limit: {1000 * ALLOWED_KEY_S:.0f} ms), maximum"
        f" {1000 * times[-1]:.0f} ms{'  EXCEEDED' * over}"
    )
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(over)


if __name__ == "__main__":
    main()
