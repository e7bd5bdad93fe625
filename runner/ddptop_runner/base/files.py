"""Files replaced atomically or set aside, locks held for the life of a process, and ownership."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from pathlib import Path

from ddptop_runner.base import bounded

LOCK_POLL_S = 0.02


def write_atomic(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` atomically: a reader sees the old file or the new one, never part of one."""
    import tempfile  # importing it takes 8 ms, which commands that only read can save

    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if mode != 0o600:
                os.fchmod(fd, mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def set_aside(path: Path) -> Path:
    """Rename a damaged file to the first free `<name>.damaged-<n>` and return the new path.

    Raises:
        OSError: it cannot be renamed.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)
    return aside


def lock(path: Path, timeout_s: float = 0.0) -> int | None:
    """Hold an exclusive flock until the descriptor is closed; None if another process holds it.

    Args:
        path: the lock file.
        timeout_s: how long to wait for the other process; 0 tries once.

    Raises:
        OSError: as in `bounded.open_lock`, or the file system has no locks.
    """
    return wait_for_lock(bounded.open_lock(path), timeout_s)


def wait_for_lock(fd: int, timeout_s: float) -> int | None:
    """As `lock`, for the descriptor of an open file; closes it if that fails."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                os.close(fd)
                return None
            time.sleep(LOCK_POLL_S)
        except OSError:
            os.close(fd)
            raise
        else:
            return fd


def stamp(path: Path) -> int | None:
    """When a file last changed; None if it does not exist."""
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None


def is_private_folder(path: str | os.PathLike[str]) -> bool:
    """Whether it is a directory, not a link, owned by the effective user and closed to all others.

    Nobody else must be able to replace it either: each directory above belongs to root or this
    user, and only its owner can write to it unless it is sticky, as /tmp is.
    """
    uid = os.geteuid()
    try:
        own = os.lstat(path)
        if not stat.S_ISDIR(own.st_mode) or own.st_uid != uid or own.st_mode & 0o077:
            return False
        above = [folder.lstat() for folder in Path(path).absolute().parent.resolve().parents]
        above.append(Path(path).absolute().parent.stat())
    except (OSError, ValueError):
        return False
    return all(
        one.st_uid in (0, uid) and (not one.st_mode & 0o022 or one.st_mode & stat.S_ISVTX)
        for one in above
    )


def belongs(status: os.stat_result) -> str:
    """Its owner and mode, as text."""
    import pwd

    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    return f"is owned by {owner} (mode {stat.S_IMODE(status.st_mode):04o})"
