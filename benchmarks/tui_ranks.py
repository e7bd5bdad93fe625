"""A job of 1,024 ranks, every figure of which changes once a second: CPU, and how keys answer.

    python benchmarks/tui_ranks.py [--ranks 1024] [--hosts 1] [--seconds 30] [--keys 50]

With --hosts 128 the job is the head's merged one of 128 machines, and each rank has a device.

Snapshots and history are written by a process of its own, whose cost is not counted. A key moves
the cursor; it is answered when the first bytes reach the pty. Keys come at any moment of the
second, in the middle of a look and a frame too.
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
"""What is drawn for a second's figures has ended when nothing came for so long."""


def answers(screen: Screen, count: int) -> list[float]:
    """Seconds from a key to the first bytes, sorted."""
    chance, times = random.Random(1), []
    for number in range(count):
        screen.drain(0.1 + chance.random() / 2)
        while screen.drain(QUIET_S):
            pass
        began = time.perf_counter()
        screen.type(DOWN if number // 8 % 2 == 0 else UP)
        screen.drain_until((b"\x1b",), 5.0)
        times.append(time.perf_counter() - began)
    return sorted(times)


def main() -> None:
    """Measure and print; exit status 1 where more is used than is allowed."""
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
            raise SystemExit("the job was never drawn")
        first_s = time.monotonic() - began
        screen.drain(4.0)
        screen.type({"devices": "v", "logs": "l", "story": "e"}.get(options.screen, ""))
        screen.drain(8.0)
        before, began = cpu_s_of_tree(screen.pid), time.monotonic()
        received = screen.drain(options.seconds)
        elapsed = time.monotonic() - began
        percent = 100 * (cpu_s_of_tree(screen.pid) - before) / elapsed
        rss_mib = screen.rss_bytes() / 2**20
        times = answers(screen, options.keys)
    finally:
        screen.close()
        feeder.close()
        shutil.rmtree(home)
    slow_s = times[min(len(times) - 1, int(0.95 * len(times)))]
    over = percent > ALLOWED_PERCENT or rss_mib > ALLOWED_MIB or slow_s > ALLOWED_KEY_S
    print(
        f"{options.screen}, {options.ranks} ranks at 1 Hz: first seen after {first_s:.1f} s,"
        f" {percent:.1f} % of a core (allowed:"
        f" {ALLOWED_PERCENT:.0f} %), {received / elapsed / 1000:.1f} kB/s,"
        f" RSS {rss_mib:.0f} MiB (allowed: {ALLOWED_MIB:.0f} MiB)"
    )
    print(
        f"a key is answered in {1000 * times[len(times) // 2]:.0f} ms, 95 % of {len(times)} in"
        f" {1000 * slow_s:.0f} ms (allowed: {1000 * ALLOWED_KEY_S:.0f} ms), the slowest in"
        f" {1000 * times[-1]:.0f} ms{'  NOT HELD' * over}"
    )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(over)


if __name__ == "__main__":
    main()
