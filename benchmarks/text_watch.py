"""Measure what it costs the supervisor to follow the output of ranks: normal output, and a flood.

    .venv/bin/python benchmarks/text_watch.py [--seconds 20] [--flood-mb 30]

A separate process writes the logs. CPU time covers only the polls, one per second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.reading.progress.text_watch import TextWatch

RANKS = 8
LINE = (
    "\rEpoch 3:  41%|####      | {step}/80000 [1:02:03<1:30:12, 12.34it/s, v_num=3,"
    " train_loss={loss:.3f}]\nstep {step}/80000 loss {loss:.4f} lr 3.0e-4 grad_norm 0.81\n"
)


def write_lines(folder: RunFolder, ranks: int, seconds: float) -> None:
    """Write one line and one redraw per second for each rank."""
    files = [folder.log_file(0, rank).open("ab", buffering=0) for rank in range(ranks)]
    end_s, step = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        step += 1
        for file in files:
            file.write(LINE.format(step=step, loss=3 / step**0.3).encode())
        time.sleep(1.0)


def flood(folder: RunFolder, bytes_per_s: float, seconds: float) -> None:
    """Write `bytes_per_s` as rank 0."""
    file = folder.log_file(0, 0).open("ab", buffering=0)
    end_s, step, written, began_s = time.monotonic() + seconds, 0, 0, time.monotonic()
    while (now_s := time.monotonic()) < end_s:
        block = "".join(LINE.format(step=step + i, loss=2.5) for i in range(5000)).encode()
        step += 5000
        file.write(block)
        written += len(block)
        time.sleep(max(0.0, written / bytes_per_s - (now_s - began_s)))


def measure(
    writer: Callable[..., None], seconds: float, *arguments: float
) -> tuple[float, float, float]:
    """Return CPU in percent of a core, the longest poll in ms, and bytes read per second."""
    with tempfile.TemporaryDirectory() as home:
        folder = RunFolder(Path(home))
        (folder.logs_dir / "attempt-0").mkdir(parents=True)
        for rank in range(RANKS):
            folder.log_file(0, rank).touch()
        watch = TextWatch(folder)
        process = multiprocessing.Process(target=writer, args=(folder, *arguments, seconds))
        process.start()
        cpu_s, longest_s, used, began_s = 0.0, 0.0, 0, time.monotonic()
        while process.is_alive():
            time.sleep(1.0)
            before_s = time.thread_time()
            used += watch.look(0, time.monotonic() - began_s, range(RANKS), utc_now())
            for known in watch.ranks.values():
                known.progress(utc_now())
            spent_s = time.thread_time() - before_s
            cpu_s, longest_s = cpu_s + spent_s, max(longest_s, spent_s)
        took_s = time.monotonic() - began_s
        watch.close()
        process.join()
    return 100 * cpu_s / took_s, 1e3 * longest_s, used / took_s


def main() -> None:
    """Measure and print both kinds of output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flood-mb", type=float, default=30.0)
    options = parser.parse_args()
    for name, figures in (
        (f"{RANKS} ranks, one line per second each", measure(write_lines, options.seconds, RANKS)),
        (
            f"a flood of {options.flood_mb:g} MB/s",
            measure(flood, options.seconds, options.flood_mb * 1e6),
        ),
    ):
        percent, longest_ms, read = figures
        print(
            f"{name}: {percent:.2f} % of a core, longest poll {longest_ms:.1f} ms,"
            f" {read / 1e3:.0f} kB/s read"
        )


if __name__ == "__main__":
    main()
