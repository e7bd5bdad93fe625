"""What a key costs in a replay: CPU of the whole viewer, and of the look at that moment alone.

    python benchmarks/replay_keys.py [--hours 24] [--ranks 8] [--gpus 8] [--keys 30]

The job has ended. The viewer runs as a person starts it, in a pty of 120 by 40; what it takes when
no key is pressed is taken off. The look is read in this process, as the viewer's thread reads it:
of the last hour each second is known, of what was before each ten.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import Screen, cpu_s_of_tree
from ddptop.sources.query import Look, Query
from ddptop.sources.replay import ReplayAnswer, ReplaySource
from ddptop.view.series import ChartData
from ddptop.view.shown import Machine
from feed import JOB, Feed

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import read_job

LEFT, RIGHT, HOME = "\x1b[D", "\x1b[C", "\x1b[H"
MINUTES_BACK = "\x1b[1;2D" * 5
"""To where something is recorded: it is not while the history is written."""
APART_S = 0.7
"""Between two keys: by then a moment is drawn also where others use the machine."""
LOOKS = 200


def cpu_ms(screen: Screen, key: str, times: int) -> float:
    """For each time that a key is pressed; without one, for the time that passes."""
    before = cpu_s_of_tree(screen.pid)
    for _ in range(times):
        screen.type(key)
        screen.drain(APART_S)
    return 1000 * (cpu_s_of_tree(screen.pid) - before) / times


def keys(home: Path, times: int) -> None:
    """What keys take near the end and from the beginning."""
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    screen = Screen([sys.executable, "-m", "ddptop", "replay", JOB], env)
    try:
        screen.drain(30.0, until=JOB.encode())
        screen.drain(15.0)
        for where, way, key in (("last hour", MINUTES_BACK, LEFT), ("first hour", HOME, RIGHT)):
            screen.type(way)
            screen.drain(3.0)
            asked_ms = cpu_ms(screen, key, times) - cpu_ms(screen, "", times)
            print(f"{where:10} a key: {asked_ms:5.1f} ms of CPU", flush=True)
    finally:
        screen.close()


def looks(home: Path) -> None:
    """What reading a moment takes there."""
    folder = RunFolder(home / "runs" / JOB)
    view, source, chart = read_job(folder), ReplaySource(), ChartData()
    now = ReplayAnswer(query=Query(), look=Look(utc_now(), Machine("")), view=view)
    course = source.read(now, view, None, chart).course
    assert course is not None
    middle = (course.first + course.last) / 2
    places = (("last hour", course.last - LOOKS, 1), ("middle", middle, 10))
    for where, begin, step_s in places:
        took_ms = []
        for number in range(LOOKS):
            began_s = time.thread_time()
            source.read(now, view, begin + step_s * number, chart)
            took_ms.append(1000 * (time.thread_time() - began_s))
        print(f"{where:10} a look: {statistics.median(took_ms):5.1f} ms of CPU")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--keys", type=int, default=30)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
    try:
        history_s = int(3600 * options.hours)
        Feed(home, options.ranks, options.gpus, history_s=history_s).end()
        keys(home, options.keys)
        looks(home)
    finally:
        shutil.rmtree(home)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
