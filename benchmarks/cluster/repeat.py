"""Runs tests in this folder several times; prints pass rates and the longest pause in training.

    python -m benchmarks.cluster.repeat [--runs 5] [tests/system/cluster/test_faults.py ...]

The time is the longest without a step of the ranks that train at the end of a test.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from tests.support.cluster.jobs import now
from tests.support.cluster.training import Trainer

FILES = ("test_faults.py", "test_nodes_lost.py")


class Recorder:
    """The results of each test over all runs."""

    def __init__(self) -> None:
        self.passed: dict[str, list[bool]] = defaultdict(list)
        self.pauses_s: dict[str, list[float]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        began = now()
        try:
            return (yield)
        finally:
            found: dict[str, Any] = getattr(item, "funcargs", {})
            jobs = [getattr(found.get(name), "trainer", None) for name in ("job", "ddp")]
            for trainer in filter(None, [found.get("trainer"), *jobs]):
                if (pause_s := longest_pause_s(trainer, began)) is not None:
                    self.pauses_s[item.name].append(pause_s)
                    break

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("::")[-1]
        if report.when == "call" or report.failed:
            self.passed[name].append(report.passed)
            print(f"\n{name}: {report.outcome}, {self.pauses_s[name][-1:]}", flush=True)

    def table(self) -> str:
        """One line for each test."""
        return "\n".join(
            f"{name}: {sum(passed)}/{len(passed)}"
            + (f", {statistics.median(pauses):.1f} s" if (pauses := self.pauses_s[name]) else "")
            for name, passed in self.passed.items()
        )


def longest_pause_s(trainer: Trainer, since: float) -> float | None:
    """The longest time since then that a rank of the latest attempt went without a step."""
    latest = trainer.last_steps()
    attempt = max(
        (int(file.stem.split("-")[1]) for file in trainer.folder.glob("losses-*")), default=-1
    )
    pauses = []
    for rank in latest:
        times = sorted(
            step["at"] for number in range(attempt + 1) for step in trainer.steps(number, rank)
        )
        pauses += [b - a for a, b in pairwise(times) if b > since]
    return max(pauses, default=None)


def main() -> int:
    """Run them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "files", nargs="*", default=[f"tests/system/cluster/{name}" for name in FILES]
    )
    options = parser.parse_args()
    recorder = Recorder()
    for _ in range(options.runs):
        pytest.main(["-q", "-p", "no:cacheprovider", *options.files], plugins=[recorder])
        print(recorder.table(), flush=True)
    return int(not all(map(all, recorder.passed.values())))


if __name__ == "__main__":
    sys.exit(main())
