"""Check that the viewer's memory stays flat over an accelerated day.

    python benchmarks/tui_day.py [--hours 24] [--ranks 8]

The program runs in a 120x40 pty. After each update, its clock advances by a second, a separate
process writes the job's next second, and the program reads again. Every 50 updates, a random key
opens or leaves a screen or changes the chart. Prints RSS and the maximum depth of the screen stack
once per hour; RSS must stay flat from the second hour on. A day takes about half an hour.
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
UPDATES_PER_KEY = 50
KEYS = ("\r", "v", "l", "e", "p", "?", "a", "y", "w", "+", "-", "]", "t", *["\x1b"] * 5)
"""None of these keys affects a job."""

VIEWER = """
import datetime as dt, gc, os, sys
gc.disable()
from ddptop.tui.app import DdptopApp
from ddptop_runner.job import registry
asks, answers, counted, now_s = *map(int, sys.argv[1:4]), [float(sys.argv[4])]
def now():
    return dt.datetime.fromtimestamp(now_s[0], dt.timezone.utc)
registry.utc_now = now
class Fast(DdptopApp):
    def on_answered(self, message):
        super().on_answered(message)
        self.call_after_refresh(self.next_second)
    def next_second(self):
        now_s[0] += 1.0
        os.write(asks, b".")
        os.read(answers, 1)
        os.write(counted, bytes([min(255, len(self.screen_stack))]))
        self.collector.ask()
app = Fast(sys.argv[5], now=now, tick_s=20.0, readonly=True)  # a callback is lost with its screen
app.run()
sys.exit(app.return_code or 0)
"""


def write_seconds(home: Path, ranks: int, now_s: float, asks: int, answers: int) -> None:
    """Write one more second of the job per request, until the requests end."""
    feed = Feed(home, ranks, 0, history_s=600, now_s=now_s)
    os.write(answers, b".")
    while os.read(asks, 1):
        now_s += 1.0
        feed.tick(now_s)
        os.write(answers, b".")


def main() -> None:
    """Run the day; exit with 1 if memory grew beyond the limit."""
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
    rng, updates, hour, began = random.Random(1), 0, 0, time.monotonic()
    rss: list[int] = []
    deepest = 0
    viewer = psutil.Process(screen.pid)
    try:
        next_key = UPDATES_PER_KEY
        while hour < options.hours:
            screen.drain(0.1)
            try:
                depths = os.read(counts, 1 << 16)
                updates, deepest = updates + len(depths), max(deepest, *depths)
            except BlockingIOError:
                if time.monotonic() - began > 600 * (hour + 1):
                    raise SystemExit(f"no further update after {updates}") from None
            if updates >= next_key:
                next_key = updates + UPDATES_PER_KEY
                screen.type(rng.choice(KEYS))
            if updates >= HOUR * (hour + 1):
                hour += 1
                rss.append(viewer.memory_info().rss)
                print(
                    f"  hour {hour:2}: {rss[-1] / 2**20:.1f} MiB;"
                    f" maximum screen stack depth so far {deepest}",
                    flush=True,
                )
    finally:
        screen.close()
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(counts)
        shutil.rmtree(home)
    settled = rss[min(SETTLED_AFTER_H, len(rss)) - 1]
    is_flat = max(rss[SETTLED_AFTER_H - 1 :], default=settled) - settled <= ALLOWED_BYTES
    print(
        f"{updates} updates in {time.monotonic() - began:.0f} s: RSS {settled / 2**20:.1f} MiB"
        f" after {SETTLED_AFTER_H} h, {rss[-1] / 2**20:.1f} MiB at the end,"
        f" maximum {max(rss) / 2**20:.1f} MiB"
        f" (limit: +{ALLOWED_BYTES / 2**20:.0f} MiB){'' if is_flat else '  EXCEEDED'}"
    )
    sys.exit(not is_flat)


if __name__ == "__main__":
    main()
