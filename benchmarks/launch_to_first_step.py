"""Measure the time from launch to the first step, ddptop and torchrun in alternating pairs.

    python benchmarks/launch_to_first_step.py [--pairs 8] [--ranks 2] [--stages | --bare]

--stages prints how ddptop spends the time, based on when its processes were forked and the times
that the script writes. With --bare, the script imports nothing slow, and the time runs until all
ranks run it.
"""

from __future__ import annotations

import argparse
import statistics

import psutil
from common import Home, bootstrap_median, report_stages, started_at

STAGES = (
    *("guardian forked", "agent forked", "torch imported", "rank 0 forked"),
    *("script running", "process group joined", "first step"),
)


def stages(started: float, first: list[str]) -> list[float]:
    """Return when each stage of a launch ended, in seconds since the command was started.

    Args:
        started: when the command was started.
        first: fields that rank 0 wrote at its first step.
    """
    stepped, began, joined = map(float, first[:3])
    rank = int(first[3])
    agent = psutil.Process(rank).parent()
    assert agent is not None  # the rank is still running
    zygote = min(agent.children(), key=lambda process: started_at(process.pid))
    ends = [
        *(started_at(pid) for pid in (agent.ppid(), agent.pid, zygote.pid, rank)),
        *(began, joined, stepped),
    ]
    return [end - started for end in ends]


def main() -> None:
    """Print each pair, the medians, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    pairs = options.pairs
    home = Home(options.ranks, options.bare)
    found_stages: list[list[float]] = []

    def on_trained(started: float, first: list[str]) -> None:
        found_stages.append(stages(started, first))

    def time_torchrun() -> None:
        run = home.run_torchrun(1)
        theirs.append(run.last_step_s if options.bare else run.first_step_s)

    def time_ddptop() -> None:
        run = home.run_ddptop(1, on_trained=on_trained if options.stages else None)
        ours.append(run.last_step_s if options.bare else run.first_step_s)

    home.run_torchrun(1)  # warm the file cache
    home.run_ddptop(1)
    theirs: list[float] = []
    ours: list[float] = []
    for number in range(pairs):
        both = (time_torchrun, time_ddptop)
        for timed in both[::-1] if number % 2 else both:
            timed()
        print(f"  torchrun {theirs[-1]:.2f} s   ddptop {ours[-1]:.2f} s", flush=True)
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    goal = "all ranks running" if options.bare else "first step"
    print(
        f"launch to {goal}, median of {pairs} pairs: "
        f"torchrun {statistics.median(theirs):.2f} s, ddptop {statistics.median(ours):.2f} s, "
        f"paired difference {statistics.median(differences):+.2f} s (limit: +0.5 s)"
    )
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    ratio, low, high = bootstrap_median(ratios)
    print(f"ddptop / torchrun, median of the pairs: {ratio:.2f} (95 %: {low:.2f} to {high:.2f})")
    if options.stages:
        report_stages(STAGES, found_stages)


if __name__ == "__main__":
    main()
