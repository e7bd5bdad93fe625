"""Measure the history of a long job: file size, cost of writing, and time to read it for a screen.

    python benchmarks/history_size.py                 # 7 days, 8 ranks, 8 devices, 1 Hz
    python benchmarks/history_size.py --days 0.25

The clock is simulated. The long history is written without fsync and in batches of 30 s, which
produces the same file. The cost per tick is then measured with the settings of a real job, on the
disk of `--dir`.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.model.snapshot import Event, GpuSample, RankSample
from ddptop_runner.store.history import HistoryReader, HistoryWriter
from ddptop_runner.store.history_schema import GPU, RANK

START = 1_767_225_600
VARIANTS = 997
"""Number of pregenerated ticks; a prime, so that no two buckets are equal."""


def ticks_of(rank_count: int, gpu_count: int) -> list[tuple[list[RankSample], list[GpuSample]]]:
    """Return samples with realistic digits: noisy losses, whole percents, large byte counts."""
    rng = random.Random(1)
    return [
        (
            [
                RankSample(
                    rank=r,
                    local_rank=r,
                    host="node",
                    step=tick,
                    loss=2 + rng.random(),
                    loss_min=1.9 + rng.random() / 10,
                    loss_max=3 + rng.random(),
                    loss_state="ok",
                    step_time_s=0.2 + rng.random() / 50,
                    data_wait_s=rng.random() / 100,
                    sync_s=rng.random() / 50,
                    compute_s=0.1 + rng.random() / 50,
                    log_bytes=100 * tick,
                    cpu_percent=round(100 + 50 * rng.random(), 1),
                    rss_bytes=8_000_000_000 + 4096 * rng.randrange(10_000),
                )
                for r in range(rank_count)
            ],
            [
                GpuSample(
                    index=g,
                    util_percent=rng.randrange(80, 101),
                    mem_used_bytes=60_000_000_000 + 2_097_152 * rng.randrange(100),
                    temperature_c=rng.randrange(55, 80),
                    power_w=round(400 + 250 * rng.random(), 3),
                )
                for g in range(gpu_count)
            ],
        )
        for tick in range(VARIANTS)
    ]


def simulate(path: Path, days: float, rank_count: int, gpu_count: int) -> tuple[float, float]:
    """Write a whole history; return the elapsed seconds and the CPU seconds."""
    source = ticks_of(rank_count, gpu_count)
    writer = HistoryWriter(path, batch_s=30)
    assert writer._db is not None
    writer._db.execute("PRAGMA synchronous=OFF")
    began, cpu_began = time.perf_counter(), time.process_time()
    for tick in range(int(days * 86_400)):
        ranks, gpus = source[tick % VARIANTS]
        writer.add(START + tick, 0, ranks, gpus)
        if tick % 1800 == 0:
            writer.event(
                Event(ts=utc_from_unix(START + tick), type="checkpoint", message="a checkpoint")
            )
    writer.close(final=True)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    assert writer.problem is None
    return took_s, cpu_s


def tick_costs_ms(path: Path, rank_count: int, gpu_count: int, ticks: int = 3000) -> list[float]:
    """Return the milliseconds of each `add`, with a job's settings and the one-hour tier full."""
    source = ticks_of(rank_count, gpu_count)
    writer = HistoryWriter(path)
    for tick in range(3700):
        writer.add(START + tick, 0, *source[tick % VARIANTS])
    costs = []
    for tick in range(3700, 3700 + ticks):
        ranks, gpus = source[tick % VARIANTS]
        began = time.perf_counter()
        writer.add(START + tick, 0, ranks, gpus)
        costs.append((time.perf_counter() - began) * 1000)
    writer.close()
    return sorted(costs)


def open_screen_ms(path: Path, until: float) -> dict[str, float]:
    """Return the milliseconds of each read of an opening job screen, each with a new reader."""
    reads: dict[str, Callable[[HistoryReader], object]] = {
        "loss of all ranks, all time, 240 points": lambda r: r.series(RANK, "loss", 0, until, 240),
        "utilization of all devices, all time": lambda r: r.series(
            GPU, "util_percent", 0, until, 240
        ),
        "loss of the last 30 min, 240 points": lambda r: r.series(
            RANK, "loss", until - 1800, until, 240
        ),
        "loss of the last 12 h, 240 points": lambda r: r.series(
            RANK, "loss", until - 43_200, until, 240
        ),
        "last 200 events": lambda r: r.events(limit=200),
    }
    costs = {}
    for name, read in reads.items():
        took = []
        for _ in range(5):
            began = time.perf_counter()
            read(HistoryReader(path))
            took.append((time.perf_counter() - began) * 1000)
        costs[name] = statistics.median(took)
    return costs


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--dir", type=Path, help="where to write (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name)
        long_run = folder / "history.db"
        took_s, cpu_s = simulate(long_run, arguments.days, arguments.ranks, arguments.gpus)
        ticks = int(arguments.days * 86_400)
        print(
            f"{arguments.days:g} days x {arguments.ranks} ranks x {arguments.gpus} devices at 1 Hz:"
            f" {long_run.stat().st_size / 2**20:.1f} MiB,"
            f" written in {took_s:.1f} s,"
            f" {cpu_s:.1f} s of CPU ({cpu_s / ticks * 1e6:.0f} us per tick)"
        )
        db = sqlite3.connect(long_run)
        for (table,) in db.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE '%s'"
        ).fetchall():
            (rows,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
            print(f"  {table:10} {rows:8} rows")
        db.close()
        print("reading (median of 5, ms):")
        for read, cost in open_screen_ms(long_run, START + ticks).items():
            print(f"  {cost:7.1f}  {read}")
        print("cost per tick, WAL, synchronous=NORMAL (ms):")
        for rank_count, gpu_count in ((2, 0), (2, 2), (8, 8), (64, 8)):
            costs = tick_costs_ms(folder / f"{rank_count}-{gpu_count}.db", rank_count, gpu_count)
            print(
                f"  {rank_count} ranks, {gpu_count} devices: median {statistics.median(costs):.2f},"
                f" 99 % {costs[int(len(costs) * 0.99)]:.2f}, max {costs[-1]:.1f}"
            )


if __name__ == "__main__":
    main()
