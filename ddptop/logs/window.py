"""Windows of lines of a log file, by byte: whatever its size, only what is shown is read.

Lines have no numbers here, for counting them means reading the whole file. A line without an end
is cut at multiples of `PIECE_BYTES`, so that no line takes much memory, and so that where it is cut
can be told from either side.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ddptop.logs.levels import LevelReader, may_be_grave
from ddptop.logs.messages import Level, LogRow
from ddptop.logs.search import LogPattern
from ddptop_runner.store.log_clean import LineCleaner
from ddptop_runner.store.logs import LogFile, RankFilter, dropped_note

PIECE_BYTES = 1 << 15
CHUNK_BYTES = 1 << 16
"""Read at once for a window."""
SCAN_BYTES = 1 << 18
"""Read at once when lines are only scanned."""
CONTEXT_BYTES = 1 << 14
"""Looked at before a window, to know whether it starts inside a traceback."""
MOST_BYTES = 1 << 22
"""Looked through for one page, where few lines pass a filter; the next page goes on."""


class Part(msgspec.Struct, frozen=True):
    """Bytes of a log that stand together."""

    at: int
    data: bytes

    @property
    def to(self) -> int:
        """The byte behind the last."""
        return self.at + len(self.data)


class Page(msgspec.Struct, frozen=True):
    """Consecutive lines, and the bytes scanned for them."""

    rows: tuple[LogRow, ...]
    low: int
    high: int
    partial: LogRow | None = None
    """The unfinished line at the end of the log, after `high`."""


class Searched(msgspec.Struct, frozen=True):
    """How far a search is, or where it ended."""

    at: int
    """The byte up to which lines were scanned."""
    found: LogRow | None = None
    is_over: bool = False


def pieces(part: Part, *, starts: bool) -> list[tuple[int, int, bool]]:
    r"""Lines of bytes that stand together: first byte, the byte behind, whether `\n` ends it.

    Args:
        part: the bytes.
        starts: whether a line starts at its first byte; else what stands before the first place
            where one surely starts is left out.
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
    """The first byte known to start a line, in bytes that may start within one."""
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
        speaker: show only the lines of this rank, of a log whose lines say whose they are.
        until: take this byte as the log's end, as it was at an earlier time.
        elsewhere: where the head of the log may be, if it is not here.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        speaker: int | None = None,
        until: int | None = None,
        elsewhere: str | None = None,
    ) -> None:
        self._log = LogFile(path)
        self._path, self._speaker, self._until = path, speaker, until
        self._elsewhere = elsewhere

    def close(self) -> None:
        """Let go of the file."""
        self._log.close()

    def bounds(self) -> tuple[int, int]:
        """The log's first byte, and the one behind its last."""
        return self._log.first, self._end

    @property
    def _end(self) -> int:
        return self._log.end if self._until is None else min(self._until, self._log.end)

    def is_replaced(self) -> bool:
        """Whether another file has taken its place, as when a job of the same name starts."""
        try:
            return not self._log.is_at(self._path)
        except OSError:
            return False

    # --- windows -------------------------------------------------------------------------------

    def page_back(self, before: int, want: int, least: Level = "") -> Page:
        """Lines before a byte, the nearest ones: `want` or a few more.

        Before the first line stands a note, where the log's head was dropped.
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
        """Lines from a byte on, at which one starts: `want` or a few more."""
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
        """The start of the line that a byte is in."""
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
        """Look for a line, from one that starts at a byte, which is not looked at when backwards.

        Args:
            pattern: what for.
            start: where.
            step: 1 to the log's end, -1 to its beginning.
            least: only among lines that this filter shows.

        Yields:
            How far it is, after each part.
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

        An unfinished line stands at the end only where the log ends.
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
        """The lines of bytes that are whole lines."""
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
        """Rows of those lines that are shown, and whether each has ended."""
        before = b""
        for at, to, ended in pieces(part, starts=starts):
            raw = part.data[at - part.at : to - part.at - ended]
            if not ended and _is_piece(at, to) and b"\r" in raw:
                continue  # a bar that goes on: its last state is what counts
            if raw[:1] >= b"\x80" and at % PIECE_BYTES == 0:
                raw = raw.lstrip(bytes(range(0x80, 0xC0)))
            if self._speaker is not None:
                mine = RankFilter(self._speaker, is_tagged=True)
                raw = mine.feed(raw + b"\n").removesuffix(b"\n")
                if not mine.spoke:
                    continue
            text = _clean(raw, before)
            before = raw
            if text is None:
                continue
            level, inside = levels.read(text)
            yield LogRow(at, to, text, level, inside), ended


def _is_piece(at: int, to: int) -> bool:
    """Whether a line was cut there for its length."""
    return to % PIECE_BYTES == 0 and to - at >= PIECE_BYTES


def _clean(raw: bytes, before: bytes) -> str | None:
    """A line as it is shown; None where a bar of several lines drew it a second time."""
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text
    cleaner = LineCleaner()
    if b"A" in raw and b"\x1b" in raw:
        cleaner.feed(before + b"\n")
    lines = cleaner.feed(raw + b"\n")
    return lines[-1] if lines else None
