"""Measure the time from start to the first full frame, compared with an empty Textual app.

    python benchmarks/tui_first_paint.py [--runs 15] [--old TREE]

Wall time runs from before the fork until a 120x40 pty has received the expected text: for ddptop,
a job with its figures, which must be read from the run folder, and the last key of the key bar; for
the empty app, its only line. CPU is the time of the process up to that point; it varies less on a
busy machine. Runs of the programs alternate.

With --old, each run is paired with one of another source tree, using the ddptop of its .venv.
Prints the median ratio of these pairs with its 95% interval.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import Screen, bootstrap_median, cpu_s_of_tree
from feed import JOB, Feed, Feeder

TREE = Path(__file__).parents[1]
EMPTY = """
from textual.app import App
from textual.widgets import Static
class Empty(App):
    def compose(self):
        yield Static("an empty app")
Empty().run()
"""
EMPTY_APP = "empty Textual app"
SCREENS: dict[str, tuple[list[str], tuple[bytes, ...]]] = {
    "overview": ([], (JOB.encode(), b"running", b"Help")),
    "job": (["attach", JOB], (JOB.encode(), b"running", b"start", b"Help")),
}
"""Arguments of ddptop, and text that its first full frame contains."""
ALLOWED_S, ALLOWED_RATIO = 0.45, 2.0


def first_paint(
    command: list[str], marks: tuple[bytes, ...], env: dict[str, str]
) -> tuple[float, float]:
    """Return the wall and CPU seconds until all marks were drawn."""
    began = time.perf_counter()
    screen = Screen(command, env)
    try:
        missing = screen.drain_until(marks, 30.0)
        wall_s, cpu_s = time.perf_counter() - began, cpu_s_of_tree(screen.pid)
        if missing:
            raise SystemExit(f"{command[1:]} never drew {missing}")
        return wall_s, cpu_s
    finally:
        screen.close()


def programs(old: Path | None) -> dict[str, tuple[list[str], tuple[bytes, ...]]]:
    """Return the command and marks of each program, by name."""
    found = {EMPTY_APP: ([sys.executable, "-c", EMPTY], (b"an empty app",))}
    for screen, (arguments, marks) in SCREENS.items():
        for suffix, tree in (("", TREE), (", old", old)):
            if tree is not None:
                found[screen + suffix] = ([str(tree / ".venv/bin/ddptop"), *arguments], marks)
    return found


def ratio_of_pairs(new: list[float], old: list[float]) -> str:
    """Return the median ratio of new to old, with its 95% interval."""
    return "{:.3f} ({:.3f} to {:.3f})".format(
        *bootstrap_median([n / o for n, o in zip(new, old, strict=True)])
    )


def main() -> None:
    """Measure; exit with 1 if ddptop exceeds a limit, absolute or relative to the empty app."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--old", type=Path, metavar="TREE", help="compare with this source tree")
    options = parser.parse_args()
    old = None if options.old is None else options.old.absolute()
    for tree, package in itertools.product(
        (TREE, old), ("ddptop", "runner/ddptop_runner")
    ):  # as pip does on install
        if tree is not None:
            compileall.compile_dir(tree / package, quiet=2)
    home = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    feeder = Feeder(lambda: Feed(home, 8, 0, history_s=3600))
    alternating = programs(old)
    wall: dict[str, list[float]] = {name: [] for name in alternating}
    cpu: dict[str, list[float]] = {name: [] for name in alternating}
    try:
        for run in range(options.runs + 1):
            for name, (command, marks) in alternating.items():
                wall_s, cpu_s = first_paint(command, marks, env)
                if run:  # the first run of each reads from disk
                    wall[name].append(wall_s)
                    cpu[name].append(cpu_s)
    finally:
        feeder.close()
        shutil.rmtree(home)
    empty_s, empty_cpu_s = (statistics.median(of[EMPTY_APP]) for of in (wall, cpu))
    is_within = True
    for name in alternating:
        median_s, cpu_s = statistics.median(wall[name]), statistics.median(cpu[name])
        over = name in SCREENS and not (
            median_s <= ALLOWED_S and median_s <= ALLOWED_RATIO * empty_s
        )
        is_within = is_within and not over
        print(
            f"{name:17} first paint: median {median_s:.3f} s, best {min(wall[name]):.3f} s,"
            f" ratio {median_s / empty_s:.2f}; CPU {cpu_s:.3f} s, ratio {cpu_s / empty_cpu_s:.2f}"
            f"  (limit: {ALLOWED_S} s, ratio {ALLOWED_RATIO:.0f}){'  EXCEEDED' * over}"
        )
    for name in SCREENS if old is not None else ():
        wall_ratio, cpu_ratio = (ratio_of_pairs(of[name], of[f"{name}, old"]) for of in (wall, cpu))
        print(f"{name:17} new to old: {wall_ratio}; CPU {cpu_ratio}")
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(not is_within)


if __name__ == "__main__":
    main()
