"""Drive the state of a job through random interleavings of everything that can happen to it.

python benchmarks/state_machine.py [--runs 100000] [--seed FIRST]

Prints the seed of each interleaving that breaks an invariant; `--seed N --runs 1` replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runner")]

from tests.runner.machine import drive  # noqa: E402


def main() -> int:
    """The exit status: 1 where an invariant broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began_s, failed = time.monotonic(), 0
    for seed in range(args.seed, args.seed + args.runs):
        try:
            drive(seed)
        except AssertionError as error:
            failed += 1
            print(f"--seed {seed} --runs 1: {error}")
            if args.runs == 1:
                raise
    took_s = time.monotonic() - began_s
    print(f"{args.runs} interleavings in {took_s:.0f} s, {failed} broke an invariant")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
