"""Measure CPU and memory of `ddptop metrics --listen`, read once a second.

    python benchmarks/metrics_cost.py [--ranks 64] [--seconds 60] [--limit 0.5]

Another process writes the snapshot of a job with one simulated GPU per rank. Exits with 1 if the
exporter and what it starts use more than the limit, in percent of a core.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
from common import cpu_s_of_tree
from feed import Feed, Feeder

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the stub driver in tests/

from tests.support.nvml_stub import StubDriver

SETTLED_S = 6
"""By then, it has stopped its own sampler, because the job reports all devices."""


def main() -> None:
    """Read it once a second, and print what it used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--limit", type=float, default=0.5)
    options = parser.parse_args()
    ranks = options.ranks
    with tempfile.TemporaryDirectory(prefix="ddptop-bench-") as folder:
        home = Path(folder)
        driver = StubDriver(home, ranks)
        feeder = Feeder(lambda: Feed(home, ranks, ranks, history_s=60))
        exporter = subprocess.Popen(
            [sys.executable, "-m", "ddptop", "metrics", "--listen", "127.0.0.1:0"],
            env={**os.environ, **driver.env(log=False), "DDPTOP_HOME": folder},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert exporter.stderr
        [url] = re.findall(r"http://\S+?(?=;)", exporter.stderr.readline())
        try:
            began_s = before_s = 0.0
            for second in range(SETTLED_S + options.seconds):
                if second == SETTLED_S:
                    began_s, before_s = time.monotonic(), cpu_s_of_tree(exporter.pid)
                with urllib.request.urlopen(url) as answer:
                    series = answer.read().count(b"\n")
                time.sleep(1)
            took_s = time.monotonic() - began_s
            percent = 100 * (cpu_s_of_tree(exporter.pid) - before_s) / took_s
            mib = psutil.Process(exporter.pid).memory_info().rss / 2**20
        finally:
            exporter.terminate()
            exporter.wait()
            feeder.close()
    load = os.getloadavg()[0]
    print(
        f"{ranks} ranks and GPUs, {series} lines, {options.seconds} times:"
        f" {percent:.2f} % of a core (limit: {options.limit} %), {mib:.0f} MiB, load {load:.1f}"
    )
    sys.exit(percent > options.limit)


if __name__ == "__main__":
    main()
