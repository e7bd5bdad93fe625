"""Rank logs: found, read from the end, followed from attempt to attempt.

What a log holds is cleaned by `log_clean` before anyone sees it as lines; `ByteFollower` alone
hands it on as written.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ddptop_runner.log_clean import LineCleaner, sanitize
from ddptop_runner.log_ranges import BLOCK_BYTES, LogFile, scan_back
from ddptop_runner.model import LAUNCHER
from ddptop_runner.paths import RunFolder

__all__ = [
    "BLOCK_BYTES",
    "ByteFollower",
    "LineCleaner",
    "LogChunk",
    "LogFollower",
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
MAX_BLOCKS = 32
POLL_S = 0.2
"""How often a follower looks for more."""


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


@dataclass(frozen=True)
class LogLine:
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


@dataclass(frozen=True)
class LogChunk:
    """Bytes that a rank wrote."""

    attempt: int
    rank: int | None
    """None: no bytes, but the note that this attempt begins."""
    data: bytes

    @property
    def is_full(self) -> bool:
        """Whether there was more than one read takes."""
        return len(self.data) >= BLOCK_BYTES


class _OpenLog(LogFile):
    """One rank's log and how far it has been read."""

    def __init__(self, path: Path, attempt: int, rank: int) -> None:
        super().__init__(path)
        self.attempt = attempt
        self.rank = rank


class ByteFollower:
    """Follows logs as they are written, from one attempt to the next, and loses nothing.

    The next attempt is looked for before the present one is read, and entered once that read has
    reached the end. What a left-over process of the former attempt still writes is read too.
    """

    def __init__(
        self,
        folder: RunFolder,
        only: Collection[int] | None = None,
        attempt: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        tail: int | None = None,
        max_tail_bytes: int | None = None,
    ) -> None:
        """Nothing is opened before the first `poll`.

        Args:
            folder: the job's.
            only: the ranks to follow; None follows all, later ones included.
            attempt: stay with this attempt; None starts with the latest and goes on.
            is_over: whether the job has ended. It is asked before each read, so that what was
                written before the end is read.
            tail: start with so many last lines of each log; None starts at the beginning.
            max_tail_bytes: start no further back than this, be it inside a line.
        """
        self._folder = folder
        self._only = only
        self._fixed = attempt
        self._is_over = is_over
        self._tail = tail
        self._max_tail_bytes = max_tail_bytes
        self._attempt: int | None = None
        self._logs: dict[int, _OpenLog] = {}
        self._former: list[_OpenLog] = []

    def __enter__(self) -> ByteFollower:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        for log in (*self._former, *self._logs.values()):
            log.close()
        self._former, self._logs = [], {}

    def poll(self) -> list[LogChunk]:
        """What is new since the call before, without waiting; empty when all has been read."""
        existing = attempts(self._folder)
        if self._attempt is None:
            if self._fixed is not None:
                self._attempt = self._fixed
            elif existing:
                self._attempt = existing[-1]
            else:
                return []
            self._open(self._attempt)
            if self._tail is not None:
                for log in self._logs.values():
                    log.seek(log.tail_offset(self._tail, self._max_tail_bytes))
        chunks = self._read(self._attempt)
        later = [number for number in existing if number > self._attempt]
        if (
            not later
            or self._fixed is not None
            or any(chunk.attempt == self._attempt and chunk.is_full for chunk in chunks)
        ):
            return chunks
        for log in self._former:
            log.close()
        self._former, self._logs = list(self._logs.values()), {}
        self._attempt = later[0]
        return [*chunks, LogChunk(self._attempt, None, b""), *self._read(self._attempt)]

    def batches(self, poll_s: float = POLL_S) -> Iterator[list[LogChunk]]:
        """What each poll finds, empty lists included, until the job is over and all was read."""
        while True:
            over = self._is_over() or self._superseded()
            chunks = self.poll()
            yield chunks
            if over and not chunks:
                return
            if not over and not any(chunk.is_full for chunk in chunks):
                time.sleep(poll_s)

    def _superseded(self) -> bool:
        """Whether the one attempt that is followed has made way for a later one."""
        return self._fixed is not None and any(n > self._fixed for n in attempts(self._folder))

    def _open(self, attempt: int) -> None:
        """Open the logs that have appeared since the call before."""
        for rank in ranks(self._folder, attempt):
            if rank in self._logs or (self._only is not None and rank not in self._only):
                continue
            try:
                path = self._folder.log_file(attempt, rank)
                self._logs[rank] = _OpenLog(path, attempt, rank)
            except FileNotFoundError:  # removed since it was listed
                continue

    def _read(self, attempt: int) -> list[LogChunk]:
        self._open(attempt)
        return [
            LogChunk(log.attempt, log.rank, data)
            for log in (*self._former, *self._logs.values())
            if (data := log.read(BLOCK_BYTES))
        ]


class LogFollower:
    """Follows logs as clean lines; a note stands between the lines of two attempts."""

    def __init__(
        self,
        folder: RunFolder,
        only: Collection[int] | None = None,
        attempt: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        tail: int | None = None,
    ) -> None:
        """The arguments are those of `ByteFollower`."""
        limit = None if tail is None else MAX_TAIL_BYTES + 4096 * tail
        self._source = ByteFollower(folder, only, attempt, is_over, tail, limit)
        self._cleaners: dict[tuple[int, int], LineCleaner] = {}

    def __iter__(self) -> Iterator[LogLine]:
        """Lines as they come, until the job is over and everything was read."""
        for lines in self.batches():
            yield from lines

    def batches(self, poll_s: float = POLL_S) -> Generator[list[LogLine], None, None]:
        """The lines of each poll, empty lists included, to the end."""
        with self._source:
            for chunks in self._source.batches(poll_s):
                yield self._clean(chunks)
            yield self._finish()

    def poll(self) -> list[LogLine]:
        """The lines that have ended since the call before, without waiting.

        At most 8 MiB of each log are read; more is left to the next call.
        """
        lines = []
        for _ in range(MAX_BLOCKS):
            chunks = self._source.poll()
            lines += self._clean(chunks)
            if not any(chunk.is_full for chunk in chunks):
                break
        return lines

    def close(self) -> None:
        """Let go of the files, where `poll` was used."""
        self._source.close()

    def partial(self) -> dict[int, str]:
        """By rank: the line that it has not ended yet, such as a progress bar's present state."""
        return {rank: c.partial for (_, rank), c in self._cleaners.items() if c.partial}

    def _clean(self, chunks: list[LogChunk]) -> list[LogLine]:
        lines = []
        for chunk in chunks:
            if chunk.rank is None:
                lines += self._finish()
                lines.append(LogLine(chunk.attempt, None, separator(chunk.attempt)))
                continue
            cleaner = self._cleaners.setdefault((chunk.attempt, chunk.rank), LineCleaner())
            lines += [LogLine(chunk.attempt, chunk.rank, t) for t in cleaner.feed(chunk.data)]
        return lines

    def _finish(self) -> list[LogLine]:
        """The lines that no newline ended."""
        lines = [
            LogLine(attempt, rank, text)
            for (attempt, rank), cleaner in sorted(self._cleaners.items())
            for text in cleaner.finish()
        ]
        self._cleaners.clear()
        return lines
