"""Limits one rank's live log, and reserves blocks for what it writes next.

A rank's print fails with ENOSPC once the disk is full, and that ends the rank. So each log has
blocks beyond its end, enough for the next seconds. When the disk has none to add, the log gives up
its own head, as a ring.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddptop_runner.store.log_index import LogPiece
from ddptop_runner.store.upkeep import space
from ddptop_runner.store.upkeep.log_archive import LogCutShortError, LogHead

MIB = 1 << 20
DEFAULT_LIMIT_BYTES = 1 << 30
CEILING_LIMITS = 4
"""Archives of one log may take so many times its limit."""
MAX_PIECE_BYTES = 64 * MIB
"""Of the log, in one archive: to be read whole, and dropped as a whole."""
MIN_RESERVE_BYTES = MIB
MAX_RESERVE_BYTES = 64 * MIB
RESERVE_S = 10.0
"""The blocks in reserve last for so long at the log's present growth."""
SHARE_OF_ROOM = 16
"""Beyond the least, a log holds at most this part of what is free, or half of its own size."""
RETRY_S = 30.0
"""Between attempts to archive where there is no room for the archive."""
ROOM_PIECE_BYTES = 4 * MIB
SMALLEST_PIECE_BYTES = 128 * 1024
"""A log shorter than this has nothing to give up."""


@dataclass(frozen=True)
class LogNews:
    """Something that happened to a log."""

    kind: Literal["archived", "given up", "dropped", "cut", "damaged", "unpunchable", "failed"]
    from_byte: int = 0
    to_byte: int = 0
    words: str = ""


class RankLog:
    """One rank's log in one attempt.

    Args:
        path: the log, which exists.
        rank: whose.
        limit_bytes: of the file's part that is not archived.
        worker: runs what takes long.
        urgent: runs what cannot wait for that; `worker` unless given.
        giver: the log that gives up its head where this one lacks room; itself unless given.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        limit_bytes: int,
        worker: Executor,
        urgent: Executor | None = None,
        giver: Callable[[RankLog], RankLog] = lambda log: log,
    ) -> None:
        self.path = path
        self.rank = rank
        self.news: list[LogNews] = []
        """What happened since the owner emptied it."""
        self.lacks_room = False
        """Whether the last look could not get the blocks that it wanted."""
        self.reserved_bytes = 0
        """Blocks beyond the log's end, in bytes."""
        self._limit = limit_bytes
        self._worker = worker
        self._urgent = urgent or worker
        self._giver = giver
        self._head = LogHead(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._size = os.fstat(self._fd).st_size
        self._reserved_to = 0
        self._looked_s: float | None = None
        self._growth = 0.0
        self._job: Future[None] | None = None
        self._archive_after_s = 0.0
        self._can_reserve = True
        self._can_punch: bool | None = None
        try:
            problem = self._head.recover()
        except OSError as error:
            problem = None if space.is_unsupported(error) else f"{path.name}: {error}"
        if problem is not None:
            self.news.append(LogNews("damaged", words=problem))

    def look(self, now_s: float) -> None:
        """Do what is due, about once a second."""
        self._finish_job()
        status = os.fstat(self._fd)
        if status.st_nlink == 0 and self._job is None:
            self._reopen()
            status = os.fstat(self._fd)
        size = status.st_size
        if self._job is None:
            if size < self._size or self._was_cut_and_grew(size):
                self._cut_short(size)
            if not self._head.is_saved:
                self._head.try_to_save()
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        if passed_s > 0:
            rate = max(0, size - self._size) / passed_s
            self._growth = max(rate, self._growth * 0.8 + rate * 0.2)
        self._looked_s = now_s
        if self._job is None or size > self._size:  # a cut is noted once no job reads the file
            self._size = size
        is_due = self.live_bytes > self._limit and now_s >= self._archive_after_s
        if self._job is None and is_due and self._may_punch():
            self._job = self._worker.submit(self._shorten)
        self._hold_reserve()

    def close(self) -> None:
        """Let go of the file; its reserve stays, for a process that may still write."""
        if self._job is not None:
            with contextlib.suppress(Exception):  # told as news
                self._job.result(timeout=30)
            self._finish_job()
        os.close(self._fd)

    # -- size ------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether something is being done to its head."""
        return self._job is not None and not self._job.done()

    @property
    def growth(self) -> float:
        """Bytes per second, of late."""
        return self._growth

    @property
    def live_bytes(self) -> int:
        """What of the log is in its file."""
        index = self._head.index
        return self._size - (index.live_from - index.base_byte)

    def _may_punch(self) -> bool:
        if self._can_punch is None:
            self._can_punch = space.can_punch(self.path.parent)
            if not self._can_punch:
                self.news.append(LogNews("unpunchable"))
        return self._can_punch

    def _shorten(self) -> None:
        """Archive heads until the log is within its limit."""
        head = self._head
        while (end := head.size()) - head.index.live_from > self._limit:
            piece_bytes = min(MAX_PIECE_BYTES, self._limit)
            goal = min(end - self._limit // 2, head.index.live_from + piece_bytes)
            self._tell("archived", head.archive(head.line_end(goal)))
            head.free()
            for piece in head.keep_below(CEILING_LIMITS * self._limit):
                self._tell("dropped", piece)

    def _tell(self, kind: Literal["archived", "given up", "dropped", "cut"], of: LogPiece) -> None:
        self.news.append(LogNews(kind, of.from_byte, of.to_byte))

    # -- the file changes under us ---------------------------------------------------------------

    def _reopen(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        os.close(self._fd)
        self._fd = fd

    def _was_cut_and_grew(self, size: int) -> bool:
        """Whether data stand where a hole was punched."""
        length = self._head.index.punched_to - self._head.index.base_byte
        if length <= 0 or size < length:
            return False
        try:
            return os.lseek(self._fd, 0, os.SEEK_DATA) < length
        except OSError:
            return False

    def _cut_short(self, size: int) -> None:
        piece = self._head.note_cut(self._head.index.base_byte + self._size)
        if piece is not None:
            self._tell("cut", piece)
        self._size, self._reserved_to = size, 0

    # -- blocks in reserve -----------------------------------------------------------------------

    def _hold_reserve(self) -> None:
        self.lacks_room = False
        if not self._can_reserve:
            return
        want = int(min(max(self._growth * RESERVE_S, MIN_RESERVE_BYTES), MAX_RESERVE_BYTES))
        if want > MIN_RESERVE_BYTES and (room := space.room(self.path)) is not None:
            most = max(room.free_bytes // SHARE_OF_ROOM, self.live_bytes // 2, MIN_RESERVE_BYTES)
            want = min(want, most)
        if self._reserved_to - self._size < want:
            self._top_up(want)
        self.reserved_bytes = max(0, self._reserved_to - self._size)
        if not (self.lacks_room and self.reserved_bytes < 0.6 * want and self._job is None):
            return
        giver = self._giver(self)
        giver._finish_job()
        if giver.live_bytes > SMALLEST_PIECE_BYTES and giver._may_punch():
            self._job = giver._job = self._urgent.submit(giver._make_room, want, self)

    def _top_up(self, want: int) -> None:
        for amount in (want + want // 2, want, want // 4, want // 16):
            try:
                space.reserve(self._fd, self._size, amount)
            except OSError as error:
                if not space.is_no_room(error):
                    self._can_reserve = False
                    return
                self.lacks_room = True
            else:
                self._reserved_to = max(self._reserved_to, self._size + amount)
                self.lacks_room = amount < want
                return

    def _make_room(self, want: int, taker: RankLog) -> None:
        """Move the head into an archive, which is smaller, or give it up; `taker` gets the blocks.

        Another log is about to fail for want of them: there is no time to pack.
        """
        head = self._head
        end = head.size()
        live = end - head.index.live_from
        amount = min(max(2 * want, live // 4), ROOM_PIECE_BYTES, live - SMALLEST_PIECE_BYTES // 2)
        if amount <= 0:
            return
        cut = head.line_end(head.index.live_from + amount)
        if taker is not self or not self._archive(cut):
            self._tell("given up", head.give_up(cut))
        reserve_from = max(taker._reserved_to, os.fstat(taker._fd).st_size)
        reserved_to = head.free(reserve_from, taker._fd)
        taker._reserved_to = max(taker._reserved_to, reserved_to or 0)
        if not head.is_saved:
            head.try_to_save()

    def _archive(self, cut: int) -> bool:
        """Pack what is before that byte; False where there is no room for the archive."""
        try:
            self._tell("archived", self._head.archive(cut))
        except OSError as error:
            if not space.is_no_room(error):
                raise
            return False
        return True

    # -- what takes long -------------------------------------------------------------------------

    def _finish_job(self) -> None:
        if self._job is None or not self._job.done():
            return
        job, self._job = self._job, None
        try:
            job.result()
        except LogCutShortError:
            return  # the next look sees it
        except OSError as error:
            if space.is_no_room(error):
                self._archive_after_s = (self._looked_s or 0.0) + RETRY_S
            elif space.is_unsupported(error):
                self._can_punch = False
                self.news.append(LogNews("unpunchable"))
            else:
                self.news.append(LogNews("failed", words=str(error)))


def trim(path: Path) -> None:
    """Give back the blocks beyond a log's end; nothing may write to it any more."""
    with contextlib.suppress(OSError):
        os.truncate(path, path.stat().st_size)
