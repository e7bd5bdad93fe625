"""Log lines in memory: the merged ends of many ranks' logs, or output passed in."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddptop.logs.levels import LevelReader
from ddptop.logs.merge import MergedRow, Merger
from ddptop.logs.messages import Level, LogRead, LogRow
from ddptop.logs.search import LogPattern
from ddptop.logs.window import Searched
from ddptop_runner.base import units
from ddptop_runner.store.log_clean import LineCleaner
from ddptop_runner.store.logs import BLOCK_BYTES, LogFile

LINES_OF_EACH = 2000
MOST_LINES = 64_000
"""Total for all ranks; with many ranks, fewer lines of each are read."""
FEWEST_LINES = 60
MOST_NEW_BYTES = 1 << 20
"""Maximum per rank and poll; if a rank prints faster, the newest are shown."""
RECENT_S = 10.0
"""The last lines of logs written to within this time of the newest are among the last overall."""
LATE_LOOKS, OLD_LOOKS = 3, 60
"""After this many polls, a line counts as printed before another rank's, and long before it."""

EARLIER = "──── last {:,} lines from each rank; open a rank to see its full log ────"

TailLine = tuple[str, Level, bool]
"""A line, its level, and whether it continues the previous one."""


def lines_of_each(ranks: int) -> int:
    """How many last lines of each rank to read."""
    return max(FEWEST_LINES, min(LINES_OF_EACH, MOST_LINES // max(1, ranks)))


@dataclass
class _Tail:
    """One rank's log, closed between polls: there may be more ranks than files may be open."""

    path: Path
    limit: int
    position: int | None = None
    size: int = -1
    written_at: float = 0.0
    cut: bool = False
    """Whether there are lines before the first one read."""
    cleaner: LineCleaner = field(default_factory=LineCleaner)
    levels: LevelReader = field(default_factory=LevelReader)

    def read(self) -> list[TailLine]:
        """New lines; on the first call, the last ones."""
        try:
            found = self.path.stat()
        except OSError:
            return []
        if found.st_size == self.size:
            return []
        lines: list[str] = []
        with contextlib.suppress(OSError), LogFile(self.path) as log:
            self.size, self.written_at = found.st_size, found.st_mtime
            if self.position is None:
                most = MOST_NEW_BYTES + 256 * self.limit
                self.position = log.tail_offset(self.limit, most)
                self.cut = self.position > log.first
                log.seek(self.position)
                while block := log.read(BLOCK_BYTES):
                    lines += self.cleaner.feed(block)
            else:
                log.seek(self.position)
                data, missed = log.read_new(MOST_NEW_BYTES)
                if missed:
                    self.cleaner = LineCleaner()
                    lines.append("──── lines skipped: output too fast to follow ────")
                lines += self.cleaner.feed(data)
            self.position = log.position
        return [(text, *self.levels.read(text)) for text in lines]


class RankTails:
    """The last lines of all ranks, merged.

    Args:
        paths: logs by rank.
        ahead_s: by rank, how far its host's clock is ahead of this one's.
    """

    def __init__(self, paths: dict[int, Path], ahead_s: Mapping[int, float] | None = None) -> None:
        self._ahead_s = ahead_s or {}
        self.limit = lines_of_each(len(paths))
        """Number of each rank's lines to read at first."""
        self._tails = {rank: _Tail(path, self.limit) for rank, path in paths.items()}
        self._lines: dict[int, deque[TailLine]] = {}
        self._merger: Merger | None = Merger(most=MOST_LINES, ahead_s=self._ahead_s)
        self._alike = False
        self._marks: deque[int] = deque([0], maxlen=OLD_LOOKS)
        self._is_each = False
        self._labels: dict[tuple[int, ...], str] = {}

    @property
    def ranks(self) -> list[int]:
        """The ranks whose lines were read so far."""
        return sorted(self._lines)

    def add(self, rank: int, path: Path) -> None:
        """Add the log of another rank."""
        self._tails.setdefault(rank, _Tail(path, self.limit))

    @property
    def known(self) -> set[int]:
        """The ranks whose logs are read."""
        return set(self._tails)

    def load(self) -> Iterator[None]:
        """Read the last lines of all, yielding after each rank."""
        for rank, tail in self._tails.items():
            if lines := tail.read():
                self._lines[rank] = deque(lines, maxlen=2 * self.limit)
            yield
        yield from self._merge_all()

    def _merge_all(self) -> Iterator[None]:
        merger = Merger(alike=self._alike, most=MOST_LINES, ahead_s=self._ahead_s)
        tails = self._tails
        newest = max((tail.written_at for tail in tails.values()), default=0.0)
        # the one with the most lines first: where others are silent for long, it provides the times
        for rank in sorted(self._lines, key=lambda one: (-len(self._lines[one]), one)):
            recent = tails[rank].written_at >= newest - RECENT_S
            merger.add(rank, list(self._lines[rank]), closed=merger.number if recent else 0)
            yield
        self._merger = merger
        self._marks.clear()
        self._marks.append(merger.number)

    def poll(self) -> bool:
        """Read new lines; returns whether there were any."""
        merger = self._merger
        if merger is None:
            return False
        before = merger.number
        self._marks.append(before)
        closed = self._marks[-min(LATE_LOOKS, len(self._marks))]
        old = self._marks[0] if len(self._marks) == OLD_LOOKS else 0
        open_row = self.partial()
        something = False
        for rank, tail in self._tails.items():
            if lines := tail.read():
                something = True
                self._lines.setdefault(rank, deque(maxlen=2 * self.limit)).extend(lines)
                merger.add(rank, lines, closed=closed, old=old)
        return something or self.partial() != open_row

    def set_alike(self, alike: bool) -> Iterator[None]:
        """Merge again, combining lines that differ only in ranks and times or not."""
        self._alike = alike
        yield from self._merge_all()

    def rows(self, least: Level, *, each: bool) -> tuple[LogRow, ...]:
        """All lines that pass the filter.

        Args:
            least: the filter.
            each: whether to return one line per rank that printed it.
        """
        rows = [] if self._merger is None else self._merger.rows
        if each != self._is_each:
            self._is_each = each
            for row in rows:
                row.shown = None
        found = [one for row in rows for one in row.shown or self._draw(row)]
        if least:
            found = [one for one in found if one.passes(least)]
        if rows and any(tail.cut for tail in self._tails.values()):
            found.insert(0, LogRow(0, 0, EARLIER.format(self.limit), is_note=True))
        return tuple(found)

    def partial(self) -> LogRow | None:
        """The unfinished line of the first rank that has one."""
        for rank, tail in self._tails.items():
            if text := tail.cleaner.partial:
                number = 1 << 62
                return LogRow(number, number, text, label=self._label((rank,)))
        return None

    def _draw(self, row: MergedRow) -> tuple[LogRow, ...]:
        number, ranks = row.number, tuple(sorted(row.ranks))
        if self._is_each and len(ranks) > 1:
            row.shown = tuple(
                LogRow(
                    number,
                    number,
                    row.ranks[rank] or row.text,
                    row.level,
                    row.inside,
                    self._label((rank,)),
                )
                for rank in ranks
            )
        else:
            varies = "~" if any(row.ranks.values()) else ""
            label = self._label(ranks) + varies
            row.shown = (LogRow(number, number, row.text, row.level, row.inside, label),)
        return row.shown

    def _label(self, ranks: tuple[int, ...]) -> str:
        if (known := self._labels.get(ranks)) is None:
            known = units.ranks(list(ranks))
            self._labels[ranks] = known
        return known


KEPT_LINES = 10_000


class FedLines:
    """The last lines of output that is passed in."""

    def __init__(self) -> None:
        self._levels = LevelReader()
        self._kept: deque[LogRow] = deque(maxlen=KEPT_LINES)
        self._count = 0
        self._partial = ""

    def take(self, read: LogRead) -> tuple[list[LogRow], LogRow | None]:
        """Add lines, or start over; returns the new lines and the unfinished one."""
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
        """All lines that pass the filter, and the unfinished one."""
        return tuple(row for row in self._kept if row.passes(least)), self._open_row()


def search_rows(
    rows: Sequence[LogRow], pattern: LogPattern, position: int | None, step: int
) -> Iterator[Searched]:
    """Search lines from the one at `position`, excluding it; None for all.

    Yields:
        Progress after each thousand lines, and finally the result.
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
