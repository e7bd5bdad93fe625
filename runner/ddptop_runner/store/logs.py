"""Rank logs: found, and read from the end; `log_follow` reads on as they grow.

What a log holds is cleaned by `log_clean` before anyone sees it as lines.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.store.log_clean import LineCleaner, sanitize
from ddptop_runner.store.log_ranges import BLOCK_BYTES, LogFile, scan_back

__all__ = [
    "BLOCK_BYTES",
    "LineCleaner",
    "LogLine",
    "attempts",
    "last_lines",
    "merged_tail",
    "prefix",
    "ranks",
    "sanitize",
    "separator",
    "stream_tails",
    "tail_lines",
    "tail_offset",
]

MAX_TAIL_BYTES = 1 << 22
"""Where lines are wanted, the search for them ends here, plus 4 KiB per line: the progress bar of
days may be a single line."""


def attempts(folder: RunFolder) -> list[int]:
    """The attempts that have a folder for logs, in order."""
    return _numbers(folder.logs_dir, "attempt-", "")


def ranks(folder: RunFolder, attempt: int) -> list[int]:
    """The ranks that have a log in an attempt, in order; `model.LAUNCHER` where there is one."""
    launcher = [LAUNCHER] if folder.log_file(attempt, LAUNCHER).exists() else []
    return [*launcher, *_numbers(folder.logs_dir / f"attempt-{attempt}", "rank-", ".log")]


def _numbers(directory: Path, prefix: str, suffix: str) -> list[int]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    middles = (
        name[len(prefix) : len(name) - len(suffix)]
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    )
    return sorted(int(middle) for middle in middles if middle.isascii() and middle.isdigit())


def tail_offset(file: BinaryIO, count: int, max_bytes: int | None = None) -> int:
    """The byte of a plain file at which its last `count` lines start; see `LogFile.tail_offset`."""
    size = file.seek(0, os.SEEK_END)
    if count <= 0:
        return size
    first = 0 if max_bytes is None else max(0, size - max_bytes)

    def read(position: int, length: int) -> bytes:
        file.seek(position)
        return file.read(length)

    found, _ = scan_back(read, first, max(size - 1, first), count)
    return first if found is None else found


def _to_next_start(log: LogFile) -> None:
    """Read on from where the next line or redraw starts, where the position lies inside one."""
    position = log.position
    if position <= log.first:
        return
    log.seek(position - 1)
    if log.read(1).endswith(b"\n"):  # the line that stands for a gap has more than one byte
        log.seek(position)
        return
    log.seek(position)
    found = re.search(rb"[\r\n]", log.read(BLOCK_BYTES))
    log.seek(position if found is None else position + found.end())


def tail_lines(path: Path, count: int, max_bytes: int | None = None) -> Iterator[str]:
    """The last `count` lines of a log, cleaned, as they are read; none where there is no file.

    Args:
        path: the log.
        count: so many lines; an unfinished last one counts.
        max_bytes: start no further back than this, at the next line.
    """
    try:
        log = LogFile(path)
    except FileNotFoundError:
        return
    cleaner = LineCleaner()
    with log:
        log.seek(log.tail_offset(count, max_bytes))
        if max_bytes is not None:
            _to_next_start(log)
        while block := log.read(BLOCK_BYTES):
            yield from cleaner.feed(block)
        yield from cleaner.finish()


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a log, cleaned; none where there is no such file.

    Reads only the end of the log. An unfinished last line counts.
    """
    lines = tail_lines(path, count, MAX_TAIL_BYTES + 4096 * count)
    return list(deque(lines, maxlen=max(count, 0)))


class LogLine(msgspec.Struct, frozen=True):
    """One clean line of a rank's log."""

    attempt: int
    rank: int | None
    """`model.LAUNCHER` of what a command wrote; None: a note that this attempt begins."""
    text: str

    def prefixed(self) -> str:
        """The line as it stands among those of other ranks."""
        return self.text if self.rank is None else f"{prefix(self.rank)}{self.text}"


def prefix(rank: int) -> str:
    """What stands before a line of one log among those of others."""
    return "[launcher] " if rank == LAUNCHER else f"[rank {rank}] "


def separator(attempt: int) -> str:
    """What stands between the lines of one attempt and the next."""
    return f"──── attempt {attempt} ────"


def merged_tail(
    folder: RunFolder, attempt: int, count: int, only: list[int] | None = None
) -> list[LogLine]:
    """The last `count` lines of each rank, rank by rank.

    Log lines carry no time, so those of several ranks cannot be put in the order in which they
    were written; following does interleave them, as they arrive.
    """
    chosen = ranks(folder, attempt) if only is None else only
    return [
        LogLine(attempt, rank, text)
        for rank in chosen
        for text in last_lines(folder.log_file(attempt, rank), count)
    ]


def stream_tails(
    folder: RunFolder, attempt: int, count: int, only: list[int] | None = None
) -> Iterator[LogLine]:
    """As `merged_tail`, but however long they are: nothing is kept in memory."""
    for rank in ranks(folder, attempt) if only is None else only:
        for text in tail_lines(folder.log_file(attempt, rank), count):
            yield LogLine(attempt, rank, text)
