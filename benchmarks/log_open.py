"""Measure how fast a log of 1 GiB opens and is searched, and how much memory that takes.

    python benchmarks/log_open.py [--gib N] [--rounds N]

Opens the logs screen as a user does, but without a terminal. `page` is the reader's share of that;
`search` looks for text that does not occur, backwards from the end; `errors` scans the same way for
lines that report errors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

GIB = 1 << 30
LINES = 20_000
"""Number of distinct lines, which are repeated."""


def make_log(path: Path, size_bytes: int) -> None:
    """Write typical training output: lines of about 100 bytes, with an occasional warning."""
    lines = []
    for step in range(LINES):
        lines.append(
            f"2026-03-14 12:00:{step % 60:02},{step % 1000:03} - train - INFO - step {step} "
            f"loss {2 + 3 / (step + 1):.4f} lr 3.0e-04 grad_norm {step % 7 / 3:.3f} 812 ms/step\n"
        )
        if step == LINES // 2:
            lines.append("train.py:81: UserWarning: the batch is smaller than usual\n")
    block = "".join(lines).encode()
    with path.open("wb") as file:
        for _ in range(size_bytes // len(block)):
            file.write(block)
        file.write(b"the last line\n")


def rss_mib() -> float:
    """Return the resident memory of this process."""
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def measure_reader(path: Path) -> dict[str, float]:
    """Measure the log reader without a screen."""
    from ddptop.logs.file import FileLog
    from ddptop.logs.search import pattern_of

    before_s = time.perf_counter()
    log = FileLog(path)
    page = log.around(None)
    page_s = time.perf_counter() - before_s
    assert page.rows[-1].text == "the last line"
    size = log.end
    figures = {"page_ms": page_s * 1000}
    for name, text in (
        ("text", "no such words"),
        ("pattern", r"no such (words|text)\b"),
    ):
        before_s = time.perf_counter()
        assert not any(rows for _, rows in log.matches(pattern_of(text), None, -1))
        figures[f"search_{name}_mb_per_s"] = size / 1e6 / (time.perf_counter() - before_s)
    before_s, page = time.perf_counter(), log.around(None, "error")
    while page.before_bytes:
        page = log.extended(page, -1, "error")
    figures["errors_mb_per_s"] = size / 1e6 / (time.perf_counter() - before_s)
    log.close()
    return figures


async def open_screen(rounds: int) -> dict[str, float]:
    """Measure the time from opening a log to its last lines, and from there to its first line."""
    from ddptop.tui.app import DdptopApp
    from ddptop.tui.messages import LogsWanted
    from ddptop.tui.screens.logs import LogsScreen

    opened: list[float] = []
    jumped: list[float] = []
    app = DdptopApp(tick_s=None)
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        before_mib = rss_mib()
        for _ in range(rounds):
            before_s = time.perf_counter()
            app.post_message(LogsWanted("big", 0))
            while not (isinstance(screen := app.screen, LogsScreen) and screen.pager.rows):
                await asyncio.sleep(0.001)
            opened.append(time.perf_counter() - before_s)
            before_s = time.perf_counter()
            await pilot.press("g")
            while screen.pager.page.before_bytes:
                await asyncio.sleep(0.001)
            jumped.append(time.perf_counter() - before_s)
            await pilot.press("escape")
            while isinstance(app.screen, LogsScreen):
                await asyncio.sleep(0.001)
        after_mib = rss_mib()
    return {
        "open_ms": statistics.median(opened) * 1000,
        "open_worst_ms": max(opened) * 1000,
        "to_first_line_ms": statistics.median(jumped) * 1000,
        "rss_more_mib": after_mib - before_mib,
    }


def measure(size_bytes: int = GIB, rounds: int = 5) -> dict[str, float]:
    """Return all measurements for a job whose rank 0 printed `size_bytes`."""
    import datetime as dt

    from ddptop_runner.base.paths import RunFolder
    from ddptop_runner.model.spec import JobSpec, write_spec

    with tempfile.TemporaryDirectory(prefix="ddptop-bench-") as name:
        home = Path(name)
        os.environ["DDPTOP_HOME"] = str(home)
        folder = RunFolder(home / "runs" / "big")
        folder.nodes_dir.mkdir(parents=True)
        path = folder.log_file(0, 0)
        path.parent.mkdir(parents=True)
        now = dt.datetime.now(dt.timezone.utc)
        write_spec(
            folder,
            JobSpec(
                job="big",
                job_id="big@0",
                host="bench",
                created_at=now,
                kind="script",
                target="train.py",
                python="python",
                cwd="/",
                nproc=1,
            ),
        )
        make_log(path, size_bytes)
        return {
            "size_mb": path.stat().st_size / 1e6,
            **asyncio.run(open_screen(rounds)),
            **measure_reader(path),
            "rss_mib": rss_mib(),
        }


def main() -> None:
    """Print the measurements as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = measure(int(options.gib * GIB), options.rounds)
    print(json.dumps({name: round(value, 1) for name, value in found.items()}))


if __name__ == "__main__":
    main()
