"""Measure the CPU, terminal output, and memory of each screen.

    python benchmarks/tui_cost.py [--seconds 20] [--ranks 8] [--gpus 8] [SCREEN ...]

Measures each screen twice: with a job whose figures all change every second, and with an ended job,
which leaves nothing to draw. The program runs in a 120x40 pty with a stub driver that has the job's
devices. CPU includes the viewer and everything it starts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the stub driver in tests/

from common import Screen, cpu_s_of_tree
from feed import JOB, Feed, Feeder
from tests.support.nvml_stub import StubDriver

ATTACH = ("attach", JOB)
SCREENS: dict[str, tuple[tuple[str, ...], str]] = {
    "overview": ((), ""),
    "job": (ATTACH, ""),
    "rank": (ATTACH, "\r"),
    "devices": ((), "v"),
    "logs": (ATTACH, "l"),
    "replay": (ATTACH, "p"),
}
"""Arguments of ddptop, and the keys that open the screen."""

ALLOWED_JOB_PERCENT = 3.0
ALLOWED_KB_LIVE, ALLOWED_KB_ENDED = 30.0, 10.0
WARM_UP_S = 12.0
"""Long enough for the viewer's own sampler to exit, which a job with a sampler makes redundant."""


def measure(
    arguments: tuple[str, ...], keys: str, env: dict[str, str], seconds: float
) -> tuple[float, float, int]:
    """Return percent of a core, kB per second to the terminal, and resident bytes."""
    screen = Screen([sys.executable, "-m", "ddptop", *arguments], env)
    try:
        screen.drain(30.0, until=JOB.encode())
        screen.drain(2.0)
        screen.type(keys)
        screen.drain(WARM_UP_S)
        before, began = cpu_s_of_tree(screen.pid), time.monotonic()
        received = screen.drain(seconds)
        elapsed = time.monotonic() - began
        percent = 100 * (cpu_s_of_tree(screen.pid) - before) / elapsed
        return percent, received / elapsed / 1000, screen.rss_bytes()
    finally:
        screen.close()


def main() -> None:
    """Measure the screens; exit with 1 if any exceeds its limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--history-s", type=int, default=3600)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("screens", nargs="*", metavar="SCREEN", help=", ".join(SCREENS))
    options = parser.parse_args()
    is_within = True
    for live in (True, False):
        folder = Path(tempfile.mkdtemp(prefix="ddptop-bench-"))
        driver = StubDriver(folder, options.gpus)
        home = folder / "home"
        env = {**driver.env(log=False), "DDPTOP_HOME": str(home), "TERM": "xterm-256color"}

        def make(home: Path = home) -> Feed:
            return Feed(home, options.ranks, options.gpus, history_s=options.history_s)

        feeder = Feeder(make, ends=not live)
        try:
            for name in options.screens or SCREENS:
                percent, kilobytes, rss = measure(*SCREENS[name], env, options.seconds)
                allowed = ALLOWED_KB_LIVE if live else ALLOWED_KB_ENDED
                over = kilobytes > allowed
                limits = f"limit: {allowed:.0f} kB/s"
                if name == "job" and live:
                    over = over or percent > ALLOWED_JOB_PERCENT
                    limits += f", {ALLOWED_JOB_PERCENT:.0f} %"
                is_within = is_within and not over
                print(
                    f"{name:9} {f'{options.ranks} ranks, 1 Hz' if live else 'ended':14}"
                    f" {percent:5.2f} % of a core {kilobytes:6.1f} kB/s"
                    f" {rss / 2**20:4.0f} MiB  ({limits}){'  EXCEEDED' * over}",
                    flush=True,
                )
        finally:
            feeder.close()
            shutil.rmtree(folder)
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    sys.exit(not is_within)


if __name__ == "__main__":
    main()
