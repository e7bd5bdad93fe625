"""Finds the files that a job logs to and the rank that writes each, and follows them.

This happens in a thread, so that a slow file system blocks nothing else.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.host import procs
from ddptop_runner.reading.text import fields
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_series import CsvSeries, EventSeries, FileKind

FIRST_FIND_S, LAST_FIND_S = 2.0, 300.0
"""The pause between two searches doubles, since most files appear early in training."""
MAX_WAITING = 8192
"""Readings waiting to be taken; beyond that, the oldest are dropped."""
_LEAVE_S = 0.2


class TraceWatch:
    """Follows the files that one job logs to in a thread; no method blocks on them. Close it.

    Args:
        folder: is searched for files, with its subfolders, now and again.
        since_s: Unix seconds; files last written before are ignored.
        read_every_s: pause between reads.
    """

    def __init__(self, folder: str, since_s: float, read_every_s: float) -> None:
        self._traces = TraceFiles(folder, since_s)
        self._read_every_s = read_every_s
        self._waiting: deque[tuple[TraceFile, Reading]] = deque(maxlen=MAX_WAITING)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-files", daemon=True)
        self._thread.start()

    def read(self) -> list[tuple[TraceFile, Reading]]:
        """What was read since the last call, with the file that each reading is from."""
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def close(self) -> None:
        """Stop following, without waiting for a file system that does not answer."""
        self._stop.set()
        self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        pause_s, left_s = FIRST_FIND_S, 0.0
        while not self._stop.is_set():
            if left_s <= 0:
                self._traces.find()
                left_s, pause_s = pause_s, min(2 * pause_s, LAST_FIND_S)
            self._waiting.extend(self._traces.read())
            left_s -= self._read_every_s
            self._stop.wait(self._read_every_s)
        self._traces.close()


READ_BYTES = 4 << 20
"""Read from one file in one look."""


class _Tail:
    """One file, read as it grows. Close it."""

    def __init__(self, file: TraceFile) -> None:
        """Raises OSError if it cannot be opened or is not a regular file."""
        self.file = file
        parent = os.path.basename(os.path.dirname(file.path))  # noqa: PTH119, PTH120 - text only
        self._validation = fields.is_validation_folder(parent)
        self._fd, self._inode = -1, (0, 0)
        self._position = 0
        self.series = self._begin()
        self._open()

    def _begin(self) -> EventSeries | CsvSeries:
        kind = CsvSeries if self.file.kind == "csv" else EventSeries
        return kind(self._validation)

    def _open(self) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW
        self._fd = os.open(self.file.path, flags)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(f"{self.file.path} is not a regular file")
        self._inode = (status.st_dev, status.st_ino)

    def read(self) -> list[Reading]:
        """What was written since the last look; raises OSError if it cannot be read."""
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
        if size == self._position:
            return []
        data = os.pread(self._fd, min(READ_BYTES, size - self._position), self._position)
        self._position += len(data)
        return self.series.feed(data)

    def _has_another_head(self, head: bytes) -> bool:
        return bool(head) and os.pread(self._fd, len(head), 0) != head

    def _restart(self, known_rows: int = 0) -> None:
        self._position, self.series = 0, self._begin()
        if isinstance(self.series, CsvSeries):
            self.series.known_rows = known_rows

    def _was_replaced(self) -> bool:
        try:
            status = os.lstat(self.file.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) != self._inode

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class TraceFiles:
    """The files that one job logs to. Works in the calling thread. Close it."""

    def __init__(self, folder: str, since_s: float) -> None:
        self._folder = folder
        self._since_s = since_s
        self._tails: dict[str, _Tail] = {}

    @property
    def files(self) -> list[TraceFile]:
        """The files that it follows."""
        return [tail.file for tail in self._tails.values()]

    def find(self) -> None:
        """Search for files, in addition to those that it follows."""
        for file in find_files(self._folder, self._since_s):
            if file.path not in self._tails and len(self._tails) < 2 * MAX_FILES:
                try:
                    self._tails[file.path] = _Tail(file)
                except OSError:
                    continue

    def read(self) -> list[tuple[TraceFile, Reading]]:
        """New readings, with their file."""
        found = []
        for path, tail in list(self._tails.items()):
            try:
                readings = tail.read()
            except OSError:
                tail.close()
                del self._tails[path]
                continue
            found += [(tail.file, one) for one in readings if self._is_fresh(one)]
        return found

    def _is_fresh(self, reading: Reading) -> bool:
        at_s = reading.written_at_s
        return at_s is None or at_s >= self._since_s - SKEW_S

    def close(self) -> None:
        """Close all files."""
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()


MAX_FILES = 16
MAX_DEPTH = 4
"""Between the working folder and a file."""
MAX_FOLDERS = 2000
"""Searched at once."""
MAX_ENTRIES = 20_000
"""A folder with more contains data, not logs."""
SEARCH_S = 1.0
"""A search ends after this with what it has found: network file systems may be slow."""
SKEW_S = 5.0
"""Allowance for the clock of a file server."""

_EVENTS = re.compile(r"events\.out\.tfevents\.(?P<at>\d{1,20})(?:\.(?P<rest>.{1,200}))?")
_MAKER = re.compile(r"(?P<host>.{1,120}?)\.(?P<pid>\d{1,10})\.\d{1,6}(?:\.v2)?")
_NEVER = frozenset(
    ("__pycache__", "node_modules", "site-packages", "dist-packages", "venv", "env", "wandb")
)


@dataclass(frozen=True)
class TraceFile:
    """A file that training logs to."""

    path: str
    kind: FileKind
    written_at_s: float
    """Time of the last write, in Unix seconds."""
    host: str | None = None
    """The host of its writer, from the name of an event file."""
    pid: int | None = None
    """The pid of its writer, in the writer's own pid namespace."""


def kind_of(name: str) -> FileKind | None:
    """The kind of a file by its name; None for those that are not read."""
    if name == "metrics.csv":
        return "csv"
    return "events" if _EVENTS.fullmatch(name) else None


def maker_of(name: str) -> tuple[str | None, int | None]:
    """(host, pid) of the writer of an event file, from its name."""
    found = _EVENTS.fullmatch(name)
    made = _MAKER.fullmatch(found["rest"]) if found and found["rest"] else None
    return (made["host"], int(made["pid"])) if made else (None, None)


def find_files(folder: str, since_s: float, search_s: float = SEARCH_S) -> list[TraceFile]:
    """At most `MAX_FILES` files below `folder` that were written since, newest first.

    Ignores links, hidden folders, and what it cannot read; searches folders near the top first.

    Args:
        folder: the job's working folder; may be `/proc/PID/cwd`.
        since_s: Unix seconds at which the job started.
        search_s: the search ends after so many seconds, with what it has found.
    """
    deadline_s = time.monotonic() + search_s
    waiting = deque([(folder, 0)])
    found: list[TraceFile] = []
    for _ in range(MAX_FOLDERS):
        if not waiting or time.monotonic() > deadline_s:
            break
        here, depth = waiting.popleft()
        for entry in _entries(here):
            if time.monotonic() > deadline_s:
                break
            kind = kind_of(entry.name)
            if kind is not None:
                if (one := _written_since(entry, kind, since_s - SKEW_S)) is not None:
                    found.append(one)
            elif depth < MAX_DEPTH and _is_folder(entry):
                waiting.append((entry.path, depth + 1))
    found.sort(key=lambda one: one.written_at_s, reverse=True)
    return found[:MAX_FILES]


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_ENTRIES:
                    return
                yield entry
    except OSError:
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name in _NEVER:
        return False
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _written_since(entry: os.DirEntry[str], kind: FileKind, since_s: float) -> TraceFile | None:
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        written_at_s = entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return None
    if written_at_s < since_s:
        return None
    host, pid = maker_of(entry.name)
    return TraceFile(entry.path, kind, written_at_s, host, pid)


def rank_of(
    file: TraceFile, ranks: Mapping[int, Collection[int]], others: Collection[int] = ()
) -> int | None:
    """The rank that writes a file; None if it belongs to another job.

    Two jobs may log below one folder. A file whose name does not identify its writer is the first
    rank's, since the others usually leave logging to it.

    Args:
        file: as it was found.
        ranks: pids of each rank and of what it started.
        others: pids of the job that belong to no rank.
    """
    first = min(ranks, default=None)
    if file.pid is None or file.host is None:
        return first
    if file.host.split(".")[0] != procs.host_name():
        return None
    for rank, pids in ranks.items():
        if file.pid in pids:
            return rank
    return first if file.pid in others else None


def written_at(reading: Reading, now: dt.datetime) -> dt.datetime:
    """When a reading was logged, from the file itself; `now` if that is missing or wrong."""
    at_s = reading.written_at_s
    return utc_from_unix(at_s) if at_s is not None and 0 < at_s < now.timestamp() else now
