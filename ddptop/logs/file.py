"""Reads pages of a log file around any offset, so that only what is shown is read.

Lines are not numbered, since that would require reading the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from ddptop.logs.levels import LevelReader, may_be_grave
from ddptop.logs.messages import Level, LogRow, Page
from ddptop.logs.search import LogPattern
from ddptop_runner.store.log_clean import MAX_LINE_CHARS, LineCleaner
from ddptop_runner.store.logs import LogFile, dropped_note

PAGE_ROWS = 250
MAX_ROWS = 4000
"""Maximum lines in a page; those farthest from the view are dropped."""
CHUNK_BYTES = 1 << 16
SCAN_BYTES = 1 << 18
"""Bytes to read at a time when only searching."""
CONTEXT_BYTES = 1 << 14
"""Bytes to read before a page, to see whether it starts inside a traceback."""
FAR_BYTES = 1 << 22
"""Maximum to read in search of the end of a line, and of lines that pass a filter."""


class FileLog:
    """One log file.

    Args:
        path: the file.
        until: treat this offset as the log's end, as at an earlier time.
        elsewhere: where the head of the log may be, if it is not here.
        chunk_bytes: how much to read at a time for a page.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        until: int | None = None,
        elsewhere: str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._log = LogFile(path)
        self._chunk_bytes = chunk_bytes
        self._path, self._until, self._elsewhere = path, until, elsewhere

    def close(self) -> None:
        """Close the file."""
        self._log.close()

    @property
    def first(self) -> int:
        """The offset of the log's first line."""
        return self._log.first

    @property
    def end(self) -> int:
        """The offset of the log's end."""
        return self._log.end if self._until is None else min(self._until, self._log.end)

    def is_replaced(self) -> bool:
        """Whether another file has replaced it, as when a job with the same name starts."""
        try:
            return not self._log.is_at(self._path)
        except OSError:
            return False

    # --- pages ---------------------------------------------------------------------------------

    def around(self, position: int | None, least: Level = "") -> Page:
        """The lines around an offset; None for the end of the log."""
        at = self._line_start(self.end if position is None else min(position, self.end))
        rows, low = self._back(at, least)
        more, high, partial = self._on(at, least)
        return Page((*rows, *more), partial, low, high, self.first, self.end)

    def extended(self, page: Page, step: int, least: Level = "") -> Page:
        """The page with more lines before (-1) or after (1) it."""
        rows, partial, low, high = page.rows, page.partial, page.low, page.high
        if step < 0:
            more, low = self._back(low, least)
            rows = (*more, *rows)
            if len(rows) > MAX_ROWS:
                rows, partial = rows[:MAX_ROWS], None
                high = rows[-1].to
        else:
            more, high, partial = self._on(high, least)
            rows = (*rows, *more)
            if len(rows) > MAX_ROWS:
                rows = rows[-MAX_ROWS:]
                low = rows[0].at
        return Page(rows, partial, low, high, self.first, self.end)

    def refreshed(self, page: Page, least: Level = "") -> Page | None:
        """The page if the log grew; its end if it was truncated; None if nothing changed."""
        first, end = self.first, self.end
        if end < page.end:
            return self.around(None, least)
        return (
            None if (first, end) == (page.first, page.end) else replace(page, first=first, end=end)
        )

    def _back(self, before: int, least: Level) -> tuple[list[LogRow], int]:
        """(lines before the start of a line, where they start).

        If the log's head was dropped, a note precedes the first line.
        """
        rows: list[LogRow] = []
        first, low = self.first, before
        while len(rows) < PAGE_ROWS and first < low > before - FAR_BYTES:
            start = self._line_start(low - self._chunk_bytes)
            rows[:0] = self._rows(start, low, least)[0]
            low = start
        if first > 0 and low <= first:
            rows.insert(0, LogRow(first, first, dropped_note(first, self._elsewhere), is_note=True))
        return rows, low

    def _on(self, after: int, least: Level) -> tuple[list[LogRow], int, LogRow | None]:
        """(lines from the start of one, where they end, the unfinished line after them)."""
        rows: list[LogRow] = []
        partial: LogRow | None = None
        high = after
        while len(rows) < PAGE_ROWS and after + FAR_BYTES > high < self.end and partial is None:
            stop = self._line_end(high + self._chunk_bytes)
            more, partial = self._rows(high, stop, least)
            rows += more
            high = stop if partial is None else partial.at
        return rows, high, partial

    # --- search --------------------------------------------------------------------------------

    def matches(
        self, pattern: LogPattern, row: LogRow | None, step: int, least: Level = ""
    ) -> Iterator[tuple[int, list[LogRow]]]:
        """The matches from a line on, excluding it, toward the log's end (1) or its start (-1).

        Args:
            pattern: what to search for.
            row: the line; None for the whole log.
            step: the direction.
            least: search only lines that pass this filter.

        Yields:
            After each part, how many bytes it has, and its matches in the order of the search.
        """
        if step > 0:
            at = self.first if row is None else row.to
        else:
            at = self.end if row is None else row.at
        while at < self.end if step > 0 else at > self.first:
            edge = (
                self._line_end(at + SCAN_BYTES) if step > 0 else self._line_start(at - SCAN_BYTES)
            )
            low, high = min(at, edge), max(at, edge)
            rows: list[LogRow] = []
            if pattern.may_be_in(self._log.between(low, high)):
                rows, partial = self._rows(low, high, least)
                rows = [one for one in (*rows, partial) if one and pattern.finds(one.text)]
            yield high - low, rows[::step]
            at = high if step > 0 else low

    # --- lines ---------------------------------------------------------------------------------

    def _line_start(self, position: int) -> int:
        """Where the line starts that contains the byte before `position`, or `position` itself.

        If that is too far, somewhere inside the line.
        """
        low = max(self.first, position - FAR_BYTES)
        while position > low:
            start = max(low, position - CHUNK_BYTES)
            newline = self._log.between(start, position).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            position = start
        return low

    def _line_end(self, position: int) -> int:
        """Where the line ends that contains the byte before `position`, or a bit farther."""
        at = min(position, self.end) - 1
        high = min(position + FAR_BYTES, self.end)
        while at < high:
            stop = min(high, at + CHUNK_BYTES)
            newline = self._log.between(at, stop).find(b"\n")
            if newline >= 0:
                return at + newline + 1
            at = stop
        return high

    def _rows(self, start: int, stop: int, least: Level) -> tuple[list[LogRow], LogRow | None]:
        """(the lines between two offsets that pass, the unfinished one at the end of the log)."""
        context = self._log.between(max(self.first, start - CONTEXT_BYTES), start)
        if start - len(context) > self.first:
            context = context.partition(b"\n")[2]
        if not context.endswith(b"\n"):
            context = b""  # not whole lines
        data = context + self._log.between(start, stop)
        if least and data.endswith(b"\n") and not may_be_grave(data, least):
            return [], None
        lines = data.split(b"\n")
        is_open = 0 < len(lines[-1]) < FAR_BYTES
        if not lines[-1]:
            lines.pop()
        levels = LevelReader()
        rows: list[LogRow] = []
        before = b""
        at = start - len(context)
        for raw in lines:
            to = min(at + len(raw) + 1, stop)
            if (text := _clean(raw, before)) is not None:
                level, inside = levels.read(text)
                if at >= start:
                    rows.append(LogRow(at, to, text, level, inside))
            at, before = to, raw
        partial = rows.pop() if is_open and rows and rows[-1].to == stop else None
        return [row for row in rows if row.passes(least)], partial


def _clean(raw: bytes, before: bytes) -> str | None:
    """The line as shown; None if a bar of several lines repeats it."""
    if len(raw) > MAX_LINE_CHARS:
        raw = raw.rstrip(b"\r").rpartition(b"\r")[2]  # of a bar, only its last state
    text = raw.decode("utf-8", "replace")
    if text.isprintable() and len(text) <= MAX_LINE_CHARS:
        return text
    cleaner = LineCleaner()
    if b"A" in raw and b"\x1b" in raw:
        cleaner.feed(before + b"\n")
    lines = cleaner.feed(raw + b"\n")
    return lines[-1] if lines else None
