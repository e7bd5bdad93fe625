"""Reads files that may be damaged or hostile: regular files only, up to a limit.

A named pipe, device, or link in place of a file in a run folder must not block a viewer or lead it
elsewhere. A file of many gigabytes must not use up its memory, and endlessly nested JSON must not
crash it.
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
"""Larger than a snapshot of ten thousand ranks."""


def open_regular(path: Path, *, can_write: bool = False) -> int:
    """Open a regular file; never blocks, and follows no link.

    Args:
        path: the file.
        can_write: also open it for writing if allowed, which rules out all leases on it.

    Raises:
        OSError: there is no such file, or it is not a regular file.
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
    """Open this user's own lock file, and create it if needed; never blocks.

    Raises:
        OSError: it cannot be created, is not a regular file, or belongs to another user.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
    fd = os.open(path, flags, 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(fd)
        raise OSError(errno.EPERM, "not a lock file owned by this user", str(path))
    return fd


def read_bytes(path: Path, limit_bytes: int = FILE_BYTES) -> bytes:
    """Read all of a regular file.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger than the limit.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size <= limit_bytes:
            data = file.read(limit_bytes + 1)
            if len(data) <= limit_bytes:
                return data
    raise OSError(errno.EFBIG, f"larger than {limit_bytes >> 20} MiB", str(path))


def read_text(path: Path, limit_bytes: int = FILE_BYTES) -> str:
    """Read all of a regular file as UTF-8; invalid bytes are replaced.

    Raises:
        OSError: as in `read_bytes`.
    """
    return read_bytes(path, limit_bytes).decode("utf-8", "replace")


def decode_json(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Decode `data`.

    Raises:
        msgspec.DecodeError: it has another form, or is nested too deeply.
    """
    try:
        return decoder.decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


def is_file_name(name: str) -> bool:
    """Whether a name refers to a file in a folder, and does not lead out of it."""
    return name not in ("", ".", "..") and not set("/\0") & set(name) and len(name) < 256
