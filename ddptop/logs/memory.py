"""Logs in memory: the merged ends of many ranks' logs, or output read elsewhere."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from ddptop.logs.file import CHUNK_BYTES, FileLog
from ddptop.logs.levels import LevelReader
from ddptop.logs.merge import MergedRow, Merger
from ddptop.logs.messages import Level, LogRead, LogRow, Page
from ddptop.logs.search import LogPattern
from ddptop_runner.base import units

MOST_OF_EACH = 2000
MOST_LINES = 32_000
"""Total for all ranks; with many ranks, fewer lines of each are read."""
FEWEST_LINES = 30
MOST_NEW_BYTES = 1 << 20
"""Maximum per rank and poll; if a rank prints faster, the newest are shown."""
RECENT_S = 10.0
"""The last lines of logs written to within this time of the newest are among the last overall."""
OLD_POLLS = 60
"""After so many polls, a line does not merge with those that another rank prints."""
KEPT_LINES = 10_000
"""Of output read elsewhere."""

EARLIER = "──── last {:,} lines from each rank; open a rank to see its full log ────"
SKIPPED = LogRow(0, 0, "──── lines skipped: output too fast to follow ────", is_note=True)


class MemoryLog:
    """All lines of a log; the counterpart of `FileLog`."""

    limit = 0

    def close(self) -> None:
        """Nothing is open."""

    def rows(self, least: Level) -> tuple[LogRow, ...]:
        """The complete lines that pass a filter."""
        raise NotImplementedError

    def partial(self) -> LogRow | None:
        """The unfinished line."""
        raise NotImplementedError

    def around(self, position: int | None, least: Level = "") -> Page:
        """All lines."""
        return Page(self.rows(least), self.partial(), limit=self.limit)

    def extended(self, page: Page, step: int, least: Level = "") -> Page:
        """All lines."""
        return self.around(None, least)

    def refreshed(self, page: Page, least: Level = "") -> Page | None:
        """All lines if there are new ones."""
        return None

    def matches(
        self, pattern: LogPattern, row: LogRow | None, step: int, least: Level = ""
    ) -> Iterator[tuple[int, list[LogRow]]]:
        """The matches from a line on, excluding it; see `FileLog.matches`."""
        rows = self.rows(least)[::step]
        numbers = [one.at for one in rows]
        start = 0 if row is None or row.at not in numbers else numbers.index(row.at) + 1
        yield 0, [one for one in rows[start:] if not one.is_note and pattern.finds(one.text)]


class FedLog(MemoryLog):
    """The last lines of output that another component reads."""

    def __init__(self) -> None:
        self._levels = LevelReader()
        self._kept: deque[LogRow] = deque(maxlen=KEPT_LINES)
        self._count = 0
        self._partial = ""

    def take(self, read: LogRead) -> None:
        """Add lines, or start over."""
        if read.restarted:
            self._kept.clear()
            self._levels = LevelReader()
        for text in read.lines:
            self._count += 1
            self._kept.append(LogRow(self._count, self._count, text, *self._levels.read(text)))
        self._partial = read.partial

    def rows(self, least: Level) -> tuple[LogRow, ...]:
        """The complete lines that pass a filter."""
        return tuple(row for row in self._kept if row.passes(least))

    def partial(self) -> LogRow | None:
        """The unfinished line."""
        number = self._count + 1
        return LogRow(number, number, self._partial) if self._partial else None


class _Tail:
    """One rank's log, closed between polls: there may be more ranks than files may be open."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._read: Page | None = None
        """How far it was read, without lines."""
        self.written_at = 0.0
        self.is_cut = False
        """Whether there are lines before the first one read."""

    @property
    def partial(self) -> LogRow | None:
        """The unfinished line."""
        return None if self._read is None else self._read.partial

    def read(self) -> list[LogRow]:
        """New lines; on the first call, the last ones."""
        before = self._read
        try:
            found = self._path.stat()
            if before is not None and found.st_size == before.end:
                return []
            chunk_bytes = min(CHUNK_BYTES, 128 * self._limit)
            with contextlib.closing(FileLog(self._path, chunk_bytes=chunk_bytes)) as log:
                self.written_at = found.st_mtime
                rows = self._first(log) if before is None else self._next(log, before)
        except OSError:
            return []
        return rows

    def _first(self, log: FileLog) -> list[LogRow]:
        page = log.around(None)
        while len(page.rows) < self._limit and page.before_bytes:
            page = log.extended(page, -1)
        rows = [row for row in page.rows if not row.is_note][-self._limit :]
        self.is_cut = page.first > 0 or (bool(rows) and rows[0].at > 0)
        self._read = replace(page, rows=())
        return rows

    def _next(self, log: FileLog, before: Page) -> list[LogRow]:
        if log.end < before.end:
            return self._first(log)
        if log.end - before.high > MOST_NEW_BYTES:
            return [SKIPPED, *self._first(log)]
        rows: list[LogRow] = []
        page = replace(before, end=log.end)
        while page.after_bytes:
            page = log.extended(page, 1)
            rows += page.rows
            page = replace(page, rows=(), low=page.high)
        self._read = page
        return rows


class MergedLog(MemoryLog):
    """The last lines of all ranks, merged.

    Args:
        paths: logs by rank.
        alike: whether to combine lines that differ only in ranks and times.
        is_stale: whether nobody waits for it any more; hundreds of ranks take seconds to merge.
    """

    def __init__(
        self,
        paths: dict[int, Path],
        *,
        alike: bool = False,
        is_stale: Callable[[], bool] = lambda: False,
    ) -> None:
        self.limit = max(FEWEST_LINES, min(MOST_OF_EACH, MOST_LINES // max(1, len(paths))))
        self._tails = {rank: _Tail(path, self.limit) for rank, path in paths.items()}
        self._merger = Merger(alike=alike, most=MOST_LINES)
        self._marks: deque[int] = deque(maxlen=OLD_POLLS)
        """The numbers of the latest row at recent polls."""
        self._labels: dict[tuple[int, ...], str] = {}
        lines = {rank: tail.read() for rank, tail in self._tails.items()}
        newest = max((tail.written_at for tail in self._tails.values()), default=0.0)
        # the one with the most lines first: where others are silent for long, it provides the times
        for rank in sorted(lines, key=lambda one: (-len(lines[one]), one)):
            if is_stale():
                break
            is_late = self._tails[rank].written_at >= newest - RECENT_S
            self._merger.add(rank, lines[rank], is_late=is_late)

    def add(self, rank: int, path: Path) -> None:
        """Add the log of another rank."""
        self._tails.setdefault(rank, _Tail(path, self.limit))

    def refreshed(self, page: Page, least: Level = "") -> Page | None:
        """All lines if there are new ones."""
        merger = self._merger
        old = self._marks[0] if len(self._marks) == OLD_POLLS else 0
        self._marks.append(merger.number)
        is_new = False
        for rank, tail in self._tails.items():
            if lines := tail.read():
                is_new = True
                merger.add(rank, lines, is_late=True, old=old)
        return self.around(None, least) if is_new or self.partial() != page.partial else None

    def rows(self, least: Level) -> tuple[LogRow, ...]:
        """The complete lines that pass a filter."""
        rows = [row.shown or self._show(row) for row in self._merger.rows]
        if least:
            rows = [row for row in rows if row.passes(least)]
        if rows and any(tail.is_cut for tail in self._tails.values()):
            rows.insert(0, LogRow(0, 0, EARLIER.format(self.limit), is_note=True))
        return tuple(rows)

    def partial(self) -> LogRow | None:
        """The unfinished line of the first rank that has one."""
        for rank, tail in self._tails.items():
            if (row := tail.partial) is not None:
                number = 1 << 62
                return LogRow(number, number, row.text, label=str(rank))
        return None

    def _show(self, row: MergedRow) -> LogRow:
        ranks = tuple(sorted(row.ranks))
        if ranks not in self._labels:
            self._labels[ranks] = units.ranks(list(ranks))
        label = self._labels[ranks] + ("~" if any(row.ranks.values()) else "")
        number = row.number
        row.shown = LogRow(number, number, row.text, row.level, row.inside, label, row.is_note)
        return row.shown
