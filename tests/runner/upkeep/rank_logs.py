"""Logs of ranks: written, shortened and looked at."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddptop_runner.store.log_ranges import LogFile
from ddptop_runner.store.upkeep.rank_log import RankLog

LIMIT = 256 * 1024


def write_lines(log: Path, start: int, count: int) -> None:
    """Numbered lines."""
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(start, start + count))


def numbers(text: str | list[str]) -> list[int]:
    """The numbers of such lines, of which each must be whole."""
    lines = text.splitlines() if isinstance(text, str) else text
    assert all(line.startswith("line ") for line in lines), [x for x in lines if x[:5] != "line "]
    return [int(line.split()[1]) for line in lines]


def whole(log: Path) -> str:
    """All that was ever written."""
    with LogFile(log) as file:
        return file.read(1 << 30).decode()


def allocated(log: Path) -> int:
    """Bytes that it takes on the disk."""
    return log.stat().st_blocks * 512


def settle(rank_log: RankLog, now_s: float = 0.0) -> float:
    """Look until nothing is left to do."""
    for _ in range(50):
        now_s += 1.0
        rank_log.look(now_s)
        if rank_log._job is None:
            return now_s
        rank_log._job.exception()
    raise AssertionError("it never settles")


def shorten(log: Path, worker: ThreadPoolExecutor, limit: int = LIMIT) -> list[str]:
    """Have its head archived; what is told of it."""
    rank_log = RankLog(log, 0, limit, worker)
    settle(rank_log)
    rank_log.close()
    return [news.kind for news in rank_log.news]
