"""Reads files that may be damaged or hostile: regular files only, up to a limit.

A named pipe, a device or a link where a file of a run folder should be must neither block a viewer
nor lead it elsewhere. A file of many gigabytes must cost it no memory, and JSON that is nested
without end must not crash it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

FILE_BYTES = 32 << 20
"""More than a snapshot of ten thousand ranks."""


def open_regular(path: Path, *, can_write: bool = False) -> int:
    """A descriptor to read a regular file by; never waits, and follows no link.

    Args:
        path: the file.
        can_write: open it for writing too where that is allowed, which rules out all leases on it.

    Raises:
        OSError: when there is no such file, or something else in its place.
    """
    flags = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    try:
        try:
            fd = os.open(path, flags | (os.O_RDWR if can_write else os.O_RDONLY))
        except OSError as error:
            if not can_write or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            fd = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise OSError(errno.EINVAL, "not a regular file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def open_lock(path: Path) -> int:
    """A descriptor of this user's own lock file, made where there is none; never waits.

    Raises:
        OSError: when it cannot be made, or something else or another user's is in its place.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    fd = os.open(path, flags, 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(fd)
        raise OSError(errno.EPERM, "not a lock file owned by this user", str(path))
    return fd


def read_bytes(path: Path, limit_bytes: int = FILE_BYTES) -> bytes:
    """All of a regular file.

    Raises:
        OSError: when it cannot be read, is no regular file, or is larger than that.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size <= limit_bytes:
            data = file.read(limit_bytes + 1)
            if len(data) <= limit_bytes:
                return data
    raise OSError(errno.EFBIG, f"larger than {limit_bytes >> 20} MiB", str(path))


def read_text(path: Path, limit_bytes: int = FILE_BYTES) -> str:
    """All of a regular file as UTF-8, what is none of it replaced.

    Raises:
        OSError: as `read_bytes`.
    """
    return read_bytes(path, limit_bytes).decode("utf-8", "replace")


def decode_json(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """What `data` holds.

    Raises:
        msgspec.DecodeError: when it is something else, or nested too deeply.
    """
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def is_file_name(name: str) -> bool:
    """Whether a name leads to a file of one folder, and not out of it."""
    return name not in ("", ".", "..") and not set("/\0") & set(name) and len(name) < 256
