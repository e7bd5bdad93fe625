"""The kernel log since a given time: /dev/kmsg, if this user can read it."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
"""The kernel refuses a read that is shorter than a record."""
MOST_LINES = 2000
"""Kept of one attempt; an out-of-memory kill alone writes a hundred."""
MOST_RECORDS = 20_000
"""Read at one go."""

_RECORD = re.compile(rb"^(?P<level>\d+),(?P<seq>\d+),(?P<us>\d+),[^;]*;(?P<text>[^\n]*)")


@dataclass(frozen=True)
class KernelLine:
    """One line of the kernel's log."""

    at_s: float
    """Seconds after boot, without the time that the machine was suspended."""
    text: str

    def __str__(self) -> str:
        return f"[{self.at_s:12.6f}] {self.text}"


def parse(record: bytes) -> KernelLine | None:
    """One record of /dev/kmsg; None for what is none."""
    found = _RECORD.match(record)
    if found is None:
        return None
    return KernelLine(int(found["us"]) / 1e6, found["text"].decode("utf-8", "replace"))


class KernelLog:
    """What the kernel wrote since `begin`.

    Args:
        path: the log's device, or a file of such records.
    """

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._fd: int | None = None
        self._since_s = 0.0
        self._lines: deque[KernelLine] = deque(maxlen=MOST_LINES)

    @property
    def readable(self) -> bool:
        """Whether there is a log that this process may read."""
        return self._fd is not None

    def begin(self, since_s: float | None = None) -> None:
        """Begin anew.

        Args:
            since_s: as `time.monotonic()` had it then, of what was begun by a process that is gone;
                None: now.
        """
        self.close()
        self._lines.clear()
        self._since_s = time.monotonic() if since_s is None else since_s
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if since_s is None:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def lines(self) -> list[KernelLine]:
        """All lines since then, oldest first; the latest ones where there are very many."""
        for _ in range(MOST_RECORDS):
            try:
                record = b"" if self._fd is None else os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the kernel overwrote what was not read yet
                continue
            except OSError:
                break
            if not record:
                break
            for one in record.splitlines():  # a regular file gives many at once
                line = parse(one)
                # both clocks stand still in suspend, and differ by the kernel's rounding
                if line is not None and line.at_s >= self._since_s - 1.0:
                    self._lines.append(line)
        return list(self._lines)

    def close(self) -> None:
        """Read no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
