r"""Rank logs: found, read from any byte or from the end, and followed as they grow.

`LogFile` is the only reader; everything else here reads through it. `log_clean` cleans a log's
content before it is shown as lines.

The supervisor drops the head of a log that is too long by punching a hole in the file
(`disk.RankLog`), so that offsets never change.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded, units
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.store.log_clean import LineCleaner, sanitize

BLOCK_BYTES = 1 << 18
MAX_TAIL_BYTES = 1 << 22
"""How far back to search for lines, plus 4 KiB per line: the progress bar of several days may be a
single line."""
END_READ_BYTES = 4 * 1024 * 1024
"""A progress bar without line ends may have written a megabyte after a traceback."""
END_KEPT_BYTES = 256 * 1024
LINE_BYTES = 4000
"""Longer lines are shortened to their two ends."""
POLL_S = 0.2
"""How often a follower checks for more."""


# -- finding logs --------------------------------------------------------------------------------


def attempts(folder: RunFolder) -> list[int]:
    """The attempts with a log folder, in order."""
    return _numbers(folder.logs_dir, "attempt-", "")


def ranks(folder: RunFolder, attempt: int) -> list[int]:
    """The ranks with a log in an attempt, in order, including `LAUNCHER`."""
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


# -- one log ---------------------------------------------------------------------------------------


def dropped_note(size_bytes: int, elsewhere: str | None = None) -> str:
    """The line shown in place of a log's missing head.

    Args:
        size_bytes: how much is missing.
        elsewhere: where it may be, for a log of another host.
    """
    why = elsewhere or "dropped: log limit reached or disk full"
    return f"──── {units.size(size_bytes)} of earlier output {why} ────"


def head_hole(fd: int) -> int:
    """The number of bytes dropped at the head of an open log."""
    try:
        hole = os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:  # no data at all, or not supported
        hole = os.fstat(fd).st_size if error.errno == errno.ENXIO else 0
    # reserved blocks that were just written may still count as a hole
    return hole if hole and os.pread(fd, 1, 0) == b"\0" else 0


class LogFile:
    """A log, opened for reading at its first byte.

    Raises:
        OSError: the file cannot be opened; FileNotFoundError if it is not a regular file.
    """

    def __init__(self, path: Path | int) -> None:
        """`path` may be an open descriptor."""
        try:
            fd = path if isinstance(path, int) else bounded.open_regular(path)
            self._file = os.fdopen(fd, "rb", buffering=0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise FileNotFoundError(errno.ENOENT, error.strerror, str(path)) from error
        self._fd = self._file.fileno()
        self._hole = self._first = 0
        self.position = 0
        """Where reading continues."""

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def first(self) -> int:
        """Where the first line that was not dropped starts; 0 in most logs."""
        hole = head_hole(self._fd)
        if hole != self._hole:
            self._hole = self._first = hole
            if hole:  # a hole consists of whole blocks and ends inside a line
                newline = os.pread(self._fd, BLOCK_BYTES, hole).find(b"\n")
                self._first = hole + newline + 1
        return self._first

    @property
    def end(self) -> int:
        """The offset of the end."""
        return os.fstat(self._fd).st_size

    def is_at(self, path: Path) -> bool:
        """Whether `path` is this file.

        Raises:
            OSError: there is no such file.
        """
        return os.path.samestat(os.fstat(self._fd), path.stat())

    @property
    def written_at(self) -> float:
        """Time of the last write, in Unix seconds."""
        return os.fstat(self._fd).st_mtime

    def read(self, count: int) -> bytes:
        """Up to `count` bytes, none at the end; in place of dropped ones, a line that says so."""
        if self.position > self.end:  # truncated by someone: what remains is new
            self.position = 0
        data = os.pread(self._fd, count, self.position)
        if self.position >= (first := self.first):
            self.position += len(data)
            return data
        start, self.position = self.position, first
        return f"{chr(10) if start else ''}{dropped_note(first)}\n".encode()

    def read_new(self, max_bytes: int) -> tuple[bytes, bool]:
        """(new bytes, at most the last `max_bytes`; whether earlier ones were skipped)."""
        end = self.end
        if self.position == end:
            return b"", False
        if self.position > end:
            self.position = 0
        start = max(self.position, self.first, end - max_bytes)
        missed = start != self.position
        data = os.pread(self._fd, max_bytes, start)
        if start < self.first:
            data, missed = b"", True
        self.position = start + len(data)
        return data, missed

    def between(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, regardless of the position; zeros if dropped."""
        return os.pread(self._fd, max(0, stop - start), start)

    def tail_offset(self, count: int, max_bytes: int | None = None) -> int:
        r"""The offset at which the last `count` lines start, including an unfinished last line.

        Reads back from the end by at most `max_bytes`, so that the offset may be inside a line. 0
        if the log has fewer lines, whether or not its head was dropped.
        """
        first, end = self.first, self.end
        if count <= 0:
            return end
        low = first if max_bytes is None else max(first, end - max_bytes)
        # the last byte is not a separator: whether or not it is `\n`, a line ends there
        position = max(end - 1, low)
        while position > low:
            start = max(low, position - BLOCK_BYTES)
            block = self.between(start, position)
            found = block.count(b"\n")
            if found >= count:
                index = len(block)
                for _ in range(count):
                    index = block.rfind(b"\n", 0, index)
                return start + index + 1
            count -= found
            position = start
        return low if low > first or count == 1 else 0  # 1: all remaining lines


# -- the end of a log ------------------------------------------------------------------------------


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a log, cleaned; none without a file.

    Reads only the end of the log. An unfinished last line counts.
    """
    cleaner = LineCleaner()
    lines: list[str] = []
    with suppress(OSError), LogFile(path) as log:
        log.position = log.tail_offset(count, MAX_TAIL_BYTES + 4096 * count)
        while block := log.read(BLOCK_BYTES):
            lines += cleaner.feed(block)
    return [*lines, *cleaner.finish()][-count:] if count > 0 else []


def tail_bytes(path: Path, max_bytes: int, before: int | None = None) -> bytes:
    """The end of a log; empty without one.

    Args:
        path: the log.
        max_bytes: how much of it.
        before: an offset to treat as the end of the log, if any.
    """
    with suppress(OSError), LogFile(path) as log:
        end = log.end if before is None else min(before, log.end)
        start = max(log.first, end - max_bytes)
        return log.between(start, end) if start < end else b""
    return b""


def log_end(path: Path) -> str:
    """The last lines of a log, cleaned, long enough to hold a traceback; empty without a log.

    Long lines are shortened.
    """
    return sanitize(shortened(tail_bytes(path, END_READ_BYTES), END_KEPT_BYTES))


def shortened(data: bytes, kept_bytes: int) -> bytes:
    """The last lines of `data`, with long ones shortened to their ends, as for bars."""
    kept: list[bytes] = []
    size = 0
    for line in reversed(data.split(b"\n")):
        if len(line) > LINE_BYTES:
            line = line[: LINE_BYTES // 2] + b" [...] " + line[-LINE_BYTES // 2 :]
        size += len(line) + 1
        if size > kept_bytes and kept:
            break
        kept.append(line)
    return b"\n".join(reversed(kept))


# -- lines of several logs -------------------------------------------------------------------------


class LogLine(msgspec.Struct, frozen=True):
    """One clean line of a rank's log."""

    rank: int | None
    """`LAUNCHER` for output of a command; None for a note that an attempt starts."""
    text: str

    def prefixed(self) -> str:
        """The line with its prefix, for display among those of other ranks."""
        if self.rank is None:
            return self.text
        return f"[{'launcher' if self.rank == LAUNCHER else f'rank {self.rank}'}] {self.text}"


def separator(attempt: int) -> str:
    """The line between two attempts."""
    return f"──── attempt {attempt} ────"


class LogFollower:
    """Follows logs as clean lines, from one attempt to the next, without losing anything.

    It checks for the next attempt before reading the present one, and moves on once that read has
    reached the end. Between two attempts, there is a note.
    """

    def __init__(
        self,
        folder: RunFolder,
        only: Collection[int] | None = None,
        attempt: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        tail: int | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Opens nothing before the first batch.

        Args:
            folder: the job's.
            only: the ranks to follow; None follows all, later ones included.
            attempt: stay with this attempt; None starts with the latest and continues.
            is_over: whether the job has ended. It is called before each read, so that everything
                written before the end is read.
            tail: start with this many last lines of each log; None starts at the beginning.
            whole: start at a line, however long; otherwise inside one that is very long.
        """
        self._folder = folder
        self._only = only
        self._stays = attempt is not None
        self._attempt = attempt
        self._is_over = is_over
        self._tail = tail
        self._whole = whole
        self._logs: dict[int, tuple[LogFile, LineCleaner]] = {}
        self._has_read = self._is_full = False
        """Whether the last poll read anything, and whether there was more than fits in one read."""

    def batches(self, poll_s: float = POLL_S) -> Generator[list[LogLine], None, None]:
        """Yields the lines of each poll, even if empty, until the job is over and all is read."""
        try:
            while True:
                over = self._is_over() or (self._stays and bool(self._later()))
                yield self._poll()
                if over and not self._has_read:
                    break
                if not over and not self._is_full:
                    time.sleep(poll_s)
            yield self._finish()
        finally:
            self._close()

    def partial(self) -> dict[int, str]:
        """By rank, its unfinished line, such as the present state of a progress bar."""
        of_rank = {rank: cleaner.partial for rank, (_, cleaner) in self._logs.items()}
        return {rank: text for rank, text in of_rank.items() if text}

    def _later(self) -> list[int]:
        return [n for n in attempts(self._folder) if self._attempt is None or n > self._attempt]

    def _poll(self) -> list[LogLine]:
        """The lines since the last call, without waiting."""
        later = self._later()
        self._has_read = self._is_full = False
        if self._attempt is None:
            if not later:
                return []
            self._attempt, later = later[-1], []
        lines = self._read(self._attempt)
        self._tail = None  # later logs are read from their beginning
        if not later or self._stays or self._is_full:
            return lines
        lines += self._finish()
        self._close()
        self._attempt, self._has_read = later[0], True
        note = LogLine(None, separator(self._attempt))
        return [*lines, note, *self._read(self._attempt)]

    def _read(self, attempt: int) -> list[LogLine]:
        self._open(attempt)
        lines: list[LogLine] = []
        for rank, (log, cleaner) in self._logs.items():
            if data := log.read(BLOCK_BYTES):
                self._has_read = True
                self._is_full = self._is_full or log.position < log.end
                lines += [LogLine(rank, text) for text in cleaner.feed(data)]
        return lines

    def _open(self, attempt: int) -> None:
        """Open logs that have appeared since the last call."""
        for rank in ranks(self._folder, attempt):
            if rank in self._logs or (self._only is not None and rank not in self._only):
                continue
            with suppress(FileNotFoundError):  # removed since it was listed
                log = LogFile(self._folder.log_file(attempt, rank))
                self._logs[rank] = log, LineCleaner()
                if self._tail is not None:
                    most = None if self._whole else MAX_TAIL_BYTES + 4096 * self._tail
                    log.position = log.tail_offset(self._tail, most)

    def _finish(self) -> list[LogLine]:
        """Remaining lines without a newline."""
        logs = sorted(self._logs.items())
        return [LogLine(rank, text) for rank, (_, cleaner) in logs for text in cleaner.finish()]

    def _close(self) -> None:
        for log, _ in self._logs.values():
            log.close()
        self._logs = {}


def last_words(
    folder: RunFolder, attempt: int, rank: int | None, count: int
) -> tuple[int, list[str]]:
    """(the rank whose log it is, the last lines of the log with a rank's output, cleaned).

    The ranks of a command share the log of `LAUNCHER`, which is also meant by None.
    """
    if rank is None or not folder.log_file(attempt, rank).exists():
        rank = LAUNCHER
    return rank, last_lines(folder.log_file(attempt, rank), count)
