"""Follows the output of a live job's ranks, and the files that they log to, for losses and steps.

Looks once a second, and reads a bounded number of bytes each time: of a log that grows faster only
the end is read, and the parser begins anew behind the gap, so that nothing is made of two halves.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.reading.progress.from_text import TextProgress, of_command
from ddptop_runner.reading.text.parser import LossParser, Reading
from ddptop_runner.reading.trace_files.watch import TraceWatch, rank_of, written_at
from ddptop_runner.store import logs
from ddptop_runner.store.logs import LogFile

BUDGET_BYTES = 64 * 1024
"""Read of all logs in one look."""
LEAST_BYTES = 8 * 1024
"""Of one log; where there are so many logs that this is too much, they are read in turn."""
FIRST_BYTES = 256 * 1024
"""Of all logs in the first look at an attempt that began before this supervisor."""
FRESH_S = 5.0
"""What stands in the logs of an attempt that is older at the first look was written before."""
MAX_RANKS = 4096

_LINE_START = re.compile(rb"[\r\n]")
_ZEROS = re.compile(rb"\0+")


class LogStream:
    """A log that grows: how far it has been read, and its parser."""

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.parser = LossParser()
        self.on_text: Callable[[bytes], None] | None = None
        """Gets what the parser gets."""
        self.is_whole = True
        """Whether it was read from its beginning without a gap."""
        self._cut = False
        """Whether the next bytes begin inside a line."""
        self._rests = False

    @property
    def unread(self) -> int:
        """Bytes; 0 where that cannot be seen."""
        try:
            return max(0, self.log.end - self.log.position)
        except OSError:
            return 0

    def read(self, max_bytes: int) -> tuple[list[Reading], int]:
        """(what is new, how many bytes were read)."""
        data, gap = self.log.read_new(max_bytes)
        if gap:
            self._cut, self.is_whole = True, False
        if not data:
            rested, self._rests = self._rests, True
            return ([] if rested or self._cut else self.parser.settle()), 0
        self._rests = False
        readings: list[Reading] = []
        for place, piece in enumerate(_ZEROS.split(data)):  # left by a full disk
            self._cut = self._cut or place > 0
            readings += self._feed(piece)
        return readings, len(data)

    def _feed(self, piece: bytes) -> list[Reading]:
        if self._cut:
            found = _LINE_START.search(piece)
            if found is None:
                return []
            self.parser, self._cut = LossParser(), False
            piece = piece[found.end() :]
        if self.on_text is not None:
            self.on_text(piece)
        return self.parser.feed(piece)


class TextWatch:
    """What the present attempt's logs tell of each rank. Close it.

    Args:
        folder: the job's.
        command: the words that started the training, which may tell how many epochs it has.
    """

    def __init__(self, folder: RunFolder, command: Sequence[str] = ()) -> None:
        self._folder = folder
        self._said = of_command(command)
        self._attempt: int | None = None
        self._streams: dict[int, LogStream] = {}
        self._ranks: dict[int, TextProgress] = {}
        self._turn = 0

    def of_rank(self, rank: int) -> TextProgress | None:
        """What the output tells of a rank; None where it tells nothing."""
        return self._ranks.get(rank)

    @property
    def ranks(self) -> dict[int, TextProgress]:
        """All of whom something is told, by rank."""
        return self._ranks

    def look(self, attempt: int, age_s: float, ranks: Collection[int], now: dt.datetime) -> int:
        """Read on.

        Args:
            attempt: the present one; a new one begins with nothing.
            age_s: for how long it has run.
            ranks: those that are known, for lines that name none.
            now: the wall clock.

        Returns:
            How many bytes were read.
        """
        first = attempt != self._attempt
        if first:
            self.close()
            self._ranks.clear()
            self._attempt = attempt
        for known in self._ranks.values():
            known.begin_look()
        self._open(attempt)
        if not self._streams:
            return 0
        old = first and age_s > FRESH_S
        at = None if old else now
        budget = FIRST_BYTES if old else BUDGET_BYTES
        used = 0
        for left, (writer, stream) in self._in_turn():
            if used >= budget:
                break
            share = max(LEAST_BYTES, (budget - used) // left)
            try:
                readings, size = stream.read(min(share, budget - used))
            except OSError:  # its file system is gone for now
                continue
            used += size
            for reading in readings:
                self._hear(writer, reading, ranks, at, stream.is_whole)
        return used

    def _in_turn(self) -> Iterator[tuple[int, tuple[int, LogStream]]]:
        """(how many are left, (writer, log)): those with little to read leave more to the others.

        Those with much take turns in being first.
        """
        order = list(self._streams.items())
        self._turn = (self._turn + 1) % len(order)
        order = order[self._turn :] + order[: self._turn]
        order.sort(key=lambda item: min(item[1].unread, LEAST_BYTES))
        return zip(range(len(order), 0, -1), order, strict=True)

    def _open(self, attempt: int) -> None:
        for writer in logs.ranks(self._folder, attempt):
            if writer not in self._streams:
                try:
                    log = LogFile(self._folder.log_file(attempt, writer))
                except OSError:  # removed since it was listed
                    continue
                self._streams[writer] = LogStream(log)

    def _hear(
        self,
        writer: int,
        reading: Reading,
        ranks: Collection[int],
        at: dt.datetime | None,
        is_whole: bool,
    ) -> None:
        rank = writer if writer != LAUNCHER else _named(reading, ranks)
        known = self._ranks.get(rank)
        if known is None:
            if len(self._ranks) >= MAX_RANKS:
                return
            said = self._said._replace(resumes=self._said.resumes or bool(self._attempt))
            known = self._ranks[rank] = TextProgress(said, is_whole)
        known.hear(reading, at, writer)

    def close(self) -> None:
        """Let go of the logs; what they told stays."""
        for stream in self._streams.values():
            stream.log.close()
        self._streams.clear()


class RankFiles:
    """What the files that a job logs to tell of each rank. Close it.

    Args:
        folder: below which they are searched for.
        since_s: Unix seconds at which the job, or its attempt, began.
        read_every_s: pause between two reads.
    """

    def __init__(self, folder: str, since_s: float, read_every_s: float) -> None:
        self._watch = TraceWatch(folder, since_s, read_every_s)
        self.ranks: dict[int, TextProgress] = {}

    def look(
        self, pids: Mapping[int, Collection[int]], others: Collection[int], now: dt.datetime
    ) -> list[tuple[int, dt.datetime, Reading]]:
        """What is new, as (rank, when it was written, the reading).

        Args:
            pids: of each rank and of what it started.
            others: pids that belong to the job and to no rank.
            now: the wall clock.
        """
        for known in self.ranks.values():
            known.begin_look()
        found = []
        for file, reading in self._watch.read():
            if (rank := rank_of(file, pids, others)) is not None:
                at = written_at(reading, now)
                self.ranks.setdefault(rank, TextProgress()).hear(reading, at)
                found.append((rank, at, reading))
        return found

    def close(self) -> None:
        """Let go of the files; what they told stays."""
        self._watch.close()


def _named(reading: Reading, ranks: Collection[int]) -> int:
    """Whose a line of a launcher's output is: who it names; else the first rank's."""
    named = reading.rank if reading.rank is not None else reading.local_rank
    return min(ranks, default=0) if named is None else named
