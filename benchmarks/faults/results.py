"""The result of a run of the fault table, the file of results, and the table in the document."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.kinds import FAULTS
from benchmarks.faults.record import Record, longest_pause_s, repeated_steps

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "resilience.md"
STEPS = 250
"""Steps of the training, without faults."""
NOT_TRIED = "-"
LAUNCHERS = ("ddptop", "torchrun", "ft_launcher")


@dataclass
class Result:
    """One run."""

    launcher: str
    fault: str
    run: int
    complaints: list[str] = field(default_factory=list)
    """What differed from expectations; for ddptop, everything that the kit compares."""
    finished: bool = False
    """Whether every rank took the last step, with a finite loss."""
    named: bool | None = None
    """Whether the right rank was named; None if none should be."""
    left: int = 0
    """Processes left running."""
    pause_s: float | None = None
    """The longest time without a step after the fault."""
    repeated: int = 0
    """Steps taken twice."""


def measure(result: Result, record: Record, world: int, at: float | None) -> None:
    """Fill in what the script's own record shows."""
    last = [steps[-1] for steps in record.values() if steps]
    result.finished = len(last) >= world - (result.fault == "gpu-lost") and all(
        step.step == STEPS and math.isfinite(step.loss)
        for step in last
        if result.fault != "gpu-lost" or step.attempt == max(one.attempt for one in last)
    )
    if at is not None:
        result.pause_s = longest_pause_s(record, at)
    result.repeated = repeated_steps(record)


def read_results(path: Path) -> list[Result]:
    """Earlier results; empty if there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Result(**json.loads(line)) for line in lines]


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Store them, one JSON object per line."""
    lines = [json.dumps(vars(result)) for result in results]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def cell(results: Sequence[Result]) -> str:
    """How many runs passed, and how long training paused if it continued."""
    if not results:
        return NOT_TRIED
    good = sum(one.finished and one.left == 0 for one in results)
    if results[0].launcher == "ddptop":
        good = sum(not one.complaints for one in results)
    text = f"{good}/{len(results)}"
    named = [one.named for one in results if one.named is not None]
    if named:
        text += f", named {sum(named)}/{len(named)}"
    pauses = [one.pause_s for one in results if one.pause_s is not None and one.finished]
    if pauses:
        text += f", {statistics.median(pauses):.1f} s"
    if left := max(one.left for one in results):
        text += f", {left} left"
    return text


def table(results: Sequence[Result]) -> list[str]:
    """The rows of the document, in Markdown."""
    launchers = [one for one in LAUNCHERS if any(r.launcher == one for r in results)]
    rows = [f"| fault | {' | '.join(launchers)} |", f"| --- |{' --- |' * len(launchers)}"]
    for fault in FAULTS:
        cells = [
            cell([r for r in results if (r.launcher, r.fault) == (launcher, fault.name)])
            for launcher in launchers
        ]
        if any(text != NOT_TRIED for text in cells):
            rows.append(f"| {fault.name}: {fault.what} | {' | '.join(cells)} |")
    return rows


def write_document(rows: Sequence[str]) -> None:
    """Insert the table between its markers."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = "<!-- faults -->\n", "<!-- end of faults -->"
    head, rest = text.split(begin)
    DOCUMENT.write_text(
        head + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1], encoding="utf-8"
    )
