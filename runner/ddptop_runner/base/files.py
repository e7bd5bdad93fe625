"""Files replaced as a whole or set aside, and locks held for the life of a process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ddptop_runner.base import bounded


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` as a whole: a reader sees the old file or the new one, never half of one."""
    import tempfile  # 8 ms that verbs which only read need not pay

    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def set_aside(path: Path) -> Path:
    """Rename a damaged file to the first free `<name>.damaged-<n>`; the new path.

    Raises:
        OSError: it cannot be renamed.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    return aside


def lock(path: Path) -> int | None:
    """Hold an exclusive flock for the life of this process; None when another process holds it.

    Raises:
        OSError: as `bounded.open_lock`.
    """
    fd = bounded.open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
