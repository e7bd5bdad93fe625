"""From the start of the program to its first full frame, beside a bare Textual app, in turn.

    python benchmarks/tui_first_paint.py [--runs 15] [--old TREE]

Wall time runs from before the fork until a pty of 120 by 40 has received all that is looked for:
of ddptop a job and its figures, which need a look at the run folder, and the last key of the key
bar; of the bare app its only line. CPU is that of the process until then; on a busy machine it is
the steadier figure.

With --old, each run is followed by one of another source tree, by the ddptop of its .venv, and the
median ratio of these pairs is printed, with its 95% interval.
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
BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("a bare app")
Bare().run()
"""
BARE_APP = "bare Textual app"
SCREENS: dict[str, tuple[list[str], tuple[bytes, ...]]] = {
    "overview": ([], (JOB.encode(), b"running", b"Help")),
    "job": (["attach", JOB], (JOB.encode(), b"running", b"start", b"Help")),
}
"""Arguments of ddptop, and what its first full frame holds."""
ALLOWED_S, ALLOWED_RATIO = 0.45, 2.0


def first_paint(
    command: list[str], marks: tuple[bytes, ...], env: dict[str, str]
) -> tuple[float, float]:
    """Wall and CPU seconds until all marks were drawn."""
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
    """Name, command, and marks of what is run in turn."""
    found = {BARE_APP: ([sys.executable, "-c", BARE], (b"a bare app",))}
    for screen, (arguments, marks) in SCREENS.items():
        for suffix, tree in (("", TREE), (", old", old)):
            if tree is not None:
                found[screen + suffix] = ([str(tree / ".venv/bin/ddptop"), *arguments], marks)
    return found


def ratio_of_pairs(new: list[float], old: list[float]) -> str:
    """The median of new to old, with its 95% interval."""
    return "{:.3f} ({:.3f} to {:.3f})".format(
        *bootstrap_median([n / o for n, o in zip(new, old, strict=True)])
    )


def main() -> None:
    """Measure and print; exit status 1 where it takes too long beside the bare app."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--old", type=Path, metavar="TREE", help="compare with this source tree")
    options = parser.parse_args()
    old = None if options.old is None else options.old.absolute()
    for tree, package in itertools.product(
        (TREE, old), ("ddptop", "runner/ddptop_runner")
    ):  # as pip does where it installs
        if tree is not None:
            compileall.compile_dir(tree / package, quiet=2)
    home = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    feeder = Feeder(lambda: Feed(home, 8, 0, history_s=3600))
    run_in_turn = programs(old)
    wall: dict[str, list[float]] = {name: [] for name in run_in_turn}
    cpu: dict[str, list[float]] = {name: [] for name in run_in_turn}
    try:
        for run in range(options.runs + 1):
            for name, (command, marks) in run_in_turn.items():
                wall_s, cpu_s = first_paint(command, marks, env)
                if run:  # the first one of each reads from the disk
                    wall[name].append(wall_s)
                    cpu[name].append(cpu_s)
    finally:
        feeder.close()
        shutil.rmtree(home)
    bare_s, bare_cpu_s = (statistics.median(of[BARE_APP]) for of in (wall, cpu))
    held = True
    for name in run_in_turn:
        median_s, cpu_s = statistics.median(wall[name]), statistics.median(cpu[name])
        over = name in SCREENS and not (
            median_s <= ALLOWED_S and median_s <= ALLOWED_RATIO * bare_s
        )
        held = held and not over
        print(
            f"{name:17} first paint: median {median_s:.3f} s, best {min(wall[name]):.3f} s,"
            f" ratio {median_s / bare_s:.2f}; CPU {cpu_s:.3f} s, ratio {cpu_s / bare_cpu_s:.2f}"
            f"  (allowed: {ALLOWED_S} s, ratio {ALLOWED_RATIO:.0f}){'  NOT HELD' * over}"
        )
    for name in SCREENS if old is not None else ():
        wall_ratio, cpu_ratio = (ratio_of_pairs(of[name], of[f"{name}, old"]) for of in (wall, cpu))
        print(f"{name:17} new to old: {wall_ratio}; CPU {cpu_ratio}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(not held)


if __name__ == "__main__":
    main()
