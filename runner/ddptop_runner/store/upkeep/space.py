"""Kernel features for a full disk: reserved blocks, holes, and free space.

Nothing here needs a copy of any data. A call that the file system does not know raises OSError
with an errno of `UNSUPPORTED`.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KEEP_SIZE = 0x01
PUNCH_HOLE = 0x02
RENAME_EXCHANGE = 2
AT_FDCWD = -100

BLOCK_BYTES = 4096
TRADE_BYTES = 64 * 1024
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})

LOW_BYTES = 1 << 30
LOW_FRACTION = 0.05


@dataclass(frozen=True)
class DiskRoom:
    """A file system's room, as far as this user may fill it."""

    free_bytes: int
    total_bytes: int

    @property
    def is_low(self) -> bool:
        """Less than 1 GiB, or on a small disk less than a twentieth of it."""
        return self.free_bytes < min(LOW_BYTES, LOW_FRACTION * self.total_bytes)


def is_no_room(error: BaseException) -> bool:
    """Whether the disk is full, or this user's quota used up."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


def is_unsupported(error: BaseException) -> bool:
    """Whether the file system has no such operation."""
    return isinstance(error, OSError) and error.errno in UNSUPPORTED


def room(path: Path) -> DiskRoom | None:
    """The room on the disk of `path`; None where it cannot be told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return DiskRoom(blocks * found.f_frsize, found.f_blocks * found.f_frsize)


@functools.cache
def _library(hold_gil: bool) -> ctypes.CDLL:
    return (ctypes.PyDLL if hold_gil else ctypes.CDLL)(None, use_errno=True)


def _function(name: str, *, hold_gil: bool = False) -> Callable[..., int]:
    try:
        found: Callable[..., int] = getattr(_library(hold_gil), name)
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    return found


def _fallocate(fd: int, mode: int, offset: int, length: int, *, hold_gil: bool = False) -> None:
    name = "fallocate64" if ctypes.sizeof(ctypes.c_long) < 8 else "fallocate"
    call = _function(name, hold_gil=hold_gil)
    while call(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def reserve(fd: int, offset: int, length: int) -> None:
    """Have blocks for that range, without changing the file's size.

    Raises:
        OSError: there is no room, or the file system cannot.
    """
    if length > 0:
        _fallocate(fd, KEEP_SIZE, offset, length)


def punch(fd: int, offset: int, length: int) -> None:
    """Give back the blocks of that range, which must be whole ones; it then reads as zeros.

    Raises:
        OSError: the file system cannot.
    """
    if length > 0:
        _fallocate(fd, PUNCH_HOLE | KEEP_SIZE, offset, length)


def trade(fd: int, hole: range, reserve_from: int, into: int | None = None) -> int:
    """Give back blocks and have as many others, on a full disk where all are after them.

    Small steps, each without letting another thread of this process run in between.

    Args:
        fd: the file.
        hole: the bytes to punch, whole blocks.
        reserve_from: where as many blocks are wanted.
        into: the file that they are wanted in; the same unless given.

    Returns:
        Up to which byte there are blocks now.
    """
    reserved_to = reserve_from
    for start in range(hole.start, hole.stop, TRADE_BYTES):
        step = min(TRADE_BYTES, hole.stop - start)
        _fallocate(fd, PUNCH_HOLE | KEEP_SIZE, start, step, hold_gil=True)
        try:
            _fallocate(fd if into is None else into, KEEP_SIZE, reserved_to, step)
        except OSError as error:
            if not is_no_room(error):
                raise
        else:
            reserved_to += step
    return reserved_to


def can_punch(directory: Path) -> bool:
    """Whether files of that folder can have holes punched into them, by trying it."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"x" * (2 * BLOCK_BYTES))
            file.flush()
            punch(file.fileno(), 0, BLOCK_BYTES)
    except OSError as error:
        return not is_unsupported(error)  # a full disk says nothing against it
    return True


def exchange(one: Path, other: Path) -> None:
    """Swap two files in one step (renameat2).

    Raises:
        OSError: one is missing, or the file system cannot.
    """
    call = _function("renameat2")
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


class Reserve:
    """Disk space held by a file, to be let go when others need it.

    Args:
        path: the file.
        size_bytes: how much it holds.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.held_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether it holds all that it should."""
        return self.held_bytes >= self.size_bytes

    def take(self) -> bool:
        """Hold all of it; False where there is no room."""
        if self.is_whole and self.path.exists():
            return True
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            os.posix_fallocate(fd, 0, self.size_bytes)
        except OSError:
            self.held_bytes = min(self.held_bytes, self.size_bytes // 2)
            os.ftruncate(fd, self.held_bytes)
            return False
        finally:
            os.close(fd)
        self.held_bytes = self.size_bytes
        return True

    def release(self, keep_bytes: int = 0) -> bool:
        """Let go of all but `keep_bytes`; whether that gave anything back."""
        if self.held_bytes <= keep_bytes:
            return False
        try:
            if keep_bytes:
                os.truncate(self.path, keep_bytes)
            else:
                self.path.unlink()
        except OSError:
            return False
        self.held_bytes = keep_bytes
        return True
