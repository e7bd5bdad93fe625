"""One rank's log as a single range of bytes: archives, gaps, then the file itself.

Positions are logical: the offset that a byte had when it was written. They stay valid while the
log's head moves into an archive, also for a reader that is at it.
"""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from ddptop_runner.base import bounded
from ddptop_runner.store import log_index
from ddptop_runner.store.log_index import LogIndex, LogPiece, gap_line

BLOCK_BYTES = 1 << 18
_TRIES = 5
"""The log's head may move while it is read; then it is looked for anew."""


def scan_back(
    read: Callable[[int, int], bytes], first: int, end: int, count: int
) -> tuple[int | None, int]:
    r"""Look backwards for the `count`-th `\n` before `end`.

    Args:
        read: gives so many bytes from an offset.
        first: the search ends here.
        end: the first byte that is not looked at.
        count: 1 or more.

    Returns:
        The byte after that newline, or None; how many newlines are still to be found.
    """
    position = end
    while position > first:
        start = max(first, position - BLOCK_BYTES)
        block = read(start, position - start)
        found = block.count(b"\n")
        if found < count:
            count -= found
        else:
            index = len(block)
            for _ in range(count):
                index = block.rfind(b"\n", 0, index)
            return start + index + 1, 0
        position = start
    return None, count


class LogFile:
    """A log, opened for reading. Starts at its first byte.

    Raises:
        OSError: when the file cannot be opened; FileNotFoundError where it is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.fdopen(bounded.open_regular(path), "rb", buffering=0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise FileNotFoundError(errno.ENOENT, error.strerror, str(path)) from error
        self._index_path = log_index.index_file(path)
        self._signature: tuple[int, int, int] | None = None
        self._index = LogIndex()
        self._base = 0
        """The logical offset of the file's first byte."""
        self._cut_seen = False
        """The file was seen to be cut short, and the index does not say so yet."""
        self._archive: tuple[str, gzip.GzipFile] | None = None
        self.position = 0
        self._reload()
        self.position = self.first

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        self._close_archive()
        self._file.close()

    @property
    def first(self) -> int:
        """The log's first byte."""
        return self._index.first

    @property
    def end(self) -> int:
        """The first byte that is not written yet."""
        return max(self._base + self._size(), self._index.live_from)

    def seek(self, position: int) -> None:
        """Read on from there."""
        self.position = position

    def read(self, count: int) -> bytes:
        """Up to `count` bytes, fewer only at the log's end; a line takes the place of each gap."""
        parts: list[bytes] = []
        left = count
        while left > 0 and (data := self._read_once(left)):
            parts.append(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_part(self, count: int) -> bytes:
        """As `read`, of what stands together: fewer bytes than the position moved are a gap's line.

        That line stands alone, and for the whole gap from the position on.
        """
        return self._read_once(count)

    def gap_at(self, position: int) -> tuple[int, int] | None:
        """The first byte of the gap that a byte is in, and the one behind it; None: in none.

        Only gaps that the index names are known.
        """
        for piece in self._index.pieces:
            if piece.from_byte <= position < piece.to_byte:
                return None if piece.archive is not None else (piece.from_byte, piece.to_byte)
        return None

    def read_new(self, max_bytes: int) -> tuple[bytes, bool]:
        """What the file holds from the position on; its last `max_bytes` where that is more.

        Archives and gaps are passed over and never read, so that it costs no more to be far behind.

        Returns:
            The bytes; whether some before them were passed over.
        """
        before = self.position
        for _ in range(_TRIES):
            self._reload_if_changed()
            start = max(self.position, self._index.live_from, self.end - max_bytes)
            self.position = start
            data = self._read_live(max_bytes)
            if data is None:
                continue
            if self.position - start != len(data):  # a hole, and words that stand for it
                return b"", True
            return data, start != before
        return b"", self.position != before

    def tail_offset(self, count: int, max_bytes: int | None = None) -> int:
        """The byte at which the last `count` lines start, an unfinished last line counted.

        Reads from the end, at most `max_bytes` far; the byte may then lie inside a line.
        """
        for _ in range(_TRIES):
            self._reload_if_changed()
            signature = self._signature
            found = self._find_tail(count, max_bytes)
            if signature == self._signature_now():
                break
        return found

    # -- the file itself -------------------------------------------------------------------------

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _read_once(self, count: int) -> bytes:
        for _ in range(_TRIES):
            if self.position < self._index.live_from:
                data = self._read_piece(count)
            else:
                data = self._read_live(count)
            if data is not None:
                return data
        return b""

    def _read_live(self, count: int) -> bytes | None:
        """Bytes of the file; None when the log has changed and must be looked at anew."""
        fd = self._file.fileno()
        if self._base + self._size() < self.position:  # cut short by someone: what is left is new
            self._base, self._cut_seen = self.position, True
        position = self.position
        data = os.pread(fd, count, position - self._base)
        self._reload_if_changed()
        if self.position != position or position < self._index.live_from:
            return None
        if data[:1] == b"\0" and (hole := self._hole(fd, position - self._base)):
            self.position += hole
            return gap_line(position, self.position, "disk full")
        self.position += len(data)
        return data

    def _hole(self, fd: int, offset: int) -> int:
        """How long the hole at `offset` is: 0 where a program really wrote zeros."""
        try:
            return os.lseek(fd, offset, os.SEEK_DATA) - offset
        except OSError as error:
            return self._size() - offset if error.errno == errno.ENXIO else 0

    # -- archives and gaps -----------------------------------------------------------------------

    def _read_piece(self, count: int) -> bytes | None:
        position = self.position
        piece = next(p for p in self._index.pieces if p.to_byte > position)
        if piece.archive is None:
            self.position = piece.to_byte
            return gap_line(piece.from_byte, piece.to_byte, piece.reason)
        try:
            data = self._archive_bytes(piece, position, min(count, piece.to_byte - position))
        except (OSError, EOFError, zlib.error):
            data = b""
        if not data:
            if self._reload_if_changed():
                return None
            self.position = piece.to_byte
            return gap_line(position, piece.to_byte, "missing")
        self.position += len(data)
        return data

    def _archive_bytes(self, piece: LogPiece, position: int, count: int) -> bytes:
        if self._archive is None or self._archive[0] != piece.archive:
            self._close_archive()
            self._archive = (piece.archive or "", log_index.open_archive(self._path, piece))
        file = self._archive[1]
        file.seek(position - piece.from_byte)
        return file.read(count)

    def _close_archive(self) -> None:
        if self._archive is not None:
            self._archive[1].close()
            self._archive = None

    # -- the search for the tail -----------------------------------------------------------------

    def _find_tail(self, count: int, max_bytes: int | None) -> int:
        end = self.end
        if count <= 0:
            return end
        first = self.first if max_bytes is None else max(self.first, end - max_bytes)
        # the byte before the end is no separator: whether it is `\n` or not, a line ends there
        stop = max(end - 1, first)
        fd = self._file.fileno()

        def read_live(position: int, size: int) -> bytes:
            return os.pread(fd, size, position - self._base)

        low = max(first, self._index.live_from)
        found, count = scan_back(read_live, low, stop, count)
        if found is not None:
            return found
        for piece in reversed(self._index.pieces):
            stop = min(stop, piece.to_byte)
            if piece.to_byte <= first:
                break
            if piece.archive is None:
                # the line that stands for the gap ends, unless it is the log's last, and one before
                ends = 2 if stop == piece.to_byte else 1
                if count <= ends:
                    return piece.from_byte if count == ends else piece.to_byte
                count, stop = count - ends, piece.from_byte - 1
                continue
            found, count = self._scan_archive(piece, max(first, piece.from_byte), stop, count)
            if found is not None:
                return found
        return first

    def _scan_archive(
        self, piece: LogPiece, low: int, stop: int, count: int
    ) -> tuple[int | None, int]:
        """As `scan_back`; forwards first, for an archive cannot be read backwards."""
        counts: list[int] = []
        position = low
        try:
            while position < stop:
                size = min(BLOCK_BYTES, stop - position)
                block = self._archive_bytes(piece, position, size)
                if not block:
                    return None, max(1, count - 1)
                counts.append(block.count(b"\n"))
                position += size
            total = sum(counts)
            if total < count:
                return None, count - total
            number = len(counts)
            while counts[number - 1] < count:
                number -= 1
                count -= counts[number]
            start = low + (number - 1) * BLOCK_BYTES
            block = self._archive_bytes(piece, start, min(BLOCK_BYTES, stop - start))
        except (OSError, EOFError, zlib.error):
            return None, max(1, count - 1)  # one line says that it cannot be read
        index = len(block)
        for _ in range(count):
            index = block.rfind(b"\n", 0, index)
        return start + index + 1, 0

    # -- the index -------------------------------------------------------------------------------

    def _signature_now(self) -> tuple[int, int, int] | None:
        try:
            found = self._index_path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _reload_if_changed(self) -> bool:
        if self._signature_now() == self._signature:
            return False
        self._reload()
        return True

    def _reload(self) -> None:
        self._signature = self._signature_now()
        noted = self._index.base_byte
        self._index = LogIndex() if self._signature is None else log_index.read_index(self._path)
        self._close_archive()
        base = self._index.base_byte
        if self._cut_seen and base != noted:
            self.position += base - self._base
            self._cut_seen = False
        if not self._cut_seen:
            self._base = base
            if base + self._size() < self._index.live_from:
                self._base = self._index.live_from  # cut short, and not noted yet
                self._cut_seen = True
