"""Finds and follows a job's files in a thread, so that a slow file system blocks nothing."""

from __future__ import annotations

import threading
from collections import deque

from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_files.find import TraceFile
from ddptop_runner.reading.trace_files.follow import TraceFiles

READ_EVERY_S = 1.0
FIND_EVERY_S = 30.0
_FIRST_FINDS_S = (2.0, 3.0, 5.0, 10.0)
"""Pauses after the first searches: files appear early in a training."""
MAX_WAITING = 8192
"""Readings that wait to be taken; of more the newest are kept."""
_LEAVE_S = 0.2


class TraceWatch:
    """The files that one job logs to; no method blocks on them. Close it.

    Nothing is started before the first `find`.
    """

    def __init__(self, read_every_s: float = READ_EVERY_S) -> None:
        self._read_every_s = read_every_s
        self._waiting: deque[tuple[TraceFile, Reading]] = deque(maxlen=MAX_WAITING)
        self._wanted: tuple[str, float] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.files: list[TraceFile] = []
        """The files that are followed."""
        self.notes: list[str] = []
        """What is wrong with files, each named."""

    def find(self, folder: str, since_s: float) -> None:
        """Follow the files below `folder` that are written after the Unix time.

        They are searched for now and every half a minute; another folder or time begins anew.
        """
        self._wanted = (folder, since_s)
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name="trace-files", daemon=True)
            self._thread.start()

    def read(self) -> list[Reading]:
        """What was read since the last call."""
        return [reading for _, reading in self.read_files()]

    def read_files(self) -> list[tuple[TraceFile, Reading]]:
        """The same with the file that each is from."""
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def close(self) -> None:
        """Stop following; does not wait for a file system that does not answer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        traces = TraceFiles()
        looking_at: tuple[str, float] | None = None
        pauses = iter(_FIRST_FINDS_S)
        until_find_s = 0.0
        try:
            while not self._stop.is_set():
                if (wanted := self._wanted) != looking_at and wanted is not None:
                    traces.close()
                    traces = TraceFiles()
                    self._waiting.clear()
                    looking_at, pauses, until_find_s = wanted, iter(_FIRST_FINDS_S), 0.0
                if until_find_s <= 0 and looking_at is not None:
                    traces.find(*looking_at)
                    until_find_s = next(pauses, FIND_EVERY_S)
                for file, readings in traces.read_files():
                    self._waiting.extend((file, reading) for reading in readings)
                self.files, self.notes = traces.files, traces.notes
                until_find_s -= self._read_every_s
                self._stop.wait(self._read_every_s)
        finally:
            traces.close()
