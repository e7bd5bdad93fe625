"""Measure how often and how soon ddptop names the mistakes of `ddptop demo --sick`.

    python benchmarks/sick.py [KINDS] [--runs 10] [--together 2] [--seconds 90]

Prints a table: how many runs of each kind were named right (its finding and no other, on the right
ranks, with figures), and the seconds from the first step. `healthy` must be silent all the time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent / "healthy")]

from ddptop.commands.demo import NAMED_BY  # noqa: E402
from ddptop.commands.demo import SICK as KINDS  # noqa: E402
from record import SICK, Recording, record, run_together  # noqa: E402

RANKS = {"straggler": [1], "preempted": [1], "stalls": [1], "mismatch": [], "uneven-shards": [1]}
"""The ranks to name; of the others, all. In a mismatch of two ranks, none is behind."""
LATER_S = 5.0
"""How long after the finding others may show up, which would be wrong."""


class Result(NamedTuple):
    """One run."""

    named: dict[str, float]
    """Alerts with the seconds from the first step."""
    is_right: bool
    steps: int


def result_of(recording: Recording) -> Result:
    """What became of a run."""
    kind = recording.name.removeprefix(SICK)
    rows = recording.recorder.rows
    stepped = [row["at_s"] for row in rows if row.get("ranks.0.step")]
    named: dict[str, float] = {}
    is_right = kind == "healthy" and bool(stepped)
    for row in rows:
        for id_, _, ranks, has_evidence in row.get("told", []):
            if id_ not in named and id_ != "hung":  # it follows a pause that was named
                named[id_] = row["at_s"] - stepped[0] if stepped else 0.0
                expected = RANKS.get(kind, [0, 1])
                is_figured = has_evidence or id_ == "stalled"
                is_right = id_ == NAMED_BY.get(kind, kind) and ranks == expected and is_figured
    return Result(named, is_right and len(named) <= 1, len(stepped))


def is_settled(recording: Recording) -> bool:
    """Whether its finding has been shown for a while."""
    rows = recording.recorder.rows
    kind = recording.name.removeprefix(SICK)
    id_ = NAMED_BY.get(kind, kind)
    since = [row["at_s"] for row in rows if any(one[0] == id_ for one in row.get("told", []))]
    return bool(since) and rows[-1]["at_s"] - since[0] >= LATER_S


def main() -> None:
    """Run each kind so often, several at a time, and print the table."""
    parser = argparse.ArgumentParser(description="Measure how mistakes are named.")
    parser.add_argument("kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--together", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args()
    results: dict[str, list[Result]] = {kind: [] for kind in options.kinds}

    def run(kind: str) -> None:
        recording = record(SICK + kind, None, options.seconds, None, is_settled)
        results[kind].append(result_of(recording))
        print(f"{results[kind][-1]}: {recording.in_words()}", file=sys.stderr, flush=True)

    waiting = [kind for _ in range(options.runs) for kind in options.kinds]
    run_together(options.together, [partial(run, kind) for kind in waiting])
    print("| mistake | runs | named right | seconds from the first step, median (most) |")
    print("|---|---|---|---|")
    for kind, found in results.items():
        right = [result for result in found if result.is_right]
        times_s = [after_s for result in right for after_s in result.named.values()]
        took = f"{statistics.median(times_s):.0f} ({max(times_s):.0f})" if times_s else ""
        print(f"| `{kind}` | {len(found)} | {len(right)} | {took} |")


if __name__ == "__main__":
    main()
