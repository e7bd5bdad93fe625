"""Drive the state of a job through random interleavings of everything that can happen to it.

python benchmarks/state_machine.py [--runs 100000] [--seed FIRST]
python benchmarks/state_machine.py --nodes [--runs 10000] [--seed FIRST]
python benchmarks/state_machine.py --breaks [--runs 1500]

With `--nodes`, the job runs on several nodes, and its real head leads it in virtual time.

Prints the seed of each interleaving that breaks an invariant; `--seed N --runs 1` replays it. With
`--breaks`, takes out each transition and each decision in turn, and prints those that no
interleaving misses.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runner")]

from tests.runner import machine_nodes  # noqa: E402
from tests.runner.machine import drive  # noqa: E402

from ddptop_runner.job import decide, transition  # noqa: E402


def first_failure(seeds: range) -> int | None:
    """The first seed that breaks an invariant."""
    for seed in seeds:
        try:
            drive(seed)
        except Exception:
            return seed
    return None


def survivors(seeds: range) -> list[str]:
    """The transitions and decisions without which every interleaving is as good."""
    found = []
    tables: list[tuple[dict[Any, Any], Any]] = [
        (transition._CHANGES, lambda state, event, at: state),
        (decide._DECISIONS, lambda *_: []),
    ]
    for table, nothing in tables:
        for kind, change in list(table.items()):
            table[kind] = nothing
            seed = first_failure(seeds)
            table[kind] = change
            if seed is None:
                found.append(f"{change.__module__}.{change.__name__} of {kind.__name__}")
    return found


def main() -> int:
    """The exit status: 1 where an invariant broke, or a break survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--breaks", action="store_true")
    parser.add_argument("--nodes", action="store_true")
    args = parser.parse_args()
    runs = args.runs or (1500 if args.breaks else 10_000 if args.nodes else 100_000)
    drive_one = machine_nodes.drive if args.nodes else drive
    seeds = range(args.seed, args.seed + runs)
    if args.breaks:
        found = survivors(seeds)
        print(f"{len(found)} breaks survived", *found, sep="\n  ")
        return 1 if found else 0
    began_s, failed = time.monotonic(), 0
    for seed in seeds:
        try:
            drive_one(seed)
        except Exception as error:
            failed += 1
            nodes = "--nodes " if args.nodes else ""
            print(f"{nodes}--seed {seed} --runs 1: {error}")
            if runs == 1:
                raise
    took_s = time.monotonic() - began_s
    print(f"{runs} interleavings in {took_s:.0f} s, {failed} broke an invariant")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
