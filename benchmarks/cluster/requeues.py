"""How many steps a requeue costs a job that trains ddp.py on two Slurm nodes.

    python -m benchmarks.cluster.requeues [--runs 5] [--save-every 400] [--time-limit]

It is requeued by `scontrol requeue` at a random time, or by ddptop at a time limit of two
minutes. The steps lost are those that the next attempt takes again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import time

from tests.support.cluster.jobs import Job
from tests.support.cluster.machines import Head, running_network
from tests.support.cluster.slurm import Slurm, running_slurm
from tests.support.cluster.training import Trainer

PATIENCE_S = 400.0


def submitted(head: Head, slurm: Slurm, trainer: Trainer, save_every: int, *sbatch: str) -> Job:
    head.environment |= slurm.environment
    done = head.cli(
        *["launch", "--slurm", "--name", "job", "--nodes", "2", "--nproc", "1", "--gpus", "none"],
        *["--", f"--output={slurm.folder}/log/ddptop-%j.out", *sbatch],
        *[str(trainer.ddp), str(trainer.folder), "1000000", "0.02", str(save_every)],
    )
    assert done.returncode == 0, done.stderr
    return Job(head, "job", trainer)


def wait_for(job: Job, attempt: int, steps: int) -> None:
    """Wait until rank 0 has taken this many steps in that attempt."""
    deadline = time.monotonic() + PATIENCE_S
    while len(job.trainer.steps(attempt, 0)) < steps:
        if time.monotonic() > deadline:
            raise SystemExit(f"attempt {attempt} did not train: {job.status()}")
        time.sleep(0.5)


def measure(head: Head, slurm: Slurm, options: argparse.Namespace) -> None:
    folder = slurm.network.folder / "run"
    folder.mkdir()
    limit = ("--time=2", "--signal=B:USR1@50") if options.time_limit else ()
    job = submitted(head, slurm, Trainer(folder), options.save_every, *limit)
    number = slurm.run("squeue", "-h", "-o", "%A")
    lost, paused = [], []
    for attempt in range(options.runs):
        wait_for(job, attempt, 1 if options.time_limit else options.save_every + 1)
        if not options.time_limit:
            time.sleep(random.uniform(0, 15))
            slurm.requeue(number)
        wait_for(job, attempt + 1, 1)
        before, after = job.trainer.steps(attempt, 0)[-1], job.trainer.steps(attempt + 1, 0)[0]
        lost.append(before["step"] + 1 - after["step"])
        paused.append(after["at"] - before["at"])
        print(f"requeue {attempt + 1}: {lost[-1]} steps lost, {paused[-1]:.1f} s", flush=True)
    print(f"median {statistics.median(lost):g} of {lost}, {statistics.median(paused):.1f} s")
    print((slurm.folder / "log" / f"ddptop-{number}.out").read_text())


def main() -> None:
    """Print the cost of each requeue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=400)
    parser.add_argument("--time-limit", action="store_true")
    options = parser.parse_args()
    for network in running_network():
        for slurm in running_slurm(network):
            head = Head(network, network.folder / "head")
            try:
                measure(head, slurm, options)
            finally:
                slurm.cancel()
                head.end()
                shutil.rmtree(head.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
