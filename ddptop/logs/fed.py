"""Lines in memory: of an output that someone else reads, and searched."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from ddptop.logs.find import LogPattern
from ddptop.logs.levels import LevelReader
from ddptop.logs.messages import LogRead
from ddptop.logs.row import Level, LogRow
from ddptop.logs.window import Searched

KEPT_LINES = 10_000


class FedLines:
    """The last lines, as they come."""

    def __init__(self) -> None:
        self._levels = LevelReader()
        self._kept: deque[LogRow] = deque(maxlen=KEPT_LINES)
        self._count = 0
        self._partial = ""

    def take(self, read: LogRead) -> tuple[list[LogRow], LogRow | None]:
        """Add lines, or begin anew; returns the new ones, and the one that has not ended yet."""
        if read.restarted:
            self._kept.clear()
            self._levels = LevelReader()
        new: list[LogRow] = []
        for text in read.lines:
            self._count += 1
            level, inside = self._levels.read(text)
            new.append(LogRow(self._count, self._count, text, level, inside))
        self._kept.extend(new)
        self._partial = read.partial
        return new, self._open_row()

    def _open_row(self) -> LogRow | None:
        number = self._count + 1
        return LogRow(number, number, self._partial) if self._partial else None

    def rows(self, least: Level) -> tuple[tuple[LogRow, ...], LogRow | None]:
        """All that the filter shows, and the line that has not ended yet."""
        return tuple(row for row in self._kept if row.passes(least)), self._open_row()


def search_rows(
    rows: Sequence[LogRow], pattern: LogPattern, position: int | None, step: int
) -> Iterator[Searched]:
    """Look through lines from the one at `position`, which is not looked at; None: through all.

    Yields:
        After each thousand how many were looked at, and in the end what was found.
    """
    if position is not None:
        places = [index for index, row in enumerate(rows) if row.at == position]
        if places:
            rows = rows[places[-1] + 1 :] if step > 0 else rows[: places[0]]
    for index, row in enumerate(rows[::step]):
        if pattern.finds(row.text):
            yield Searched(index, row, True)
            return
        if index % 1000 == 999:
            yield Searched(index)
    yield Searched(len(rows), None, True)
