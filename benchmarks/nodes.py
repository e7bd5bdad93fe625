"""Compare jobs on two hosts under ddptop and under torchrun, in alternating runs.

    python benchmarks/nodes.py [--runs 5] [--seconds 20]

The hosts are network namespaces of this machine, which require root (tests/support/cluster).
Measures the time from the command to the first step that all ranks have taken; the time from
`kill -9` of the rank on the second host to the next such step; and the traffic on the link of
each host with no viewer open and a script that itself sends nothing. torchrun runs with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it does not recover.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cluster.torchrun import Torchrun  # noqa: E402
from tests.support.cluster.machines import Head, Network, running_network  # noqa: E402

SCRIPTS = ROOT / "tests/support/cluster/scripts"
NAMES = ("h1", "h2")
STEP_TIMEOUT_S = 90.0
SETTLE_S = 1.0
LATER_S = 1.0
"""How much later than torchrun ddptop may take its first step, in seconds."""


def first_steps(folder: Path, since: float) -> float | None:
    """Return when the slower rank took the first step of an attempt after `since`, if both have.

    Attempts are not compared, because torchrun counts restarts per host.
    """
    found: dict[str, float] = {}
    for file in folder.glob("losses-*.jsonl"):
        for line in file.read_text().split("\n")[:-1]:
            step = json.loads(line)
            if step["is_first"] and step["at"] > since:
                found[file.stem.split("-")[2]] = step["at"]
    return max(found.values()) if len(found) == len(NAMES) else None


def wait_for(condition: Callable[[], float | None], what: str) -> float:
    """Return the first result of `condition` that is not None."""
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while (answer := condition()) is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {STEP_TIMEOUT_S:g} s waiting for {what}")
        time.sleep(0.02)
    return answer


def one_run(
    network: Network, folder: Path, start: Callable[[Path], None], end: Callable[[], None]
) -> tuple[float, float]:
    """Return the seconds from the command to the first step, and from `kill -9` to the next."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    began = time.time()
    try:
        start(folder)
        launch_s = wait_for(lambda: first_steps(folder, began), "the first step") - began
        time.sleep(SETTLE_S)
        killed = time.time()
        os.kill(network.hosts["h2"].of("rank")[0], signal.SIGKILL)
        restart_s = wait_for(lambda: first_steps(folder, killed), "a step after kill -9") - killed
    finally:
        end()
    return launch_s, restart_s


def compare(network: Network, head: Head, runs: int) -> dict[str, list[tuple[float, float]]]:
    """Run torchrun and ddptop alternately; return the times of each."""
    script = str(SCRIPTS / "ddp.py")
    folder = network.folder / "run"
    times: dict[str, list[tuple[float, float]]] = {"torchrun": [], "ddptop": []}

    def launch(folder: Path) -> None:
        launched = head.cli(
            *["launch", "-d", "--hosts", ",".join(NAMES), "--nproc", "1", "--gpus", "none"],
            *["--name", "bench", script, str(folder)],
        )
        if launched.returncode:
            raise SystemExit(launched.stderr)

    def stop() -> None:
        head.cli("kill", "bench")
        head.cli("rm", "bench")

    for number in range(runs):
        job = Torchrun(network, NAMES, [script, str(folder)], network.folder / "torchrun.log")
        launchers = {
            "torchrun": lambda job=job: one_run(network, folder, lambda _: job.start(), job.end),
            "ddptop": lambda: one_run(network, folder, launch, stop),
        }
        for name in sorted(launchers, reverse=number % 2 == 0):
            times[name].append(launchers[name]())
            print(f"{name}: {times[name][-1][0]:.2f} s, {times[name][-1][1]:.2f} s", flush=True)
    return times


def traffic(network: Network, head: Head, seconds: float) -> dict[str, float]:
    """Return the bytes per second on the link of each host."""
    folder = network.folder / "alone"
    folder.mkdir()
    launched = head.cli(
        *["launch", "-d", "--hosts", ",".join(NAMES), "--nproc", "2", "--gpus", "none"],
        *["--name", "quiet", str(SCRIPTS / "steps.py"), str(folder), "--alone"],
    )
    if launched.returncode:
        raise SystemExit(launched.stderr)
    wait_for(lambda: 1.0 if len(list(folder.glob("losses-0-*"))) == 4 else None, "steps")
    time.sleep(3 * SETTLE_S)
    before = {name: network.hosts[name].traffic_bytes() for name in NAMES}
    began = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    rates = {name: (network.hosts[name].traffic_bytes() - before[name]) / took_s for name in NAMES}
    head.cli("kill", "quiet")
    return rates


def main() -> int:
    """Print the medians; exit with 1 if ddptop is slower than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for network in running_network():
        head = Head(network, network.folder / "head")
        try:
            times = compare(network, head, options.runs)
            rates = traffic(network, head, options.seconds)
        finally:
            head.end()
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in times.items()
    }
    for name, (launch_s, restart_s) in medians.items():
        print(f"{name}: command to first step {launch_s:.2f} s, kill -9 to step {restart_s:.2f} s")
    print("; ".join(f"link of {name}: {rate:.0f} bytes/s" for name, rate in rates.items()))
    ours, theirs = medians["ddptop"], medians["torchrun"]
    return int(ours[0] > theirs[0] + LATER_S or ours[1] > theirs[1])


if __name__ == "__main__":
    sys.exit(main())
