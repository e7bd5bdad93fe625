"""The lines of a log that a view has at hand, and which bytes of the log they are."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.logs.row import LogRow

MAX_ROWS = 6000
MAX_CHARS = 12_000_000
"""Of lines at hand; what is farther from the view than others is let go."""
KEPT_ROWS = 400
"""So many lines stay at hand on either side of the view."""
ROW_CHARS = 200
"""What a line takes besides its text."""


class LogBuffer:
    """Lines in a row. Of a log in memory all, of a file those around the view."""

    def __init__(self) -> None:
        self.rows: list[LogRow] = []
        """Lines that have ended and, behind them, the one that has not."""
        self.ended = 0
        """How many of them have ended."""
        self.is_paged = False
        """Whether there may be lines that are not here."""
        self.has_labels = False
        """Whether lines say whose they are."""
        self.low = self.high = self.first = self.end = 0
        self._chars = 0

    @property
    def before(self) -> int:
        """Bytes before the lines that are here."""
        return self.low - self.first if self.is_paged else 0

    @property
    def behind(self) -> int:
        """Bytes behind them."""
        if not self.is_paged:
            return 0
        known = self.rows[-1].to if len(self.rows) > self.ended else self.high
        return self.end - max(known, self.high)

    def clear(self) -> None:
        """No lines."""
        self.set_all((), None)

    @property
    def texts(self) -> list[str]:
        """What the lines that have ended say."""
        return [row.text for row in self.rows[: self.ended]]

    def set_all(self, rows: Sequence[LogRow], partial: LogRow | None) -> None:
        """These are all lines there are."""
        self.ended, self._chars = len(rows), 0
        self.rows = [*rows, partial] if partial is not None else list(rows)
        self.is_paged = False
        self.has_labels = any(row.label for row in rows[:1000]) or any(r.label for r in rows[-9:])

    def set_page(self, rows: Sequence[LogRow], partial: LogRow | None, low: int, high: int) -> None:
        """These lines are at hand, of those bytes."""
        self.ended = len(rows)
        self.rows = [*rows, partial] if partial is not None else list(rows)
        self._chars = sum(map(_size, self.rows))
        self.is_paged, self.has_labels = True, False
        self.low, self.high = low, high

    def put_before(self, rows: Sequence[LogRow], low: int, seen: int) -> int:
        """Put lines before these; those far behind line `seen` may go. Returns how many came."""
        self.rows[:0] = rows
        self.ended += len(rows)
        self.low = low
        self._chars += sum(map(_size, rows))
        keep = seen + len(rows) + KEPT_ROWS
        while self._is_full and len(self.rows) > keep:
            self._chars -= _size(self.rows.pop())
            self.ended = min(self.ended, len(self.rows))
            self.high = self.rows[-1].to
        return len(rows)

    def put_behind(
        self, rows: Sequence[LogRow], partial: LogRow | None, high: int, seen: int
    ) -> int:
        """Put lines behind these; those far before line `seen` may go. Returns how many went."""
        for row in self.rows[self.ended :]:
            self._chars -= _size(row)
        del self.rows[self.ended :]
        self.rows += rows
        self.ended = len(self.rows)
        if partial is not None:
            self.rows.append(partial)
        self.high = high
        self._chars += sum(map(_size, rows)) + (0 if partial is None else _size(partial))
        gone = 0
        spare = seen - KEPT_ROWS if len(self.rows) < 2 * MAX_ROWS else len(self.rows)
        while self._is_full and gone < spare:
            self._chars -= _size(self.rows[gone])
            gone += 1
            if len(self.rows) - gone <= MAX_ROWS and self._chars <= MAX_CHARS:
                break
        if gone:
            del self.rows[:gone]
            self.ended -= gone
            self.low = self.rows[0].at
        return gone

    @property
    def _is_full(self) -> bool:
        return len(self.rows) > MAX_ROWS or self._chars > MAX_CHARS

    def index_of(self, row: LogRow | None, otherwise: int) -> int:
        """Where a line is now, or where it was."""
        if row is not None:
            if otherwise < len(self.rows) and self.rows[otherwise].at == row.at:
                return otherwise
            for index, one in enumerate(self.rows):
                if one.at == row.at:
                    return index
        return max(0, min(otherwise, len(self.rows) - 1))

    def shares(self, first: int, last: int) -> tuple[float, float]:
        """Of the whole log: what is before line `first`, and what lines `first` to `last` are."""
        if self.is_paged:
            whole = max(1, self.end - self.first)
            start, stop = self.rows[first].at, self.rows[last].to
            return (start - self.first) / whole, (stop - start) / whole
        whole = max(1, len(self.rows))
        return first / whole, (last + 1 - first) / whole


def _size(row: LogRow) -> int:
    return len(row.text) + ROW_CHARS
