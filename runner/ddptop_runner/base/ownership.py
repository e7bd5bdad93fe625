"""Checks that a folder is this user's alone, so that no other user put files there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


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
