"""A file that is replaced repeatedly, even on a full disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ddptop_runner.base.files import write_atomic
from ddptop_runner.store.upkeep import space

SPARE_BYTES = 256 * 1024


class SteadyFile:
    """Replaces one JSON file as a whole. While there is room, by rename; without, by what it has.

    A spare file holds blocks from the time when there was room. On a full disk the new content goes
    there, padded with newlines, and the two change places in one step. Where the file system cannot
    exchange files, the content is overwritten in place: a reader may then see half of it, once.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._spare = path.with_name(f".{path.name}.spare")
        self._has_spare = False
        self.no_room = False
        """Whether the last write found the disk full."""

    def write(self, data: bytes) -> bool:
        """Replace the content; False where even the old blocks could not be used."""
        try:
            write_atomic(self._path, data)
        except OSError as error:
            self.no_room = space.is_no_room(error)
            return self.no_room and self._write_without_room(data)
        self.no_room = False
        if not self._has_spare:
            self._make_spare()
        return True

    def close(self) -> None:
        """Delete the spare."""
        with contextlib.suppress(OSError):
            self._spare.unlink()

    def _make_spare(self) -> None:
        try:
            fd = os.open(self._spare, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, 0, SPARE_BYTES)
        except OSError:
            pass  # the next write tries again
        else:
            self._has_spare = True
        finally:
            os.close(fd)

    def _write_without_room(self, data: bytes) -> bool:
        try:
            _overwrite(self._spare, data)
            space.exchange(self._spare, self._path)
        except OSError:
            try:
                _overwrite(self._path, data)
            except OSError:
                return False
        self._has_spare = False  # once there is room again, it wants its full size
        return True


def _overwrite(path: Path, data: bytes) -> None:
    """Put `data` where the content stands, without letting go of a block."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = max(os.fstat(fd).st_size, len(data))
        padded = data.ljust(size, b"\n")
        written = 0
        while written < len(padded):
            written += os.pwrite(fd, padded[written:], written)
    finally:
        os.close(fd)
