"""How torchrun handles the faults of test_faults.py and test_nodes_lost.py: one line each.

    python -m benchmarks.cluster.torchrun_faults [--runs 5] [--only NAME]

The training is ddp.py, on one rank per host and with a process group timeout of 8 s. A run passes
when both ranks, or the one that is left, train again within 60 s; the time is that from the fault
to the first step after it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.cluster.torchrun import Torchrun
from tests.support.cluster.machines import Network, running_network
from tests.support.cluster.training import Trainer

BOTH = ("h1", "h2")
PATIENCE_S = 60.0
Fault = Callable[[Network, Torchrun, Trainer], None]


def rank_killed(network: Network, job: Torchrun, trainer: Trainer) -> None:
    os.kill(job.ranks(network.hosts["h2"])[0], signal.SIGKILL)


def agent_killed(network: Network, job: Torchrun, trainer: Trainer) -> None:
    job.kill_agent(network.hosts["h2"])


def first_agent_killed(network: Network, job: Torchrun, trainer: Trainer) -> None:
    job.kill_agent(network.hosts["h1"])


def link_cut(network: Network, job: Torchrun, trainer: Trainer) -> None:
    network.hosts["h2"].cut()
    time.sleep(15)
    network.hosts["h2"].restore()


def node_back(network: Network, job: Torchrun, trainer: Trainer) -> None:
    node_lost(network, job, trainer)
    network.hosts["h2"].start()
    job.start_on(network.hosts["h2"])


def node_lost(network: Network, job: Torchrun, trainer: Trainer) -> None:
    network.hosts["h2"].die()


def hang(network: Network, job: Torchrun, trainer: Trainer) -> None:
    trainer.do(1, "skip")


FAULTS: dict[str, tuple[Fault, str, int]] = {
    "rank killed on the other node": (rank_killed, "2", 2),
    "agent killed on the other node": (agent_killed, "2", 2),
    "agent of the first node killed": (first_agent_killed, "2", 2),
    "cable of a node cut for 15 s": (link_cut, "2", 2),
    "node killed and back": (node_back, "2", 2),
    "node killed for good": (node_lost, "2", 1),
    "node killed for good, 1:2": (node_lost, "1:2", 1),
    "hang in a collective": (hang, "2", 2),
}
"""The fault, --nnodes, and how many ranks should train after it."""


def starts(folder: Path, since: float) -> dict[str, float]:
    """The time of each rank's latest step since then."""
    found: dict[str, float] = {}
    for file in folder.glob("losses-*.jsonl"):
        rank = file.stem.split("-")[2]
        for line in file.read_text().split("\n")[:-1]:
            if (at := json.loads(line)["at"]) > since:
                found[rank] = min(at, found.get(rank, at))
    return found


def one(network: Network, name: str) -> float | None:
    """Seconds from the fault until all ranks have taken a step; None if they have not."""
    fault, nnodes, left = FAULTS[name]
    folder = network.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    trainer = Trainer(folder)
    command = [str(trainer.ddp), str(folder)]
    log = network.folder / "torchrun.log"
    job = Torchrun(network, BOTH, command, log, nnodes, {"DDP_TIMEOUT_S": "8"})
    try:
        job.start()
        deadline = time.monotonic() + 120
        while len(starts(folder, 0)) < len(BOTH):
            if time.monotonic() > deadline:
                raise SystemExit(log.read_text()[-3000:])
            time.sleep(0.1)
        time.sleep(2)
        at = time.time()
        fault(network, job, trainer)
        # steps under way at the fault do not count: training that continues takes others as well
        settled = time.time() + 1
        while time.time() < settled + PATIENCE_S:
            found = starts(folder, settled)
            if len(found) >= left:
                return max(found.values()) - at
            time.sleep(0.1)
        return None
    finally:
        job.end()
        network.restore()


def main() -> None:
    """Run each fault, and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only")
    options = parser.parse_args()
    for network in running_network():
        for name in FAULTS if options.only is None else [options.only]:
            times = [one(network, name) for _ in range(options.runs)]
            back = [took for took in times if took is not None]
            median = f", {statistics.median(back):.1f} s" if back else ""
            print(f"{name}: {len(back)}/{len(times)}{median}", flush=True)


if __name__ == "__main__":
    main()
