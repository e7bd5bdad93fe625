"""Launch to first step, ddptop beside torchrun, in interleaved pairs.

python benchmarks/launch_to_first_step.py [--pairs 8] [--ranks 2]
"""

from __future__ import annotations

import argparse
import statistics

from common import Home, bootstrap_median


def main() -> None:
    """Print each pair, the medians, and the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    pairs = options.pairs
    home = Home(options.ranks)
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
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    ratio, low, high = bootstrap_median(ratios)
    print(f"ddptop / torchrun, median of the pairs: {ratio:.2f} (95 %: {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
