"""Where a saved file is now: scripts write under another name and rename the complete file.

The files are the script's own, on whatever file system it likes. One that hangs must not hold the
supervisor, so it is asked in a thread of its own.
"""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Protocol

MOST_ENTRIES = 10_000
"""Of a folder that are looked through."""


class Finder(Protocol):
    """Looks for saved files beside whatever else goes on."""

    def ask(self, path: str, inode: int) -> None:
        """Look for that file, unless one is being looked for."""

    def answer(self) -> tuple[str, str] | None:
        """(path that was asked for, where it lies now), once; None before."""


def locate(path: str, inode: int) -> str:
    """The path of the file or folder of that inode, which was written as `path`.

    It may have been renamed in its folder, or its folder may have been. Where it is not found,
    `path` as it was: it was deleted, moved far away, or cannot be looked for.
    """
    try:
        if _inode(path) == inode:
            return path
        folder, name = os.path.split(path)
        if Path(folder).is_dir():
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, MOST_ENTRIES):
                    if entry.inode() == inode:
                        return entry.path
            return path
        with os.scandir(os.path.dirname(folder)) as entries:  # noqa: PTH120 - as scandir has it
            for entry in itertools.islice(entries, MOST_ENTRIES):
                if entry.is_dir() and _inode(inside := f"{entry.path}/{name}") == inode:
                    return inside
    except (OSError, ValueError):
        return path
    return path


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - paths of the script are not ours to change
    except OSError:
        return None


class ThreadedFinder:
    """Looks in a thread, one file at a time. A thread that hangs is left behind."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answer: tuple[str, str] | None = None

    def ask(self, path: str, inode: int) -> None:
        """Look for that file, unless one is being looked for."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._look, args=(path, inode), daemon=True)
        self._thread.start()

    def _look(self, path: str, inode: int) -> None:
        self._answer = path, locate(path, inode)

    def answer(self) -> tuple[str, str] | None:
        """(path that was asked for, where it lies now), once; None before."""
        found, self._answer = self._answer, None
        return found
