"""Measure the error of the progress and ETA that ddptop reads from many styles of output.

    python benchmarks/progress_truth.py [--only WORD]

Writes each case of tests/support/progress_corpus.py to a log in simulated time and reads it the way
ddptop reads a job's log, at ten points of the run (5 %, 15 % ... 95 %). Prints a Markdown table.
The result does not depend on the speed of the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.progress_corpus import CASES, Case, Point, replay

SHOWN = {"run": "bar", "estimate": "about", "epoch": "epoch bar", "nothing": "none"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only cases with WORD in their name"
    )
    only = parser.parse_args().only
    print(
        "| output | shown | known from | progress error | ETA error | earlier estimate error "
        "| step time error |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        if only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            print(row(case, replay(case, Path(folder))))


def row(case: Case, points: list[Point]) -> str:
    """Return one row of the table: what is shown, and its largest errors."""
    settled = [one for one in points if one.share >= case.known_from]
    known = [one for one in settled if one.shown is not None and one.shown.fraction is not None]
    of_epoch = any(one.shown and one.shown.epoch_fraction is not None for one in settled)
    kind = "none"
    if known:
        kind = "about" if any(one.shown.estimated for one in known) else "bar"
    elif of_epoch:
        kind = "epoch bar"
    guesses = [
        100 * (one.shown.fraction - one.share)
        for one in points
        if one not in settled and one.shown is not None and one.shown.fraction is not None
    ]
    shares = [100 * (one.shown.fraction - one.share) for one in known]
    etas = [
        100 * (one.shown.eta_s / one.eta_s - 1)
        for one in known
        if one.shown.eta_s is not None and one.eta_s
    ]
    times = [100 * (one.shown_step_s / one.step_s - 1) for one in points if one.shown_step_s]
    begin = f"{100 * min(one.share for one in known):.0f}%" if known else "-"
    wrong = "" if kind == SHOWN[case.answer] else f" (expected: {SHOWN[case.answer]})"
    name = case.name.replace("|", "\\|")
    worst = (_worst(shares), _worst(etas), _worst(guesses), _worst(times))
    cells = (f"`{name}`", kind + wrong, begin, *worst)
    return f"| {' | '.join(cells)} |"


def _worst(errors: list[float]) -> str:
    if not errors:
        return "-"
    return f"{max(errors, key=abs):+.0f}%".replace("-0%", "0%").replace("+0%", "0%")


if __name__ == "__main__":
    main()
