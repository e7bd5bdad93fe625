"""Compare the memory of a DDP job with 8 ranks under ddptop and under torchrun.

    python benchmarks/memory.py [--ranks 8]

Sums PSS (/proc/PID/smaps_rollup, which counts a shared page once) over all processes that have a
mark in their environment: the ranks and all processes of the launcher. For ddptop, these include
tmux, guardian, supervisor, zygote, and store keeper. The two jobs run one after the other.
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
    """Return the processes with `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MEMORY_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return 1024 * int(text.partition("\nPss:")[2].split()[0])


def measure(name: str, command: list[str], home: Home) -> int:
    """Run the script, and return the memory of all processes after its first step."""
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
    """Print the ratio; exit with 1 if ddptop uses more memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    options = parser.parse_args()
    home = Home()
    ranks = str(options.ranks)
    theirs = measure("torchrun", [*TORCHRUN[:-1], ranks], home)
    ours = measure(
        "ddptop", [sys.executable, "-m", "ddptop", "launch", "-d", "--nproc", ranks], home
    )
    print(f"ddptop uses {ours / theirs:.2f} times the memory of torchrun (limit: 1)")
    sys.exit(ours > theirs)


if __name__ == "__main__":
    main()
