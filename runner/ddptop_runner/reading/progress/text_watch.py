"""Follows the output of a live job's ranks for losses and steps.

Each look, once a second, reads a bounded number of bytes. Of a log that grows faster, only the end
is read, by a fresh parser, so that no reading is assembled from two halves.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Sequence

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.reading.progress.from_text import TextProgress, of_command
from ddptop_runner.reading.text.parser import LossParser, Reading
from ddptop_runner.store import logs
from ddptop_runner.store.logs import LogFile

BUDGET_BYTES = 64 * 1024
"""Read from all logs in one look."""
LEAST_BYTES = 8 * 1024
"""Read from one log; if there are too many logs for the budget, they take turns."""
FIRST_BYTES = 256 * 1024
"""Read from all logs in the first look at an attempt that started before this supervisor."""
FRESH_S = 5.0
"""If an attempt is older than this at the first look, the times of its output are unknown."""
MAX_RANKS = 4096

_LINE_START = re.compile(rb"[\r\n]")
_ZEROS = re.compile(rb"\0+")


class LogStream:
    """A growing log with its parser and read position."""

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.parser = LossParser()
        self.on_text: Callable[[bytes], None] | None = None
        """Called with the text that the parser is fed."""
        self.is_whole = True
        """Whether it was read from its beginning without gaps."""
        self._cut = False
        """Whether the next bytes start inside a line."""
        self._rests = False

    def read(self, max_bytes: int) -> tuple[list[Reading], int]:
        """(new readings, bytes read); continues near the end if more was written than that."""
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
    """Each rank's progress, from the logs of the present attempt. Close it.

    Args:
        folder: the job's.
        command: the command that started training, which may show the number of epochs.
    """

    def __init__(self, folder: RunFolder, command: Sequence[str] = ()) -> None:
        self._folder = folder
        self._hints = of_command(command)
        self._attempt: int | None = None
        self._streams: dict[int, LogStream] = {}
        self.ranks: dict[int, TextProgress] = {}
        """By rank, for those whose output shows any progress."""
        self._first_epochs: dict[int, int | None] = {}
        """By rank, the number of its first epoch, as earlier attempts show."""
        self._turn = 0

    def look(self, attempt: int, age_s: float, ranks: Collection[int], now: dt.datetime) -> int:
        """Read what is new in the logs, and return the number of bytes read.

        Args:
            attempt: the present one; what is known of another is dropped.
            age_s: how long it has run.
            ranks: those known, for lines that name none.
            now: the wall clock.
        """
        first = attempt != self._attempt
        if first:
            self.close()
            for rank, known in self.ranks.items():
                self._first_epochs[rank] = known.first_epoch
            self.ranks.clear()
            self._attempt = attempt
        for known in self.ranks.values():
            known.begin_look()
        self._open(attempt)
        if not self._streams:
            return 0
        old = first and age_s > FRESH_S
        at = None if old else now
        budget = FIRST_BYTES if old else BUDGET_BYTES
        used = 0
        order = list(self._streams.items())
        self._turn = (self._turn + 1) % len(order)  # they take turns being first
        for place, (writer, stream) in enumerate(order[self._turn :] + order[: self._turn]):
            if used >= budget:
                break
            share = max(LEAST_BYTES, (budget - used) // (len(order) - place))
            try:
                readings, size = stream.read(min(share, budget - used))
            except OSError:  # its file system is unavailable
                continue
            used += size
            for reading in readings:
                self._add(writer, reading, ranks, at, stream.is_whole)
        return used

    def _open(self, attempt: int) -> None:
        for writer in logs.ranks(self._folder, attempt):
            if writer not in self._streams:
                try:
                    log = LogFile(self._folder.log_file(attempt, writer))
                except OSError:  # removed since it was listed
                    continue
                self._streams[writer] = LogStream(log)

    def _add(
        self,
        writer: int,
        reading: Reading,
        ranks: Collection[int],
        at: dt.datetime | None,
        is_whole: bool,
    ) -> None:
        rank = writer if writer != LAUNCHER else _named(reading, ranks)
        known = self.ranks.get(rank)
        if known is None:
            if len(self.ranks) >= MAX_RANKS:
                return
            hints = self._hints._replace(resumes=self._hints.resumes or bool(self._attempt))
            first_epoch = self._first_epochs.get(rank)
            known = self.ranks[rank] = TextProgress(hints, is_whole, first_epoch)
        known.add(reading, at, writer)

    def close(self) -> None:
        """Close the logs; the progress remains."""
        for stream in self._streams.values():
            stream.log.close()
        self._streams.clear()


def _named(reading: Reading, ranks: Collection[int]) -> int:
    """The rank that a line of a launcher's output names, or else the first."""
    named = reading.rank if reading.rank is not None else reading.local_rank
    return min(ranks, default=0) if named is None else named
