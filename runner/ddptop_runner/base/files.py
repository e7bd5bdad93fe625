"""Files replaced as a whole or set aside, locks held for the life of a process, and ownership."""

from __future__ import annotations

import fcntl
import os
import stat
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


def is_private_folder(path: str | os.PathLike[str]) -> bool:
    """Whether it is a folder and no link, owned by the effective user, and closed to all others.

    Nobody else may be able to put another folder in its place either: each folder above belongs to
    root or to this user, and is writable by its owner alone or sticky, as /tmp is.
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
    """Whose it is, and its mode, in words."""
    import pwd

    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    return f"is owned by {owner} (mode {stat.S_IMODE(status.st_mode):04o})"
