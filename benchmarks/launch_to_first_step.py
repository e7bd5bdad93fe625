"""Launch to first step, ddptop beside torchrun, in interleaved pairs."""

from __future__ import annotations

import statistics
import sys

from common import Home


def main(pairs: int = 8) -> None:
    """Print each pair and the medians."""
    home = Home()
    home.run_torchrun(1)  # warm the file cache
    theirs, ours = [], []
    for number in range(pairs):
        first, second = (home.run_torchrun, home.run_ddptop)
        if number % 2:
            ours.append(second(1).first_step_s)
            theirs.append(first(1).first_step_s)
        else:
            theirs.append(first(1).first_step_s)
            ours.append(second(1).first_step_s)
        print(f"  torchrun {theirs[-1]:.2f} s   ddptop {ours[-1]:.2f} s", flush=True)
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    print(
        f"launch to first step, median of {pairs} pairs: "
        f"torchrun {statistics.median(theirs):.2f} s, ddptop {statistics.median(ours):.2f} s, "
        f"paired difference {statistics.median(differences):+.2f} s (allowed: +0.5 s)"
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
