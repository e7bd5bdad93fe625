"""Measure the CPU time of a key press in a replay, and of reading one moment of the history.

    python benchmarks/replay_keys.py [--hours 24] [--ranks 8] [--gpus 8] [--keys 30]

The job has ended. The viewer runs in a 120x40 pty; its CPU time without key presses is subtracted.
Moments are read in this process, the way the viewer's thread reads them: the last hour has a sample
per second, the time before one per ten seconds.
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
from ddptop.job.record import own_job
from ddptop.job.series import ChartData, Machine
from ddptop.sources.history import JobHistory
from ddptop.sources.past import ReplayAnswer, read_replay
from ddptop.sources.query import Look, Query
from feed import JOB, Feed

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import read_job

LEFT, RIGHT, HOME = "\x1b[D", "\x1b[C", "\x1b[H"
MINUTES_BACK = "\x1b[1;2D" * 5
"""Moves to a time with samples: there are none for the time it took to write the history."""
KEY_INTERVAL_S = 0.7
"""Time between two keys, enough to draw a moment even on a busy machine."""
READS = 200


def cpu_ms(screen: Screen, key: str, times: int) -> float:
    """Return the CPU time per key press, or per idle interval if `key` is empty."""
    before = cpu_s_of_tree(screen.pid)
    for _ in range(times):
        screen.type(key)
        screen.drain(KEY_INTERVAL_S)
    return 1000 * (cpu_s_of_tree(screen.pid) - before) / times


def keys(home: Path, times: int) -> None:
    """Print the CPU time of a key press near the end and near the start."""
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    screen = Screen([sys.executable, "-m", "ddptop", "replay", JOB], env)
    try:
        screen.drain(30.0, until=JOB.encode())
        screen.drain(15.0)
        for where, moves, key in (("last hour", MINUTES_BACK, LEFT), ("first hour", HOME, RIGHT)):
            screen.type(moves)
            screen.drain(3.0)
            key_ms = cpu_ms(screen, key, times) - cpu_ms(screen, "", times)
            print(f"{where:10} per key press: {key_ms:5.1f} ms of CPU", flush=True)
    finally:
        screen.close()


def reads(home: Path) -> None:
    """Print the CPU time of reading a moment in the last hour and in the middle."""
    folder = RunFolder(home / "runs" / JOB)
    view, chart = own_job(read_job(folder)), ChartData()
    history = JobHistory(folder.history_db)
    now = ReplayAnswer(query=Query(), look=Look(utc_now(), Machine("")), view=view)
    course = read_replay(now, view, None, chart, history).course
    assert course is not None
    middle = (course.first + course.last) / 2
    places = (("last hour", course.last - READS, 1), ("middle", middle, 10))
    for where, begin, step_s in places:
        took_ms = []
        for number in range(READS):
            began_s = time.thread_time()
            read_replay(now, view, begin + step_s * number, chart, history)
            took_ms.append(1000 * (time.thread_time() - began_s))
        print(f"{where:10} per read: {statistics.median(took_ms):5.1f} ms of CPU")


def main() -> None:
    """Write the history, then measure key presses and reads."""
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
        reads(home)
    finally:
        shutil.rmtree(home)
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
