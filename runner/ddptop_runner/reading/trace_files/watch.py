"""Finds and follows a job's files in a thread, so that a slow file system blocks nothing."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict, deque

from ddptop_runner.reading.text import names
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_files.find import MAX_FILES, SKEW_S, TraceFile, find_files
from ddptop_runner.reading.trace_files.series import CsvSeries, EventSeries

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
                self.files = traces.files
                until_find_s -= self._read_every_s
                self._stop.wait(self._read_every_s)
        finally:
            traces.close()


READ_BYTES = 256 * 1024
"""Of one file in one look."""
MAX_LAG_BYTES = 4 << 20
"""Of an event file that is further ahead only the end is read."""
_MAX_HEARD = 4096


class _Tail:
    """One file, read as it grows. Close it."""

    def __init__(self, file: TraceFile) -> None:
        """Raises OSError where it cannot be opened or is no regular file."""
        self.file = file
        parent = os.path.basename(os.path.dirname(file.path))  # noqa: PTH119, PTH120 - text only
        self._validation = names.is_validation_folder(parent)
        self._fd, self._inode = -1, (0, 0)
        self._position = 0
        self.series = self._begin(False)
        self._open()

    def _begin(self, in_the_middle: bool) -> EventSeries | CsvSeries:
        if self.file.kind == "csv":
            return CsvSeries(self._validation)
        return EventSeries(self._validation, in_the_middle)

    def _open(self) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
        self._fd = os.open(self.file.path, flags)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{self.file.path} is not a regular file")
        self._inode = (status.st_dev, status.st_ino)

    def read(self) -> list[Reading]:
        """What was written since the last look; raises OSError where it cannot be read."""
        if self.file.kind == "csv" and self._was_replaced():
            self.close()
            self._open()
            self._restart()
        size = os.fstat(self._fd).st_size
        if isinstance(self.series, CsvSeries) and self._has_another_head(self.series.head):
            # Lightning writes the whole file again when there is a new column
            self._restart(self.series.rows)
        if size < self._position:
            self._restart()
        if isinstance(self.series, EventSeries):
            passed = min(self.series.records.to_skip, size - self._position)
            self.series.records.skipped(passed)
            self._position += passed
            if size - self._position > MAX_LAG_BYTES:
                self._position = size - READ_BYTES
                self.series = self._begin(True)
        if size == self._position:
            return []
        data = os.pread(self._fd, min(READ_BYTES, size - self._position), self._position)
        self._position += len(data)
        return self.series.feed(data)

    def _has_another_head(self, head: bytes) -> bool:
        return bool(head) and os.pread(self._fd, len(head), 0) != head

    def _restart(self, known_rows: int = 0) -> None:
        self._position, self.series = 0, self._begin(False)
        if isinstance(self.series, CsvSeries):
            self.series.known_rows = known_rows

    def _was_replaced(self) -> bool:
        try:
            status = os.lstat(self.file.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) != self._inode

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class TraceFiles:
    """The files that one job logs to. Works in the calling thread. Close it."""

    def __init__(self) -> None:
        self._tails: dict[str, _Tail] = {}
        self._since_s = 0.0
        self._heard: OrderedDict[object, str] = OrderedDict()
        """What was handed out and from which file: two loggers may write the same."""

    @property
    def files(self) -> list[TraceFile]:
        """The files that are followed."""
        return [tail.file for tail in self._tails.values()]

    def find(self, folder: str, since_s: float) -> None:
        """Look for files below `folder` written since the Unix time; known ones are followed on."""
        self._since_s = since_s
        for file in find_files(folder, since_s):
            if file.path not in self._tails and len(self._tails) < 2 * MAX_FILES:
                try:
                    self._tails[file.path] = _Tail(file)
                except OSError:
                    continue

    def read(self) -> list[Reading]:
        """What all files say that was not said before, in the order it was written."""
        readings = [reading for _, found in self.read_files() for reading in found]
        if all(reading.written_at_s is not None for reading in readings):
            readings.sort(key=lambda reading: reading.written_at_s or 0.0)
        return readings

    def read_files(self) -> list[tuple[TraceFile, list[Reading]]]:
        """The same by file; what two files both say is told of the first."""
        told = []
        for path, tail in list(self._tails.items()):
            try:
                readings = tail.read()
            except OSError:
                tail.close()
                del self._tails[path]
                continue
            fresh = [reading for reading in readings if self._is_fresh(reading, path)]
            if fresh:
                told.append((tail.file, fresh))
        return told

    def _is_fresh(self, reading: Reading, path: str) -> bool:
        if reading.written_at_s is not None and reading.written_at_s < self._since_s - SKEW_S:
            return False
        key = (
            reading.kind,
            reading.step,
            reading.loss if reading.loss is not None else reading.epoch,
        )
        first = self._heard.setdefault(key, path)
        if len(self._heard) > _MAX_HEARD:
            self._heard.popitem(last=False)
        return first == path

    def close(self) -> None:
        """Let go of all files."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()
