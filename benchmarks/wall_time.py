"""Wall time of the same training under ddptop and under torchrun, with torchrun against itself.

On a busy machine two runs of the same thing differ by more than any launcher costs; torchrun
against itself, in the same interleaved order, says by how much.
"""

from __future__ import annotations

import sys

from common import Home, bootstrap_median


def main(pairs: int = 15, steps: int = 4000) -> None:
    """Print ratios per pair and their medians with 95 % intervals."""
    home = Home()
    home.run_torchrun(1)
    ours, itself = [], []
    for number in range(pairs):
        runs = [("torchrun", home.run_torchrun), ("ddptop", home.run_ddptop)]
        runs.append(("again", home.run_torchrun))
        order = runs[number % 3 :] + runs[: number % 3]
        # the training itself, from its first step to its last: launching is measured elsewhere
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
            f"{name}: median {median:.3f}, 95 % interval {low:.3f} to {high:.3f}, {pairs} triples"
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
