"""Measure CPU and memory of ddptop's processes with two ranks, and the wall time of its commands.

python benchmarks/own_cost.py [SECONDS]
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import psutil
from common import Home

COMMANDS = (("ls",), ("status", "cost"), ("gpus",))
COMMAND_RUNS = 15


def main(seconds: int = 60) -> None:
    """Measure a running job for `seconds`, then each command."""
    home = Home()
    stamp = str(home.path / "stamp")
    home.ddptop(
        *["launch", "-d", "--nproc", "2", "--name", "cost"],
        *[str(home.script), "1000000", "0.05", stamp],
    )
    while (home.status("cost")["step"] or 0) == 0:
        time.sleep(0.2)
    time.sleep(3)
    node = json.loads(next((home.path / "home/runs/cost/nodes").glob("*.json")).read_bytes())
    roles = {
        role: psutil.Process(node[role]["pid"]) for role in ("guardian", "supervisor", "agent")
    }
    for child in roles["supervisor"].children(recursive=True):
        roles[f"sampler {child.pid}"] = child
    for child in roles["agent"].children():
        if child.pid not in {rank["pid"] for rank in node["ranks"]}:
            roles["store keeper"] = child
    before = {role: sum(process.cpu_times()[:2]) for role, process in roles.items()}
    started = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    total = 0.0
    for role, process in roles.items():
        percent = 100 * (sum(process.cpu_times()[:2]) - before[role]) / elapsed
        total += percent
        print(
            f"  {role:14} {percent:5.2f} % of a core  {process.memory_info().rss / 2**20:6.0f} MiB"
        )
    print(f"ddptop with 2 ranks: {total:.2f} % of a core over {elapsed:.0f} s (limit: 2 %)")
    for command in COMMANDS:
        times = []
        for _ in range(COMMAND_RUNS):
            begun = time.perf_counter()
            home.ddptop(*command)
            times.append(time.perf_counter() - begun)
        print(
            f"ddptop {' '.join(command)}: median {statistics.median(times):.3f} s "
            f"({min(times):.3f} to {max(times):.3f}; limit: 0.15 s)"
        )
    home.ddptop("kill", "cost")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
