"""The training script's own record of its steps (`train.py --record`), and what follows from it.

It is compared with ddptop's record: any difference means that something was lost or invented.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One step of one rank."""

    attempt: int
    step: int
    """The step of the whole training."""
    loss: float
    at: float
    """Unix seconds."""


Record = Mapping[int, Sequence[Step]]
"""By rank, in chronological order."""


def read_record(folder: Path) -> dict[int, list[Step]]:
    """Every complete line of every rank; empty if nothing was written."""
    record: dict[int, list[Step]] = {}
    for file in sorted(folder.glob("rank-*.jsonl")):
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        rank = int(file.stem.removeprefix("rank-"))
        record[rank] = [Step(**json.loads(line)) for line in lines if line.endswith("}")]
    return record


def longest_pause_s(record: Record, since_unix: float) -> float | None:
    """The longest time that the slowest rank took for a step, from the fault on.

    The step that the fault fell into counts from the step before it.
    """
    pauses = []
    for steps in record.values():
        before = [step.at for step in steps if step.at < since_unix][-1:]
        times = [*before, *(step.at for step in steps if step.at >= since_unix)]
        pauses += [late - early for early, late in pairwise(times)]
    return max(pauses, default=None)


def repeated_steps(record: Record) -> int:
    """How many steps were taken more than once, on the rank with the most."""
    return max(
        (len(steps) - len({step.step for step in steps}) for steps in record.values()), default=0
    )


def steps_of_attempt(record: Record, attempt: int) -> dict[int, list[Step]]:
    """By rank, the steps taken in one attempt."""
    return {
        rank: [step for step in steps if step.attempt == attempt] for rank, steps in record.items()
    }
