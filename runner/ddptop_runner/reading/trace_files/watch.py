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

FIND_EVERY_S = 30.0
_FIRST_FINDS_S = (2.0, 3.0, 5.0, 10.0)
"""Pauses after the first searches: files appear early in a training."""
MAX_WAITING = 8192
"""Readings that wait to be taken; of more the newest are kept."""
_LEAVE_S = 0.2


class TraceWatch:
    """Follows the files that one job logs to in a thread; no method blocks on them. Close it.

    Args:
        folder: below which the files are searched for, now and every half a minute.
        since_s: Unix seconds; files that were last written before are left out.
        read_every_s: pause between two reads.
    """

    def __init__(self, folder: str, since_s: float, read_every_s: float) -> None:
        self._traces = TraceFiles(folder, since_s)
        self._read_every_s = read_every_s
        self._waiting: deque[tuple[TraceFile, Reading]] = deque(maxlen=MAX_WAITING)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-files", daemon=True)
        self._thread.start()

    def read(self) -> list[tuple[TraceFile, Reading]]:
        """What was read since the last call, with the file that it is from."""
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def close(self) -> None:
        """Stop following; does not wait for a file system that does not answer."""
        self._stop.set()
        self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        pauses = iter(_FIRST_FINDS_S)
        until_find_s = 0.0
        while not self._stop.is_set():
            if until_find_s <= 0:
                self._traces.find()
                until_find_s = next(pauses, FIND_EVERY_S)
            self._waiting.extend(self._traces.read())
            until_find_s -= self._read_every_s
            self._stop.wait(self._read_every_s)
        self._traces.close()


READ_BYTES = 256 * 1024
"""Of one file in one look."""
MAX_LAG_BYTES = 4 << 20
"""Of an event file that is further ahead only the end is read."""
_MAX_SEEN = 4096


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

    def __init__(self, folder: str, since_s: float) -> None:
        self._folder = folder
        self._since_s = since_s
        self._tails: dict[str, _Tail] = {}
        self._seen: OrderedDict[object, str] = OrderedDict()
        """What was handed out and from which file: two loggers may write the same."""

    @property
    def files(self) -> list[TraceFile]:
        """The files that are followed."""
        return [tail.file for tail in self._tails.values()]

    def find(self) -> None:
        """Search for files; those that are followed are followed on."""
        for file in find_files(self._folder, self._since_s):
            if file.path not in self._tails and len(self._tails) < 2 * MAX_FILES:
                try:
                    self._tails[file.path] = _Tail(file)
                except OSError:
                    continue

    def read(self) -> list[tuple[TraceFile, Reading]]:
        """What the files say that was not said before; what two say counts of the first only."""
        found = []
        for path, tail in list(self._tails.items()):
            try:
                readings = tail.read()
            except OSError:
                tail.close()
                del self._tails[path]
                continue
            found += [(tail.file, one) for one in readings if self._is_fresh(one, path)]
        return found

    def _is_fresh(self, reading: Reading, path: str) -> bool:
        if reading.written_at_s is not None and reading.written_at_s < self._since_s - SKEW_S:
            return False
        value = reading.epoch if reading.loss is None else reading.loss
        key = (reading.kind, reading.step, value)
        first = self._seen.setdefault(key, path)
        if len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)
        return first == path

    def close(self) -> None:
        """Let go of all files."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()
