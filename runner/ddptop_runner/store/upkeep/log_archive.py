"""Moves the start of one rank's log into archives while the rank keeps appending.

The order makes a crash harmless: the archive is complete and on disk, then the index names it, and
only then the bytes are punched out of the file.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import msgspec

from ddptop_runner.store import log_index
from ddptop_runner.store.log_index import GapReason, LogIndex, LogPiece
from ddptop_runner.store.log_ranges import BLOCK_BYTES, scan_back
from ddptop_runner.store.upkeep import space
from ddptop_runner.store.upkeep.damaged import set_aside

LEVEL = 1
"""Logs shrink to a tenth at zlib's fastest level; better ones cost the training's CPU."""


class LogCutShortError(Exception):
    """Someone cut the file short while it was read."""


class LogHead:
    """One log and its archives. To be used from one thread at a time.

    Args:
        path: the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = LogIndex()
        self.is_saved = True
        """Whether the file of the index says what `index` does."""

    def recover(self) -> str | None:
        """Take up what an earlier supervisor left; what was found damaged, in words."""
        file = log_index.index_file(self.path)
        for left in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            left.unlink(missing_ok=True)
        problem = None
        try:
            data = file.read_bytes()
        except OSError:
            self.index = LogIndex()
            is_there = False
        else:
            is_there = True
            found = log_index.decode_index(data)
            if found is None:
                aside = set_aside(file)
                problem = f"{file.name} was damaged, set aside as {aside}, and rebuilt"
            self.index = found or LogIndex()
        if problem is not None or (not is_there and log_index.archives(self.path)):
            self.index = log_index.rebuilt(self.path)
            self.save()
        elif is_there:
            self._take_in_orphans()
        self._note_hole()
        self.free()
        return problem

    def _take_in_orphans(self) -> None:
        """Archives that were complete but not in the index yet; the file has their bytes too."""
        listed = {piece.archive for piece in self.index.pieces}
        for path in log_index.archives(self.path).values():
            if path.name in listed:
                continue
            found = log_index.range_of(path)
            if found is not None and found[0] == self.index.live_from:
                piece = LogPiece(archive=path.name, from_byte=found[0], to_byte=found[1])
                self.index = msgspec.structs.replace(self.index, pieces=[*self.index.pieces, piece])
                self.save()
            elif found is not None and found[0] > self.index.live_from:
                path.unlink(missing_ok=True)

    def _note_hole(self) -> None:
        """A full disk may have left no room to write down what was given up."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            hole_to = self.index.base_byte + self._first_data(fd)
        finally:
            os.close(fd)
        live_from = self.index.live_from
        if hole_to > live_from:
            index = log_index.with_gap(self.index, live_from, hole_to, "disk full")
            self.index = self._with_punch(index)
            self.try_to_save()

    def size(self) -> int:
        """The file's size, as a logical byte.

        Raises:
            OSError: the file is gone.
        """
        return self.index.base_byte + self.path.stat().st_size

    def line_end(self, wanted: int) -> int:
        """The end of the last whole line before that byte; the byte itself where there is none."""
        base, low = self.index.base_byte, self.index.live_from
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found, _ = scan_back(lambda at, n: os.pread(fd, n, at - base), low, wanted, 1)
        finally:
            os.close(fd)
        return wanted if found is None else found

    def archive(self, to_byte: int) -> LogPiece:
        """Move what is before that byte into an archive; then call `free`.

        Raises:
            OSError: nothing was moved; with `space.NO_ROOM`, there was no room for the archive.
            LogCutShortError: nothing was moved: the file has become shorter.
        """
        from_byte = self.index.live_from
        number = max(log_index.archives(self.path), default=0) + 1
        name = log_index.archive_name(self.path, number)
        temporary = self.path.with_name(f".{name}.tmp")
        header = log_index.header_name(from_byte, to_byte)
        try:
            with temporary.open("wb") as raw:
                with gzip.GzipFile(header, "wb", LEVEL, raw, mtime=0) as packed:
                    self._copy(packed, from_byte, to_byte)
                raw.flush()
                os.fsync(raw.fileno())
            temporary.rename(self.path.with_name(name))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        piece = LogPiece(archive=name, from_byte=from_byte, to_byte=to_byte)
        index = msgspec.structs.replace(self.index, pieces=[*self.index.pieces, piece])
        self.index, before = self._with_punch(index), self.index
        try:
            self.save()
        except BaseException:
            self.index = before
            self.path.with_name(name).unlink(missing_ok=True)
            raise
        return piece

    def _copy(self, packed: gzip.GzipFile, from_byte: int, to_byte: int) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            position = from_byte - self.index.base_byte
            left = to_byte - from_byte
            while left > 0:
                block = os.pread(fd, min(BLOCK_BYTES, left), position)
                if not block:
                    raise LogCutShortError
                packed.write(block)
                position += len(block)
                left -= len(block)
        finally:
            os.close(fd)

    def give_up(self, to_byte: int) -> LogPiece:
        """Name what is before that byte as lost; then call `free`. The disk is full."""
        piece = LogPiece(from_byte=self.index.live_from, to_byte=to_byte, reason="disk full")
        index = log_index.with_gap(self.index, piece.from_byte, to_byte, "disk full")
        self.index = self._with_punch(index)
        self.try_to_save()  # where there is no room even for this, readers see the hole
        return piece

    def archives_bytes(self) -> int:
        """What the archives take on disk."""
        total = 0
        for piece in self.index.pieces:
            if piece.archive is not None:
                try:
                    total += self.path.with_name(piece.archive).stat().st_size
                except OSError:
                    continue
        return total

    def keep_below(self, ceiling_bytes: int) -> list[LogPiece]:
        """Delete the oldest archives beyond that many bytes; the ranges that are gone with them."""
        dropped: list[LogPiece] = []
        while self.archives_bytes() > ceiling_bytes:
            held = [piece for piece in self.index.pieces if piece.archive is not None]
            if len(held) < 2:
                break
            dropped.append(held[0])
            self.index = log_index.with_gap(
                self.index, held[0].from_byte, held[0].to_byte, "ceiling"
            )
            self.try_to_save()
            self.path.with_name(held[0].archive or "").unlink(missing_ok=True)
        return dropped

    def note_cut(self, old_end: int) -> LogPiece | None:
        """Someone cut the file short that reached up to `old_end`; what that cost, if anything."""
        if not self.index.pieces:
            return None
        reason: GapReason = "cut"
        piece = LogPiece(from_byte=self.index.live_from, to_byte=old_end, reason=reason)
        index = self.index
        if piece.to_byte > piece.from_byte:
            index = log_index.with_gap(index, piece.from_byte, old_end, reason)
        self.index = msgspec.structs.replace(index, base_byte=old_end, punched_to=old_end)
        self.try_to_save()
        return piece

    def save(self) -> None:
        """Write the index, to the disk itself.

        Raises:
            OSError: it cannot be written.
        """
        self.is_saved = False
        file = log_index.index_file(self.path)
        temporary = file.with_name(f".{file.name}.tmp")
        try:
            with temporary.open("wb") as out:
                out.write(msgspec.json.encode(self.index))
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self.is_saved = True

    def try_to_save(self) -> None:
        """Write the index, or leave it to a later call."""
        try:
            self.save()
        except OSError:
            self.is_saved = False

    def _with_punch(self, index: LogIndex) -> LogIndex:
        return msgspec.structs.replace(index, punched_to=index.base_byte + _whole_blocks(index))

    def free(self, reserve_from: int | None = None, into: int | None = None) -> int | None:
        """Give back the blocks of what is no longer read from the file.

        Args:
            reserve_from: have as many blocks from this byte of the file on.
            into: an open file that gets those blocks instead.

        Returns:
            Up to which byte of the file there are such blocks.

        Raises:
            OSError: the file system cannot.
        """
        end = _whole_blocks(self.index)
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            start = self._first_data(fd)
            if os.fstat(fd).st_size < end or start >= end:
                return reserve_from  # cut short, so that its bytes are others; or done before
            if reserve_from is not None:
                return space.trade(fd, range(start, end), reserve_from, into)
            space.punch(fd, start, end - start)
        finally:
            os.close(fd)
        return None

    def _first_data(self, fd: int) -> int:
        try:
            found = os.lseek(fd, 0, os.SEEK_DATA)
        except OSError:
            return 0
        return found - found % space.BLOCK_BYTES


def _whole_blocks(index: LogIndex) -> int:
    """How much of the file's head is not read any more."""
    head = index.live_from - index.base_byte
    return head - head % space.BLOCK_BYTES
