"""Follows logs as they are written, across attempts.

`ByteFollower` hands on what was written, `LogFollower` clean lines of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.store import log_tags
from ddptop_runner.store.log_clean import LineCleaner
from ddptop_runner.store.log_ranges import BLOCK_BYTES, LogFile
from ddptop_runner.store.log_tags import RankFilter
from ddptop_runner.store.logs import MAX_TAIL_BYTES, LogLine, attempts, last_lines, ranks, separator

MAX_BLOCKS = 32
POLL_S = 0.2
"""How often a follower looks for more."""


class LogChunk(msgspec.Struct, frozen=True):
    """Bytes that a rank wrote."""

    attempt: int
    rank: int | None
    """None: no bytes, but the note that this attempt begins."""
    data: bytes
    is_full: bool = False
    """Whether there was more than one read takes."""


class _OpenLog(LogFile):
    """One rank's log and how far it has been read."""

    def __init__(self, path: Path, attempt: int, rank: int, speaker: int | None) -> None:
        super().__init__(path)
        self.path = path
        self.attempt = attempt
        self.rank = rank
        self.filter: RankFilter | None = None
        if speaker is not None:
            self.filter = RankFilter(speaker, is_tagged=log_tags.are_tagged(path))

    def to_tail(self, count: int, max_bytes: int | None) -> None:
        """Read on from the last `count` lines, of those that are wanted."""
        if self.filter is not None and self.filter.is_tagged:
            self.seek(log_tags.tail_offset(self.path, self.filter.rank, count, max_bytes))
        else:
            self.seek(self.tail_offset(count, max_bytes))

    def chunk(self) -> LogChunk | None:
        """What can be read now; None at the end."""
        data = self.read(BLOCK_BYTES)
        is_full = len(data) >= BLOCK_BYTES
        wanted = data if self.filter is None else self.filter.feed(data)
        return LogChunk(self.attempt, self.rank, wanted, is_full) if wanted or is_full else None

    def rest(self) -> LogChunk | None:
        """What the filter still held back, once no more comes."""
        held = b"" if self.filter is None else self.filter.finish()
        return LogChunk(self.attempt, self.rank, held) if held else None


class ByteFollower:
    """Follows logs as they are written, from one attempt to the next, and loses nothing.

    The next attempt is looked for before the present one is read, and entered once that read has
    reached the end. What a left-over process of the former attempt still writes is read too.
    """

    def __init__(
        self,
        folder: RunFolder,
        only: Collection[int] | None = None,
        attempt: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        tail: int | None = None,
        max_tail_bytes: int | None = None,
        speaker: int | None = None,
    ) -> None:
        """Nothing is opened before the first `poll`.

        Args:
            folder: the job's.
            only: the ranks to follow; None follows all, later ones included.
            attempt: stay with this attempt; None starts with the latest and goes on.
            is_over: whether the job has ended. It is asked before each read, so that what was
                written before the end is read.
            tail: start with so many last lines of each log; None starts at the beginning.
            max_tail_bytes: start no further back than this, be it inside a line.
            speaker: of the launcher's log, follow the lines of this rank alone where lines say
                whose they are; `only` is then not looked at.
        """
        self._folder = folder
        self._only = only if speaker is None else [LAUNCHER]
        self._speaker = speaker
        self._fixed = attempt
        self._is_over = is_over
        self._tail = tail
        self._max_tail_bytes = max_tail_bytes
        self._attempt: int | None = None
        self._logs: dict[int, _OpenLog] = {}
        self._former: list[_OpenLog] = []

    @property
    def is_tagged(self) -> bool:
        """Whether lines of the launcher's log were seen to say whose they are."""
        return any(log.filter is not None and log.filter.is_tagged for log in self._logs.values())

    def close(self) -> None:
        """Let go of the files."""
        for log in (*self._former, *self._logs.values()):
            log.close()
        self._former, self._logs = [], {}

    def poll(self) -> list[LogChunk]:
        """What is new since the call before, without waiting; empty when all has been read."""
        existing = attempts(self._folder)
        if self._attempt is None:
            if self._fixed is not None:
                self._attempt = self._fixed
            elif existing:
                self._attempt = existing[-1]
            else:
                return []
            self._open(self._attempt)
            if self._tail is not None:
                for log in self._logs.values():
                    log.to_tail(self._tail, self._max_tail_bytes)
        chunks = self._read(self._attempt)
        later = [number for number in existing if number > self._attempt]
        if (
            not later
            or self._fixed is not None
            or any(chunk.attempt == self._attempt and chunk.is_full for chunk in chunks)
        ):
            return chunks
        for log in self._former:
            log.close()
        self._former, self._logs = list(self._logs.values()), {}
        self._attempt = later[0]
        return [*chunks, LogChunk(self._attempt, None, b""), *self._read(self._attempt)]

    def batches(self, poll_s: float = POLL_S) -> Iterator[list[LogChunk]]:
        """What each poll finds, empty lists included, until the job is over and all was read."""
        while True:
            over = self._is_over() or self._superseded()
            chunks = self.poll()
            yield chunks
            if over and not chunks:
                logs = (*self._former, *self._logs.values())
                yield [chunk for log in logs if (chunk := log.rest())]
                return
            if not over and not any(chunk.is_full for chunk in chunks):
                time.sleep(poll_s)

    def _superseded(self) -> bool:
        """Whether the one attempt that is followed has made way for a later one."""
        return self._fixed is not None and any(n > self._fixed for n in attempts(self._folder))

    def _open(self, attempt: int) -> None:
        """Open the logs that have appeared since the call before."""
        for rank in ranks(self._folder, attempt):
            if rank in self._logs or (self._only is not None and rank not in self._only):
                continue
            try:
                path = self._folder.log_file(attempt, rank)
                self._logs[rank] = _OpenLog(path, attempt, rank, self._speaker)
            except FileNotFoundError:  # removed since it was listed
                continue

    def _read(self, attempt: int) -> list[LogChunk]:
        self._open(attempt)
        logs = (*self._former, *self._logs.values())
        return [chunk for log in logs if (chunk := log.chunk())]


class LogFollower:
    """Follows logs as clean lines; a note stands between the lines of two attempts."""

    def __init__(
        self,
        folder: RunFolder,
        only: Collection[int] | None = None,
        attempt: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        tail: int | None = None,
        speaker: int | None = None,
    ) -> None:
        """The arguments are those of `ByteFollower`."""
        limit = None if tail is None else MAX_TAIL_BYTES + 4096 * tail
        self._source = ByteFollower(folder, only, attempt, is_over, tail, limit, speaker)
        self._cleaners: dict[tuple[int, int], LineCleaner] = {}

    @property
    def is_tagged(self) -> bool:
        """As of `ByteFollower`."""
        return self._source.is_tagged

    def __iter__(self) -> Iterator[LogLine]:
        """Lines as they come, until the job is over and everything was read."""
        for lines in self.batches():
            yield from lines

    def batches(self, poll_s: float = POLL_S) -> Generator[list[LogLine], None, None]:
        """The lines of each poll, empty lists included, to the end."""
        with closing(self._source):
            for chunks in self._source.batches(poll_s):
                yield self._clean(chunks)
            yield self._finish()

    def poll(self) -> list[LogLine]:
        """The lines that have ended since the call before, without waiting.

        At most 8 MiB of each log are read; more is left to the next call.
        """
        lines = []
        for _ in range(MAX_BLOCKS):
            chunks = self._source.poll()
            lines += self._clean(chunks)
            if not any(chunk.is_full for chunk in chunks):
                break
        return lines

    def close(self) -> None:
        """Let go of the files, where `poll` was used."""
        self._source.close()

    def partial(self) -> dict[int, str]:
        """By rank: the line that it has not ended yet, such as a progress bar's present state."""
        return {rank: c.partial for (_, rank), c in self._cleaners.items() if c.partial}

    def _clean(self, chunks: list[LogChunk]) -> list[LogLine]:
        lines = []
        for chunk in chunks:
            if chunk.rank is None:
                lines += self._finish()
                lines.append(LogLine(chunk.attempt, None, separator(chunk.attempt)))
                continue
            cleaner = self._cleaners.setdefault((chunk.attempt, chunk.rank), LineCleaner())
            lines += [LogLine(chunk.attempt, chunk.rank, t) for t in cleaner.feed(chunk.data)]
        return lines

    def _finish(self) -> list[LogLine]:
        """The lines that no newline ended."""
        lines = [
            LogLine(attempt, rank, text)
            for (attempt, rank), cleaner in sorted(self._cleaners.items())
            for text in cleaner.finish()
        ]
        self._cleaners.clear()
        return lines


def last_words(
    folder: RunFolder, attempt: int, rank: int | None, count: int
) -> tuple[int, list[str]]:
    """Whose last lines there are to see of one rank in an attempt, and these, cleaned.

    Args:
        folder: the job's.
        attempt: which.
        rank: whose; of a command, whose ranks have no logs of their own, its lines of the one log,
            or where they do not say whose they are, all of `model.LAUNCHER`. None: those.
        count: so many lines.
    """
    if rank is not None and folder.log_file(attempt, rank).exists():
        return rank, last_lines(folder.log_file(attempt, rank), count)
    lines = [line.text for line in LogFollower(folder, [LAUNCHER], attempt, _ended, count, rank)]
    is_theirs = rank is not None and log_tags.are_tagged(folder.log_file(attempt, LAUNCHER))
    return rank if rank is not None and is_theirs else LAUNCHER, lines[-count:]


def _ended() -> bool:
    return True
