"""From the start of the program to its first full frame, beside a bare Textual app, in turn.

    python benchmarks/tui_first_paint.py [--runs 15]

Wall time runs from before the fork until a pty of 120 by 40 has received all that is looked for:
of ddptop a job and its figures, which need a look at the run folder, and the last key of the key
bar; of the bare app its only line. CPU is that of the process until then; on a busy machine it is
the steadier figure.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import ddptop
from common import Screen, cpu_s_of_tree
from feed import JOB, Feed, Feeder

import ddptop_runner

BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("a bare app")
Bare().run()
"""
DDPTOP = [sys.executable, "-m", "ddptop"]
PROGRAMS: dict[str, tuple[list[str], tuple[bytes, ...]]] = {
    "bare Textual app": ([sys.executable, "-c", BARE], (b"a bare app",)),
    "overview": (DDPTOP, (JOB.encode(), b"running", b"Help")),
    "job": ([*DDPTOP, "attach", JOB], (JOB.encode(), b"running", b"start", b"Help")),
}
"""Command, and what its first full frame holds."""
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


def main() -> None:
    """Measure and print; exit status 1 where it takes too long beside the bare app."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    for package in (ddptop, ddptop_runner):  # as pip does where it installs
        compileall.compile_dir(Path(package.__file__).parent, quiet=2)
    home = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    feeder = Feeder(lambda: Feed(home, 8, 0, history_s=3600))
    wall: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    cpu: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    try:
        for run in range(options.runs + 1):
            for name, (command, marks) in PROGRAMS.items():
                wall_s, cpu_s = first_paint(command, marks, env)
                if run:  # the first one of each reads from the disk
                    wall[name].append(wall_s)
                    cpu[name].append(cpu_s)
    finally:
        feeder.close()
        shutil.rmtree(home)
    bare_s, bare_cpu_s = (statistics.median(of["bare Textual app"]) for of in (wall, cpu))
    held = True
    for name in PROGRAMS:
        median_s, cpu_s = statistics.median(wall[name]), statistics.median(cpu[name])
        over = name != "bare Textual app" and not (
            median_s <= ALLOWED_S and median_s <= ALLOWED_RATIO * bare_s
        )
        held = held and not over
        print(
            f"{name:17} first paint: median {median_s:.3f} s, best {min(wall[name]):.3f} s,"
            f" ratio {median_s / bare_s:.2f}; CPU {cpu_s:.3f} s, ratio {cpu_s / bare_cpu_s:.2f}"
            f"  (allowed: {ALLOWED_S} s, ratio {ALLOWED_RATIO:.0f}){'  NOT HELD' * over}"
        )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(not held)


if __name__ == "__main__":
    main()
