"""Compare the wall time of a training under ddptop and torchrun, and of torchrun with itself.

    python benchmarks/wall_time.py [ROUNDS [STEPS]]

On a busy machine, two identical runs differ by more than the cost of a launcher. Comparing torchrun
with itself, in the same interleaved order, shows by how much.
"""

from __future__ import annotations

import sys

from common import Home, bootstrap_median


def main(rounds: int = 15, steps: int = 4000) -> None:
    """Print the ratios of each round, and their medians with 95 % intervals."""
    home = Home()
    home.run_torchrun(1)
    ours, itself = [], []
    for number in range(rounds):
        runs = [("torchrun", home.run_torchrun), ("ddptop", home.run_ddptop)]
        runs.append(("again", home.run_torchrun))
        order = runs[number % 3 :] + runs[: number % 3]
        # from the first step to the last; launch_to_first_step.py measures the launch
        took = {}
        for name, run in order:
            done = run(steps)
            took[name] = done.last_step_s - done.first_step_s
        ours.append(took["ddptop"] / took["torchrun"])
        itself.append(took["again"] / took["torchrun"])
        print(
            f"  torchrun {took['torchrun']:.2f} s  ddptop/torchrun {ours[-1]:.3f}"
            f"  torchrun/torchrun {itself[-1]:.3f}",
            flush=True,
        )
    for name, ratios in (("ddptop/torchrun", ours), ("torchrun/torchrun", itself)):
        median, low, high = bootstrap_median(ratios)
        print(
            f"{name}: median {median:.3f}, 95 % interval {low:.3f} to {high:.3f}, {rounds} rounds"
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
