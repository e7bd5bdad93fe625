"""Keeps a full disk from ending a job: reserved blocks, dropped log heads, and a reserve file.

Nothing here copies data. A call that the file system does not support raises OSError with an errno
in `UNSUPPORTED`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddptop_runner.base.files import write_atomic
from ddptop_runner.store.logs import head_hole

KEEP_SIZE = 0x01
PUNCH_HOLE = 0x02
BLOCK_BYTES = 4096
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})

LOW_BYTES = 1 << 30
LOW_FRACTION = 0.05

MIB = 1 << 20
DEFAULT_LIMIT_BYTES = 1 << 30
MIN_RESERVE_BYTES = MIB
MAX_RESERVE_BYTES = 256 * MIB
RESERVE_S = 10.0
"""How long the reserved blocks last at a log's present rate of growth."""
SHARE_OF_ROOM = 16
"""Beyond the minimum, a log reserves at most 1/16 of free space, or as much as it has lines."""
LOOK_EVERY_S = 1.0
NEW_LOOK_S = 0.1
NEW_FOR_S = 2.0
"""The same for a new log, whose growth is not known yet."""
LEAST_LOOK_S = 0.02
LOOKS_PER_RESERVE = 8
"""How often a log is looked at while its rank fills what is reserved, within these bounds."""
LEAST_LEFT_BYTES = 64 * 1024
"""Minimum size of a log after its head is dropped."""
STEP_BYTES = 64 * 1024
MOST_STEPS = 64
"""Blocks move between files in small steps, since others may take what is briefly free."""
SPARE_BYTES = 64 * 1024
"""Blocks reserved beyond the end of the snapshot, which grows when something goes wrong."""


@dataclass(frozen=True)
class DiskRoom:
    """Free space on a file system, as available to this user."""

    free_bytes: int
    total_bytes: int

    @property
    def is_low(self) -> bool:
        """Whether there is less than 1 GiB or, on a small disk, less than a twentieth of it."""
        return self.free_bytes < min(LOW_BYTES, LOW_FRACTION * self.total_bytes)

    @property
    def is_full(self) -> bool:
        """Whether not even the smallest reserve fits."""
        return self.free_bytes < MIN_RESERVE_BYTES


def is_no_room(error: BaseException) -> bool:
    """Whether the error means a full disk or an exceeded quota."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


def room(path: Path) -> DiskRoom | None:
    """Free space on the file system of `path`; None if it cannot be queried."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return DiskRoom(blocks * found.f_frsize, found.f_blocks * found.f_frsize)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    name = "fallocate64" if ctypes.sizeof(ctypes.c_long) < 8 else "fallocate"
    call = getattr(_library(), name, None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while call(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def reserve(fd: int, offset: int, length: int) -> None:
    """Reserve blocks for that range without changing the file's size.

    Raises:
        OSError: no space is left, or the file system does not support it.
    """
    _fallocate(fd, KEEP_SIZE, offset, length)


def punch(fd: int, offset: int, length: int) -> None:
    """Release the blocks of that range, which must be whole blocks and then reads as zeros.

    Raises:
        OSError: the file system does not support it.
    """
    _fallocate(fd, PUNCH_HOLE | KEEP_SIZE, offset, length)


def trim(path: Path) -> None:
    """Release the blocks beyond the end of a file that nothing writes to any longer."""
    with contextlib.suppress(OSError):
        os.truncate(path, path.stat().st_size)


class RankLog:
    """One log of a running job, kept within its limit and with room for its next lines.

    On a full disk, a rank's print fails with ENOSPC, which ends the rank. Each log therefore has
    blocks reserved beyond its end, enough for the next seconds. If the disk has none left, a log
    gives up its head (`give_head`). The rank keeps appending; only blocks before the end change.

    Args:
        path: the log.
        limit_bytes: maximum size to keep.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self.growth = 0.0
        """Recent growth, in bytes per second."""
        self.live_bytes = 0
        """Size of the log without the dropped head."""
        self.lacks_room = False
        """Whether the last reservation failed for lack of space."""
        self.can_punch = True
        """False once the file system has refused to drop a head."""
        self._limit = limit_bytes
        self._size = self._wanted = self._reserved_to = 0
        self._can_reserve = True
        self._first_s: float | None = None
        self._looked_s: float | None = None

    @property
    def reserved_bytes(self) -> int:
        """Size of the blocks beyond the log's end."""
        return max(0, self._reserved_to - self._size)

    @property
    def is_in_need(self) -> bool:
        """Whether the rank may soon run out of blocks."""
        return self.lacks_room and self.reserved_bytes < 0.6 * self._wanted

    @property
    def next_look_s(self) -> float:
        """Seconds until the next look, well before the reserved blocks are used up."""
        if self._looked_s is None or self._first_s is None:
            return 0.0
        most_s = NEW_LOOK_S if self._looked_s - self._first_s < NEW_FOR_S else LOOK_EVERY_S
        if self.growth <= 0:
            return most_s
        lasts_s = self.reserved_bytes / self.growth
        return min(max(lasts_s / LOOKS_PER_RESERVE, LEAST_LOOK_S), most_s)

    def look(self, now_s: float) -> int:
        """Maintain limit and reserve; returns the bytes dropped. Due after `next_look_s`.

        Raises:
            OSError: there is no such file.
        """
        dropped = 0
        if self._has_changed(now_s):
            with _opened(self.path) as fd:
                self.live_bytes = self._size - head_hole(fd)
                if self.live_bytes > self._limit and self.can_punch:
                    dropped = self._drop(fd, self.live_bytes - self._limit + self._limit // 8)
        self.hold()
        return dropped

    def hold(self) -> None:
        """Reserve blocks for the next seconds, and set `lacks_room` accordingly.

        Raises:
            OSError: there is no such file.
        """
        want = int(min(max(self.growth * RESERVE_S, MIN_RESERVE_BYTES), MAX_RESERVE_BYTES))
        if want > MIN_RESERVE_BYTES and (found := room(self.path)) is not None:
            most = max(found.free_bytes // SHARE_OF_ROOM, self.live_bytes, MIN_RESERVE_BYTES)
            want = min(want, most)
        self._wanted = want
        self.lacks_room = False
        if not self._can_reserve or self.reserved_bytes >= want:
            return
        # never a range that is already reserved: tmpfs releases its blocks if the call fails
        start = max(self._reserved_to, self._size)
        lacking = self._size + want - start
        with _opened(self.path) as fd:
            for amount in (max(lacking // part, BLOCK_BYTES) for part in (1, 4, 16)):
                try:
                    reserve(fd, start, amount)
                except OSError as error:
                    if not is_no_room(error):
                        self._can_reserve = self.lacks_room = False
                        return
                    self.lacks_room = True
                else:
                    self._reserved_to = start + amount
                    return

    def give_head(self, taker: RankLog) -> int:
        """Drop the head so that `taker` can reserve its blocks; returns the bytes dropped.

        Raises:
            OSError: one of the files is gone.
        """
        lacking = taker._wanted - taker.reserved_bytes
        left = min(2 * lacking, self.live_bytes - LEAST_LEFT_BYTES)
        step = max(STEP_BYTES, lacking // MOST_STEPS // BLOCK_BYTES * BLOCK_BYTES)
        dropped = 0
        with _opened(self.path) as fd, _opened(taker.path) as other:
            while dropped + step <= left and taker.reserved_bytes < taker._wanted:
                size = self._drop(fd, step)
                if not size:
                    break
                dropped += size
                start = max(taker._reserved_to, taker._size)
                try:
                    reserve(other, start, step)
                except OSError as error:
                    if not is_no_room(error):
                        raise
                else:
                    taker._reserved_to = start + step
        return dropped

    def _has_changed(self, now_s: float) -> bool:
        """Note the size and growth; returns whether the size is another than at the last look."""
        before_s, before = self._looked_s, self._size
        size = os.stat(self.path).st_size  # noqa: PTH116 - hot
        if size < self._size:  # truncated by someone
            self._reserved_to = 0
        if self._looked_s is not None and now_s > self._looked_s:
            elapsed_s = now_s - self._looked_s
            rate, old = max(0, size - self._size) / elapsed_s, 0.8**elapsed_s
            self.growth = max(rate, self.growth * old + rate * (1 - old))
        if self._first_s is None:
            self._first_s = now_s
        self._looked_s, self._size = now_s, size
        return before_s is None or size != before

    def _drop(self, fd: int, amount: int) -> int:
        """Drop about that many bytes at the head; returns how many."""
        start = self._size - self.live_bytes
        stop = start + amount
        stop -= stop % BLOCK_BYTES
        try:
            punch(fd, 0, stop)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self.can_punch = False
            return 0
        self.live_bytes = self._size - stop
        return stop - start


class Reserve:
    """Disk space held by a file, to be released when the job needs it.

    Args:
        path: the file.
        size_bytes: its size.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._is_held = False

    def take(self) -> bool:
        """Reserve all of it; returns False if there is not enough space."""
        if self._is_held and self._path.exists():
            return True
        try:
            self._path.touch(mode=0o600)
            with _opened(self._path) as fd:
                os.posix_fallocate(fd, 0, self._size_bytes)
        except OSError:
            self.release()
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        """Release all of it."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._is_held = False


class SteadyFile:
    """Replaces one JSON file as a whole, by renaming or, on a full disk, in place.

    Blocks reserved beyond its end make room for longer content. During an update in place, a reader
    may briefly see half of it; shorter content is padded with newlines. If its folder was deleted,
    it is created again.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.no_room = False
        """Whether the disk was full at the last write."""

    def write(self, data: bytes) -> bool:
        """Replace the content; returns False if even the old blocks could not be used."""
        try:
            if not self._path.parent.exists():
                self._path.parent.mkdir(0o700)  # not its parents: the run folder may be deleted
            write_atomic(self._path, data)
        except OSError as error:
            self.no_room = is_no_room(error)
            return self.no_room and self._overwrite(data)
        self.no_room = False
        with contextlib.suppress(OSError), _opened(self._path) as fd:
            reserve(fd, len(data), SPARE_BYTES)
        return True

    def _overwrite(self, data: bytes) -> bool:
        try:
            with _opened(self._path) as fd:
                padded = data.ljust(os.fstat(fd).st_size, b"\n")
                written = 0
                while written < len(padded):
                    written += os.pwrite(fd, padded[written:], written)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Release the blocks beyond its end."""
        trim(self._path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
