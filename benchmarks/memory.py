"""Memory of a job with 8 ranks of DDP, under ddptop and under torchrun, in turn.

    python benchmarks/memory.py [--ranks 8]

The sum of PSS (/proc/PID/smaps_rollup, where a page that several processes share counts once) over
all processes that carry a mark in their variables: the ranks and whatever the launcher runs, of
ddptop also tmux, guardian, supervisor, zygote, and store keeper.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
from common import TORCHRUN, Home

MIB = 1 << 20
SETTLE_S = 5.0
TIMEOUT_S = 400.0


def marked(mark: str) -> list[psutil.Process]:
    """The processes that were started with `mark` among their variables."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MEMORY_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def pss_bytes(pid: int) -> int:
    """The proportional share of memory of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return 1024 * int(text.partition("\nPss:")[2].split()[0])


def measure(name: str, command: list[str], home: Home) -> int:
    """Run the toy, and return what all of its processes hold once it has stepped."""
    mark, stamp = uuid.uuid4().hex, home.path / uuid.uuid4().hex
    env = {**home.env, "MEMORY_MARK": mark}
    toy = [str(home.script), "1000000", "0.5", str(stamp)]
    subprocess.Popen(
        [*command, *toy],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not Path(f"{stamp}.first").exists():
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{name} did not train")
            time.sleep(0.1)
        time.sleep(SETTLE_S)
        held = {process.pid: pss_bytes(process.pid) for process in marked(mark)}
        print(f"{name}: {len(held)} processes, {sum(held.values()) / MIB:.0f} MiB", flush=True)
        return sum(held.values())
    finally:
        while processes := marked(mark):
            for process in processes:
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)


def main() -> None:
    """Measure both, and print the ratio; exit status 1 where ddptop holds more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    home = Home()
    ranks = str(options.ranks)
    theirs = measure("torchrun", [*TORCHRUN[:-1], ranks], home)
    ours = measure(
        "ddptop", [sys.executable, "-m", "ddptop", "launch", "-d", "--nproc", ranks], home
    )
    print(f"ddptop holds {ours / theirs:.2f} times what torchrun does (allowed: 1)")
    sys.exit(ours > theirs)


if __name__ == "__main__":
    main()
