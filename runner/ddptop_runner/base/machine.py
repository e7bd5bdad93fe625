"""Small queries to a Linux machine whose answers may be missing or late."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

UNLIMITED = 2**60
"""Version 1 of cgroups writes a number beyond this where there is no limit."""


def read_text(file: Path) -> str | None:
    """A small file's text without blanks around it, or None."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def nearest(path: Path) -> Path:
    """`path`, or the nearest of its parents that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def within(limit_s: float, ask: Callable[[], T]) -> tuple[T, float] | None:
    """`ask()` and the seconds it took, or None when it is not back in time or raised.

    The thread of a late answer is left behind: a resolver cannot be interrupted.
    """
    answers: queue.SimpleQueue[tuple[T, float] | None] = queue.SimpleQueue()

    def run() -> None:
        started = time.monotonic()
        try:
            answers.put((ask(), time.monotonic() - started))
        except Exception:  # None says it: a thread has nobody to raise to
            answers.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        return None


def cgroup_limit(root: Path, controller: str, v2_file: str, v1_file: str) -> int | None:
    """The tightest limit of this process's cgroup and its ancestors; None without one.

    Args:
        root: where the file system begins.
        controller: its name in version 1, such as "memory".
        v2_file: holds the limit in version 2.
        v1_file: holds the limit in version 1.
    """
    limits = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            base, name = root / "sys/fs/cgroup", v2_file
        elif controller in controllers.split(","):
            base, name = root / "sys/fs/cgroup" / controller, v1_file
        else:
            continue
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            text = read_text(place / name)
            if text and text.isdecimal() and int(text) < UNLIMITED:
                limits.append(int(text))
            if place == base:
                break
    return min(limits) if limits else None
