"""Keeps ddptop's files private whatever the shell's umask; jobs get the shell's."""

from __future__ import annotations

import os

PRIVATE = 0o077
_shell: int | None = None


def keep_private() -> None:
    """From now on files of this process are for this user alone."""
    global _shell
    before = os.umask(PRIVATE)
    if _shell is None:
        _shell = before


def of_shell() -> int:
    """The umask that this process was started with."""
    if _shell is not None:
        return _shell
    umask = os.umask(PRIVATE)
    os.umask(umask)
    return umask
