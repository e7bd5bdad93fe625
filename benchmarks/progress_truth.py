"""How far off the shown share and ETA of a run are, for outputs in many styles.

    python benchmarks/progress_truth.py [--only WORD]

Each case of tests/samples/progress_corpus.py is written into a log in simulated time and read as a
job's log is, at ten points of its run (5 %, 15 % ... 95 %). Prints a table for docs/launchers.md.
Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.samples.progress_corpus import CASES, Case, Point, replay

SHOWN = {"run": "bar", "estimate": "about", "epoch": "epoch bar", "nothing": "none"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cases whose name holds this word")
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
    """One line of the table: what is shown, and how far off it is at worst."""
    settled = [one for one in points if one.share >= case.known_from]
    told = [one for one in settled if one.shown is not None and one.shown.fraction is not None]
    of_epoch = any(one.shown and one.shown.epoch_fraction is not None for one in settled)
    kind = "none"
    if told:
        kind = "about" if any(one.shown.estimated for one in told) else "bar"
    elif of_epoch:
        kind = "epoch bar"
    guesses = [
        100 * (one.shown.fraction - one.share)
        for one in points
        if one not in settled and one.shown is not None and one.shown.fraction is not None
    ]
    shares = [100 * (one.shown.fraction - one.share) for one in told]
    etas = [
        100 * (one.shown.eta_s / one.eta_s - 1)
        for one in told
        if one.shown.eta_s is not None and one.eta_s
    ]
    times = [100 * (one.shown_step_s / one.step_s - 1) for one in points if one.shown_step_s]
    begin = f"{100 * min(one.share for one in told):.0f}%" if told else "-"
    wrong = "" if kind == SHOWN[case.answer] else f" (not: {SHOWN[case.answer]})"
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
