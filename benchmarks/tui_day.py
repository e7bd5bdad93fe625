"""Whether the viewer keeps its memory over a day of watching, accelerated.

    python benchmarks/tui_day.py [--hours 24] [--ranks 8]

The real program in a pty of 120 by 40: as soon as a look is drawn, its clock goes on by a second,
the job's next second is written by a process of its own, and it looks again. Every so many looks a
key opens or leaves a screen, or changes the chart. Memory is told every hour, with how many screens
lay on top of each other, and must stay flat from the second one on. A day takes about half an hour.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
from common import Screen
from feed import JOB, Feed

HOUR = 3600
SETTLED_AFTER_H = 2
ALLOWED_BYTES = 8 << 20
LOOKS_PER_KEY = 50
KEYS = ("\r", "v", "l", "e", "p", "?", "a", "y", "w", "+", "-", "]", "t", *["\x1b"] * 5)
"""None of them does anything to a job."""

VIEWER = """
import datetime as dt, os, sys
from ddptop.tui.process import wait_with_garbage
wait_with_garbage()
from ddptop.tui.app import DdptopApp
from ddptop_runner.store import registry
asks, answers, counted, now_s = *map(int, sys.argv[1:4]), [float(sys.argv[4])]
def now():
    return dt.datetime.fromtimestamp(now_s[0], dt.timezone.utc)
registry.utc_now = now
class Fast(DdptopApp):
    def on_snapshot_ready(self, message):
        super().on_snapshot_ready(message)
        self.call_after_refresh(self.next_second)
    def next_second(self):
        now_s[0] += 1.0
        os.write(asks, b".")
        os.read(answers, 1)
        os.write(counted, bytes([min(255, len(self.screen_stack))]))
        self.collector.ask()
app = Fast(sys.argv[5], now=now, tick_s=20.0, readonly=True)  # a callback goes with its screen
app.run()
sys.exit(app.return_code or 0)
"""


def write_seconds(home: Path, ranks: int, now_s: float, asks: int, answers: int) -> None:
    """One more second of the job each time it is asked for, until nobody asks."""
    feed = Feed(home, ranks, 0, history_s=600, now_s=now_s)
    os.write(answers, b".")
    while os.read(asks, 1):
        now_s += 1.0
        feed.tick(now_s)
        os.write(answers, b".")


def main() -> None:
    """Soak and print; exit status 1 when memory was not held."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    home, now_s = Path(tempfile.mkdtemp(prefix="ddptop-bench-")), time.time()
    asks, ask_end = os.pipe()
    answers, answer_end = os.pipe()
    counts, count_end = os.pipe()
    writer = os.fork()
    if writer == 0:
        for fd in (ask_end, answers, counts, count_end):
            os.close(fd)
        try:
            write_seconds(home, options.ranks, now_s, asks, answer_end)
        finally:
            os._exit(0)
    os.read(answers, 1)
    fds = (ask_end, answers, count_end)
    env = {**os.environ, "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}
    arguments = [*map(str, fds), repr(now_s), JOB]
    screen = Screen([sys.executable, "-c", VIEWER, *arguments], env, pass_fds=fds)
    for fd in (asks, ask_end, answers, answer_end, count_end):
        os.close(fd)
    os.set_blocking(counts, False)
    chance, looks, hour, began = random.Random(1), 0, 0, time.monotonic()
    rss: list[int] = []
    deepest = 0
    viewer = psutil.Process(screen.pid)
    try:
        next_key = LOOKS_PER_KEY
        while hour < options.hours:
            screen.drain(0.1)
            try:
                depths = os.read(counts, 1 << 16)
                looks, deepest = looks + len(depths), max(deepest, *depths)
            except BlockingIOError:
                if time.monotonic() - began > 600 * (hour + 1):
                    raise SystemExit(f"no look for long, after {looks}") from None
            if looks >= next_key:
                next_key = looks + LOOKS_PER_KEY
                screen.type(chance.choice(KEYS))
            if looks >= HOUR * (hour + 1):
                hour += 1
                rss.append(viewer.memory_info().rss)
                print(
                    f"  hour {hour:2}: {rss[-1] / 2**20:.1f} MiB; until now at most {deepest}"
                    " screens on top of each other",
                    flush=True,
                )
    finally:
        screen.close()
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(counts)
        shutil.rmtree(home)
    settled = rss[min(SETTLED_AFTER_H, len(rss)) - 1]
    held = max(rss[SETTLED_AFTER_H - 1 :], default=settled) - settled <= ALLOWED_BYTES
    print(
        f"{looks} looks in {time.monotonic() - began:.0f} s: RSS {settled / 2**20:.1f} MiB after"
        f" {SETTLED_AFTER_H} h, {rss[-1] / 2**20:.1f} MiB at the end, {max(rss) / 2**20:.1f} MiB at"
        f" most (allowed: +{ALLOWED_BYTES / 2**20:.0f} MiB){'' if held else '  NOT HELD'}"
    )
    sys.exit(not held)


if __name__ == "__main__":
    main()
