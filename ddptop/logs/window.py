"""Reads windows of a log file by offset, so that only what is shown is read, whatever its size.

Lines are not numbered, since that would require reading the whole file. A very long line is split
at multiples of `PIECE_BYTES`, which bounds memory and makes splits the same from either direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ddptop.logs.levels import LevelReader, may_be_grave
from ddptop.logs.messages import Level, LogRow
from ddptop.logs.search import LogPattern
from ddptop_runner.store.log_clean import LineCleaner
from ddptop_runner.store.logs import LogFile, dropped_note

PIECE_BYTES = 1 << 15
CHUNK_BYTES = 1 << 16
"""Bytes to read at a time for a window."""
SCAN_BYTES = 1 << 18
"""Bytes to read at a time when only scanning."""
CONTEXT_BYTES = 1 << 14
"""Bytes to read before a window, to see whether it starts inside a traceback."""
MOST_BYTES = 1 << 22
"""Maximum to scan for one page if few lines pass a filter; the next page continues."""


class Part(msgspec.Struct, frozen=True):
    """Consecutive bytes of a log."""

    at: int
    data: bytes

    @property
    def to(self) -> int:
        """The offset of the end."""
        return self.at + len(self.data)


class Page(msgspec.Struct, frozen=True):
    """Consecutive lines, and the bytes scanned for them."""

    rows: tuple[LogRow, ...]
    low: int
    high: int
    partial: LogRow | None = None
    """The unfinished line at the end of the log, after `high`."""


class Searched(msgspec.Struct, frozen=True):
    """The progress or result of a search."""

    at: int
    """The offset up to which lines were scanned."""
    found: LogRow | None = None
    is_over: bool = False


def pieces(part: Part, *, starts: bool) -> list[tuple[int, int, bool]]:
    r"""The lines in consecutive bytes, as (start, end, whether `\n` ends it).

    Args:
        part: the bytes.
        starts: whether a line starts at the first byte; otherwise, skips to the first certain start
            of a line.
    """
    found: list[tuple[int, int, bool]] = []
    data, base = part.data, part.at
    at = 0
    is_start = starts
    while at < len(data):
        newline = data.find(b"\n", at)
        end = len(data) if newline < 0 else newline
        cut = -(-(base + at + PIECE_BYTES) // PIECE_BYTES) * PIECE_BYTES - base
        while cut < end:
            if is_start:
                found.append((base + at, base + cut, False))
            at, is_start = cut, True
            cut += PIECE_BYTES
        if newline < 0:
            if is_start:
                found.append((base + at, base + len(data), False))
            break
        if is_start:
            found.append((base + at, base + newline + 1, True))
        at, is_start = newline + 1, True
    return found


def first_start(part: Part) -> int | None:
    """The first certain start of a line, in bytes that may start inside one."""
    newline = part.data.find(b"\n")
    cut = -(-(part.at + PIECE_BYTES) // PIECE_BYTES) * PIECE_BYTES
    if cut < (part.to if newline < 0 else part.at + newline):
        return cut
    after = part.at + newline + 1
    return None if newline < 0 or after >= part.to else after


class FileLog:
    """One log file, read around any of its bytes.

    Args:
        path: the file.
        until: treat this offset as the log's end, as at an earlier time.
        elsewhere: where the head of the log may be, if it is not here.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        until: int | None = None,
        elsewhere: str | None = None,
    ) -> None:
        self._log = LogFile(path)
        self._path, self._until = path, until
        self._elsewhere = elsewhere

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    def bounds(self) -> tuple[int, int]:
        """Offsets of the log's start and end."""
        return self._log.first, self._end

    @property
    def _end(self) -> int:
        return self._log.end if self._until is None else min(self._until, self._log.end)

    def is_replaced(self) -> bool:
        """Whether another file has replaced it, as when a job with the same name starts."""
        try:
            return not self._log.is_at(self._path)
        except OSError:
            return False

    # --- windows -------------------------------------------------------------------------------

    def page_back(self, before: int, want: int, least: Level = "") -> Page:
        """The last `want` lines, or slightly more, before an offset.

        If the log's head was dropped, a note precedes the first line.
        """
        rows: list[LogRow] = []
        partial: LogRow | None = None
        low, high = before, before
        looked = 0
        while len(rows) < want and low > self._log.first and looked < MOST_BYTES:
            part = self._part_back(low, CHUNK_BYTES)
            if not part.data:
                break
            looked += low - part.at
            page = self._rows(part, least)
            if low == before:
                partial = page.partial
                high = before if partial is None else partial.at
            rows[:0] = page.rows
            low = part.at
        first = self._log.first
        if first and low <= first:
            rows.insert(0, LogRow(first, first, dropped_note(first, self._elsewhere), is_note=True))
        return Page(tuple(rows), low, max(low, high), partial)

    def page_on(self, after: int, want: int, least: Level = "") -> Page:
        """The first `want` lines, or slightly more, from an offset at which one starts."""
        rows: list[LogRow] = []
        partial: LogRow | None = None
        high = after
        looked = 0
        while len(rows) < want and looked < MOST_BYTES:
            part = self._part_on(high, CHUNK_BYTES)
            if not part.data:
                break
            page = self._rows(part, least)
            rows += page.rows
            partial = page.partial
            looked += part.to - high
            high = part.to if partial is None else partial.at
            if partial is not None:
                break
        return Page(tuple(rows), after, high, partial)

    def snap(self, position: int) -> int:
        """The start of the line at an offset."""
        first, end = self.bounds()
        if position <= first:
            return first
        part = self._part_back(min(position + 1, end), CHUNK_BYTES)
        if not part.data:
            return part.at
        at, to, ended = pieces(part, starts=True)[-1]
        return to if ended and to <= position else at

    # --- search --------------------------------------------------------------------------------

    def search(
        self, pattern: LogPattern, start: int, step: int, least: Level = ""
    ) -> Iterator[Searched]:
        """Search for a line from an offset at which one starts; backward, that line is excluded.

        Args:
            pattern: what to search for.
            start: the offset.
            step: 1 toward the log's end, -1 toward its start.
            least: search only lines that pass this filter.

        Yields:
            Progress after each part, and finally the result.
        """
        at = start
        while step > 0 or at > self._log.first:
            part = self._part_on(at, SCAN_BYTES) if step > 0 else self._part_back(at, SCAN_BYTES)
            if not part.data:
                break
            if pattern.may_be_in(part.data) and (row := self._find(part, pattern, step, least)):
                yield Searched(row.at, row, True)
                return
            at = part.to if step > 0 else part.at
            yield Searched(at)
        yield Searched(at, None, True)

    def _find(self, part: Part, pattern: LogPattern, step: int, least: Level) -> LogRow | None:
        page = self._rows(part, least)
        rows = page.rows if page.partial is None else (*page.rows, page.partial)
        hits = (row for row in rows[::step] if pattern.finds(row.text))
        return next(hits, None)

    # --- bytes ---------------------------------------------------------------------------------

    def _part_on(self, start: int, size: int) -> Part:
        """Whole lines from one that starts at `start`.

        The last one is unfinished only at the end of the log.
        """
        start = max(start, self._log.first)
        data = self._log.between(start, min(start + size, self._end))
        part = Part(start, data)
        if data.endswith(b"\n") or part.to >= self._end:
            return part
        stop = data.rfind(b"\n") + 1
        if len(data) - stop > PIECE_BYTES:
            stop = pieces(Part(start + stop, data[stop:]), starts=True)[-1][0] - start
        return Part(start, data[:stop])

    def _part_back(self, end: int, size: int) -> Part:
        """Whole lines up to `end`."""
        first = self._log.first
        start = max(first, end - max(size, 2 * PIECE_BYTES + 1))
        part = Part(start, self._log.between(start, end))
        if start == first:
            return part
        low = first_start(part)
        return Part(end, b"") if low is None else Part(low, part.data[low - start :])

    # --- lines ---------------------------------------------------------------------------------

    def _rows(self, part: Part, least: Level) -> Page:
        """The rows of bytes that contain whole lines."""
        low, high = part.at, part.to
        levels = LevelReader()
        start = max(self._log.first, low - CONTEXT_BYTES)
        head = Part(start, self._log.between(start, low) if start < low else b"")
        grave = not least or any(may_be_grave(one.data, least) for one in (head, part))
        if not grave and part.data.endswith(b"\n"):
            return Page((), low, high)
        for _ in self._lines(head, levels, starts=False):
            pass
        rows: list[LogRow] = []
        partial: LogRow | None = None
        for row, ended in self._lines(part, levels, starts=True):
            if not ended and row.to == high and not _is_piece(row.at, row.to):
                partial = row
            elif row.passes(least):
                rows.append(row)
        return Page(tuple(rows), low, high, partial)

    def _lines(
        self, part: Part, levels: LevelReader, *, starts: bool
    ) -> Iterator[tuple[LogRow, bool]]:
        """(row, whether its line has ended) of the lines that pass."""
        before = b""
        for at, to, ended in pieces(part, starts=starts):
            raw = part.data[at - part.at : to - part.at - ended]
            if not ended and _is_piece(at, to) and b"\r" in raw:
                continue  # a bar that continues: only its last state counts
            if raw[:1] >= b"\x80" and at % PIECE_BYTES == 0:
                raw = raw.lstrip(bytes(range(0x80, 0xC0)))
            text = _clean(raw, before)
            before = raw
            if text is None:
                continue
            level, inside = levels.read(text)
            yield LogRow(at, to, text, level, inside), ended


def _is_piece(at: int, to: int) -> bool:
    """Whether a line was split there because of its length."""
    return to % PIECE_BYTES == 0 and to - at >= PIECE_BYTES


def _clean(raw: bytes, before: bytes) -> str | None:
    """The line as shown; None if a bar of several lines repeats it."""
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text
    cleaner = LineCleaner()
    if b"A" in raw and b"\x1b" in raw:
        cleaner.feed(before + b"\n")
    lines = cleaner.feed(raw + b"\n")
    return lines[-1] if lines else None
