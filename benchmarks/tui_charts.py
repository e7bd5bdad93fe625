"""Measure the CPU time of drawing charts, and of reading a history of 1,024 ranks.

    python benchmarks/tui_charts.py [--ranks 1024]

The limit is 8 ms for a chart of 8 ranks with 2,000 samples each on 120x20 cells. A chart is redrawn
only if something changed. Before reading, the script writes a history of one hour, which takes a
while.
"""

from __future__ import annotations

import argparse
import math
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ddptop.charts.axis import View
from ddptop.charts.curves import ChartOptions, Curve, Curves, draw_curves
from ddptop.charts.plots import curves_of
from ddptop.job.series import ChartData, Points, middle_of

from ddptop_runner.store.history import HistoryReader
from ddptop_runner.store.history_schema import RANK, ddl

WIDTH, HEIGHT, SAMPLES, ALLOWED_MS = 120, 20, 2000, 8.0
START = 1_767_225_600
FINE_S, HOUR_S = 600, 3600
TIMES = 15


def points(rng: random.Random, drift: float) -> Points:
    """Return a falling loss with noise."""
    values = [
        2 + 3 * math.exp(-i / 500) + rng.gauss(0, 0.08) + drift * (i > 1000) for i in range(SAMPLES)
    ]
    return Points([float(i) for i in range(SAMPLES)], values, values, values)


def cpu_ms(of: Callable[[], object], times: int = TIMES) -> float:
    """Return the median CPU time of a call in milliseconds."""
    spent = []
    for _ in range(times):
        before = time.process_time()
        of()
        spent.append(1000 * (time.process_time() - before))
    return statistics.median(spent)


def drawing() -> float:
    """Print the cost of each chart; return that of the default loss chart in milliseconds."""
    rng = random.Random(1)
    ranks = {rank: points(rng, 1.5 * (rank == 5)) for rank in range(8)}
    losses = ChartData(
        middle=middle_of(ranks),
        number=8,
        series=ranks,
        apart={5: 0.6},
        since=0,
        until=SAMPLES,
        marks=((950.0, "attempt 1"),),
    )
    figures = Curves(
        tuple(Curve(f"c{rank}", one, "%W"[rank % 2]) for rank, one in ranks.items()),
        since=0,
        until=SAMPLES,
    )

    def draw_chart(data: ChartData, options: ChartOptions, width: int, height: int) -> object:
        return draw_curves(curves_of(data, options), options, width, height)

    smooth = ChartOptions(smoothing=0.9, view=View(cursor=700.0))
    loss_ms = cpu_ms(lambda: draw_chart(losses, ChartOptions(), WIDTH, HEIGHT))
    for name, of in (
        ("smoothed, with a cursor", lambda: draw_chart(losses, smooth, WIDTH, HEIGHT)),
        ("one line per rank", lambda: draw_chart(losses, ChartOptions("ranks"), WIDTH, HEIGHT)),
        ("8 metrics in 2 plots", lambda: draw_curves(figures, ChartOptions(), WIDTH, HEIGHT)),
    ):
        print(f"{name:<28} {cpu_ms(of):6.1f} ms")
    over = "  EXCEEDED" if loss_ms > ALLOWED_MS else ""
    print(f"{'loss: median and band':<28} {loss_ms:6.1f} ms (limit: {ALLOWED_MS:.0f} ms){over}")
    return loss_ms


def write_hour(path: Path, ranks: int) -> None:
    """Write a history of an hour: the last ten minutes per second, all of it in coarser buckets."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=OFF")
    for statement in ddl():
        db.execute(statement)
    rng = random.Random(2)
    columns = "t, rank, attempt, step, loss_nonfinite, loss_min, loss_mean, loss_max, loss_last"
    for tier, times in (
        ("1s", range(HOUR_S - FINE_S, HOUR_S)),
        ("10s", range(0, HOUR_S, 10)),
        ("60s", range(0, HOUR_S, 60)),
    ):
        rows = (
            (START + at, rank, 0, at, 0, v - 0.01, v, v + 0.01, v)
            for at in times
            for rank in range(ranks)
            for v in [2 + 3 * math.exp(-at / 900) + rng.gauss(0, 0.05) + (rank == 77)]
        )
        db.executemany(f"INSERT INTO rank_{tier} ({columns}) VALUES (?,?,?,?,?,?,?,?,?)", rows)
        of_job = columns.replace("rank", "job")
        db.execute(
            f"INSERT INTO job_{tier} ({of_job}) SELECT t, 0, 0, max(step), 0, min(loss_mean),"
            f" avg(loss_mean), max(loss_mean), avg(loss_mean) FROM rank_{tier} GROUP BY t"
        )
    db.commit()
    db.close()


def reading(ranks: int) -> None:
    """Print the cost of reading all ranks, individually and as a band."""
    with tempfile.TemporaryDirectory(prefix="ddptop-bench-") as folder:
        path = Path(folder) / "history.db"
        write_hour(path, ranks)
        reader, end = HistoryReader(path), START + HOUR_S - 1
        each = cpu_ms(lambda: reader.series(RANK, "loss", START, end, 400), 1)

        def band() -> None:
            reader.losses(START, end, 400)
            reader.series(RANK, "loss", START, end, 400, [5, 77])

        print(f"an hour of {ranks:,} ranks: individually {each:.0f} ms of CPU;")
        print(f"  as a band {cpu_ms(band):.0f} ms per update with two odd ranks")


def main() -> None:
    """Measure; exit with 1 if the loss chart takes longer than ALLOWED_MS."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1024)
    options = parser.parse_args()
    loss_ms = drawing()
    reading(options.ranks)
    sys.exit(loss_ms > ALLOWED_MS)


if __name__ == "__main__":
    main()
