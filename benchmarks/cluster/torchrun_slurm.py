"""How torchrun in a Slurm batch script handles the faults of test_slurm_jobs.py.

    python -m benchmarks.cluster.torchrun_slurm [--runs 5] [--only NAME]

The training is ddp.py on two nodes, submitted with and without `sbatch --requeue`. A run passes
when both ranks train again; it fails when Slurm has ended the job, or after four minutes.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Callable

from benchmarks.cluster.torchrun import CLEAN, PORT
from benchmarks.cluster.torchrun_faults import BOTH, starts
from tests.support.cluster.machines import running_network
from tests.support.cluster.slurm import Slurm, running_slurm
from tests.support.cluster.training import Trainer

PATIENCE_S = 240.0
START_S = 120.0
LIVES = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED")
BATCH = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
srun {python} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 10 \
--rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:{port}" {command}
"""
Fault = Callable[[Slurm, str], None]


def requeued(slurm: Slurm, job: str) -> None:
    slurm.requeue(job)


def preempted(slurm: Slurm, job: str) -> None:
    nodes = str(len(slurm.network.hosts))
    command = ["sbatch", "-N", nodes, "--exclusive", "-p", "high", "-o", "/dev/null"]
    slurm.run(*command, "--wrap", "sleep 1")


def node_down(slurm: Slurm, job: str) -> None:
    slurm.network.hosts["h2"].die()


def time_limit(slurm: Slurm, job: str) -> None:
    """The job has a time limit of a minute."""


FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "scontrol requeue": (requeued, ()),
    "preemption": (preempted, ()),
    "node DOWN": (node_down, ()),
    "time limit": (time_limit, ("--time=1",)),
}


def one(slurm: Slurm, name: str, requeue: str) -> float | None:
    """Seconds from the fault or the time limit until both ranks have taken a step."""
    fault, options = FAULTS[name]
    folder = slurm.network.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = f"{Trainer(folder).ddp} {folder}"
    script = BATCH.format(python=sys.executable, port=PORT, command=command)
    job = slurm.run(
        *["sbatch", "--parsable", "-N2", "--ntasks-per-node=1", "--exclusive", requeue, *options],
        *[f"--output={slurm.folder}/log/%j.out", "--wrap", script],
        **CLEAN,
        GLOO_SOCKET_IFNAME="eth0",
        DDP_TIMEOUT_S="8",
    )
    try:
        deadline = time.monotonic() + START_S
        while len(starts(folder, 0)) < len(BOTH):
            if time.monotonic() > deadline:
                raise SystemExit((slurm.folder / "log" / f"{job}.out").read_text()[-3000:])
            time.sleep(0.2)
        time.sleep(2)
        began = time.time()
        fault(slurm, job)
        at = began if fault is not time_limit else ended(slurm, job)
        settled = time.time() + 3  # steps under way at the fault do not count
        while time.time() < began + PATIENCE_S:
            found = starts(folder, settled)
            if len(found) == len(BOTH):
                return max(found.values()) - at
            if slurm.job_state(job) not in LIVES:
                return None
            time.sleep(0.5)
        return None
    finally:
        slurm.network.restore()
        slurm.restore()


def ended(slurm: Slurm, job: str) -> float:
    """When the job was no longer running."""
    while slurm.job_state(job) == "RUNNING":
        time.sleep(0.5)
    return time.time()


def main() -> None:
    """Run each fault, and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only")
    options = parser.parse_args()
    for network in running_network():
        for slurm in running_slurm(network):
            measure(slurm, list(FAULTS) if options.only is None else [options.only], options.runs)


def measure(slurm: Slurm, names: list[str], runs: int) -> None:
    for name in names:
        for requeue in ("--no-requeue", "--requeue"):
            if name == "scontrol requeue" and requeue == "--no-requeue":
                continue  # Slurm refuses
            back: list[float] = []
            for number in range(1, runs + 1):
                if (took := one(slurm, name, requeue)) is not None:
                    back.append(took)
                median = f", {statistics.median(back):.1f} s" if back else ""
                print(f"{name}, {requeue}: {len(back)}/{number}{median}", flush=True)


if __name__ == "__main__":
    main()
