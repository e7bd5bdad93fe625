"""Drive the job state machine through random interleavings of all events.

python benchmarks/state_machine.py [--runs 100000] [--seed FIRST]
python benchmarks/state_machine.py --nodes [--runs 10000] [--seed FIRST]
python benchmarks/state_machine.py --breaks [--nodes] [--runs 1500]
python benchmarks/state_machine.py --views [--nodes] [--runs 2000]

With `--nodes`, the job runs on up to three nodes, whose links lose what is on its way.

Prints the seed of each interleaving that breaks an invariant; `--seed N --runs 1` replays it. With
`--views`, also compares the job's live view with those of its next supervisor and of its log. With
`--breaks`, removes each transition and each decision in turn (with `--nodes`, those that only
several nodes have), and prints whether an invariant breaks without it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "runner")]

from tests.support import machine_nodes, views  # noqa: E402
from tests.support.machine import drive  # noqa: E402

from ddptop_runner.job import decide, transition  # noqa: E402

Drive = Callable[[int], Any]
OF_NODES = (
    *("_nodes_chosen", "_node_failed", "_node_ended", "_node_unreachable"),
    *("_node_reachable", "_node_lost", "_node_noticed", "_link_broken", "_link_made"),
    *("_node_refused", "_nodes_due", "_checkpoint_waited"),
)
"""Transitions and decisions that only a job on several nodes has."""


def first_failure(drive_one: Drive, seeds: range) -> tuple[int, str] | None:
    """Return the first seed that breaks an invariant, and the error."""
    for seed in seeds:
        try:
            drive_one(seed)
        except Exception as error:
            return seed, f"{type(error).__name__}: {error}"
    return None


def undetected(drive_one: Drive, seeds: range, *, of_nodes: bool) -> list[str]:
    """Return the transitions and decisions whose removal breaks no invariant."""
    found = []
    tables: list[tuple[dict[Any, Any], Any]] = [
        (transition._CHANGES, lambda state, event, at: state),
        (transition._OF_ATTEMPT, lambda state, event, at: state),
        (decide._DECISIONS, lambda *_: []),
    ]
    for table, nothing in tables:
        for kind, change in list(table.items()):
            if (change.__name__ in OF_NODES) != of_nodes:
                continue
            table[kind] = nothing
            failed = first_failure(drive_one, seeds)
            table[kind] = change
            name = f"{change.__module__}.{change.__name__} of {kind.__name__}"
            result = "not detected" if failed is None else f"detected by {failed}"[:200]
            print(name, result, flush=True)
            if failed is None:
                found.append(name)
    return found


def main() -> int:
    """Return 1 if an invariant broke or, with `--breaks`, a removal was not detected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--breaks", action="store_true")
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--views", action="store_true")
    args = parser.parse_args()
    runs = args.runs or (1500 if args.breaks else 10_000 if args.nodes else 100_000)
    drive_one: Drive = machine_nodes.drive if args.nodes else drive
    if args.views:
        runs = args.runs or 2000
        drive_one = views.drive_nodes if args.nodes else views.drive
    seeds = range(args.seed, args.seed + runs)
    gc.freeze()
    gc.set_threshold(100_000)  # collect garbage once in many runs
    if args.breaks:
        found = undetected(drive_one, seeds, of_nodes=args.nodes)
        print(f"{len(found)} removals not detected", *found, sep="\n  ")
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
