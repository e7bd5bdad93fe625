"""Lines of logs in memory: the ends of many ranks' logs, merged, or an output that is fed in."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from ddptop.logs.levels import WHOSE, LevelReader
from ddptop.logs.merge import MergedRow, Merger
from ddptop.logs.messages import Level, LogRead, LogRow
from ddptop.logs.search import LogPattern
from ddptop.logs.window import Searched
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.store.log_clean import LineCleaner
from ddptop_runner.store.logs import BLOCK_BYTES, LogFile

LINES_OF_EACH = 2000
MOST_LINES = 64_000
"""Of all ranks together; of many ranks fewer lines each are read."""
FEWEST_LINES = 60
MOST_NEW_BYTES = 1 << 20
"""Of one rank at one look; of a rank that prints faster the newest are shown."""
RECENT_S = 10.0
"""A log written to so shortly before the newest one: its last lines are among the last of all."""
LATE_LOOKS, OLD_LOOKS = 3, 60
"""How many looks back a line was printed before that of another rank, and long before it."""

EARLIER = "──── last {:,} lines from each rank; open a rank to see its full log ────"

Told = tuple[str, Level, bool]
"""A line, its level, and whether it continues the previous one."""


def lines_of_each(ranks: int) -> int:
    """How many last lines of each rank are read."""
    return max(FEWEST_LINES, min(LINES_OF_EACH, MOST_LINES // max(1, ranks)))


@dataclass
class _Tail:
    """One rank's log, closed between two looks: there may be more ranks than files may be open."""

    path: Path
    limit: int
    position: int | None = None
    size: int = -1
    written_at: float = 0.0
    cut: bool = False
    """Whether lines before the first that was read are there."""
    cleaner: LineCleaner = field(default_factory=LineCleaner)
    levels: LevelReader = field(default_factory=LevelReader)

    def read(self) -> list[Told]:
        """The lines that are new; first the last ones."""
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


def _speaker(line: Told) -> int:
    found = WHOSE.match(line[0])
    return int(found["tag"] or found["out"]) if found else LAUNCHER


class RankTails:
    """The last lines of every rank as one run of lines.

    Args:
        paths: by rank its log; of a command the launcher's log alone, whose lines say whose
            they are.
        ahead_s: by rank, by how much its host's clock is ahead of this one's.
    """

    def __init__(self, paths: dict[int, Path], ahead_s: Mapping[int, float] | None = None) -> None:
        self._ahead_s = ahead_s or {}
        self.limit = lines_of_each(len(paths))
        """Lines of each rank that are read at first."""
        self._is_tagged = set(paths) == {LAUNCHER}
        if self._is_tagged:
            self.limit *= 8
        self._tails = {rank: _Tail(path, self.limit) for rank, path in paths.items()}
        self._lines: dict[int, deque[Told]] = {}
        self._merger: Merger | None = Merger(most=MOST_LINES, ahead_s=self._ahead_s)
        self._alike = False
        self._marks: deque[int] = deque([0], maxlen=OLD_LOOKS)
        self._is_each = False
        self._labels: dict[tuple[int, ...], str] = {}

    @property
    def ranks(self) -> list[int]:
        """Whose lines were read so far."""
        return sorted(self._lines)

    def add(self, rank: int, path: Path) -> None:
        """Read the log of one more rank from now on."""
        self._tails.setdefault(rank, _Tail(path, self.limit))

    @property
    def known(self) -> set[int]:
        """Whose logs are looked at."""
        return set(self._tails)

    def load(self) -> Iterator[None]:
        """Read the last lines of all, a step for each rank."""
        told: dict[int, list[Told]] = {}
        for rank, tail in self._tails.items():
            for speaker, lines in self._spoken(rank, tail.read()):
                told.setdefault(speaker, []).extend(lines)
            yield
        for rank, lines in told.items():
            self._lines[rank] = deque(lines, maxlen=2 * self.limit)
        yield from self._merge_all()

    def _spoken(self, rank: int, lines: list[Told]) -> Iterator[tuple[int, list[Told]]]:
        """Lines by who printed them, in their order."""
        if not self._is_tagged:
            yield rank, lines
            return
        for speaker, told in groupby(lines, _speaker):
            yield speaker, list(told)

    def _merge_all(self) -> Iterator[None]:
        merger = Merger(alike=self._alike, most=MOST_LINES, ahead_s=self._ahead_s)
        tails = self._tails
        newest = max((tail.written_at for tail in tails.values()), default=0.0)
        # the one who says most first: where others are silent for long, its lines tell the time
        for rank in sorted(self._lines, key=lambda one: (-len(self._lines[one]), one)):
            tail = tails.get(rank)
            recent = tail is None or tail.written_at >= newest - RECENT_S
            merger.add(rank, list(self._lines[rank]), closed=merger.number if recent else 0)
            yield
        self._merger = merger
        self._marks.clear()
        self._marks.append(merger.number)

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
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
            for speaker, lines in self._spoken(rank, tail.read()):
                if not lines:
                    continue
                something = True
                self._lines.setdefault(speaker, deque(maxlen=2 * self.limit)).extend(lines)
                merger.add(speaker, lines, closed=closed, old=old)
        return something or self.partial() != open_row

    def set_alike(self, alike: bool) -> Iterator[None]:
        """Merge anew, lines that differ only in ranks and times as one or not."""
        self._alike = alike
        yield from self._merge_all()

    def rows(self, least: Level, *, each: bool) -> tuple[LogRow, ...]:
        """All lines that the filter shows.

        Args:
            least: the filter.
            each: one line for each rank that printed it.
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
        """The line of the first rank that has one it has not ended yet."""
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
            own = [rank for rank in ranks if rank != LAUNCHER]
            known = units.ranks(own) if own else "launcher"
            self._labels[ranks] = known
        return known


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
