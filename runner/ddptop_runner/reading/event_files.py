"""Finds the TensorBoard event files that a job writes, follows them, and reads their scalars.

They are followed in a thread, so that a slow file system blocks nothing else. Reading is safe for
any bytes. Of several series of the loss, such as `train_loss_step` and `train_loss_epoch`, one is
read for training and one for validation.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.host import procs
from ddptop_runner.reading.progress.from_text import TextProgress
from ddptop_runner.reading.text import fields
from ddptop_runner.reading.text.fields import Reading, ReadingKind
from ddptop_runner.store.logs import LogFile

FIRST_FIND_S, LAST_FIND_S = 2.0, 300.0
"""The pause between two searches doubles, since most files appear early in training."""
MAX_WAITING = 8192
"""Readings waiting to be taken; beyond that, the oldest are dropped."""
_LEAVE_S = 0.2


READ_BYTES = 4 << 20
"""Read from one file in one look."""


class _Tail:
    """One file, read as it grows. Close it."""

    def __init__(self, file: EventFile) -> None:
        """Raises OSError if it cannot be opened or is not a regular file."""
        self.file = file
        parent = os.path.basename(os.path.dirname(file.path))  # noqa: PTH119, PTH120 - text only
        self._series = EventSeries(fields.is_validation_folder(parent))
        self._log = LogFile(Path(file.path))

    def read(self) -> list[Reading]:
        """What was written since the last look; raises OSError if it cannot be read."""
        start = self._log.position
        data = self._log.between(start, min(self._log.end, start + READ_BYTES))
        readings, used = self._series.read(data)
        self._log.position += used
        return readings

    def close(self) -> None:
        self._log.close()


class EventFiles:
    """One job's files, followed in a thread once started; no method then blocks on them. Close it.

    Args:
        folder: is searched for files, with its subfolders, now and again.
        since_s: Unix seconds; files last written before are ignored.
    """

    def __init__(self, folder: str, since_s: float) -> None:
        self.ranks: dict[int, TextProgress] = {}
        """Each rank's progress, as far as its files show any."""
        self._folder = folder
        self._since_s = since_s
        self._tails: dict[str, _Tail] = {}
        self._waiting: deque[tuple[EventFile, Reading]] = deque(maxlen=MAX_WAITING)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, read_every_s: float) -> None:
        """Find and read in a thread, with pauses."""
        self._thread = threading.Thread(target=self._run, args=(read_every_s,), daemon=True)
        self._thread.start()

    def look(
        self, pids: Mapping[int, Collection[int]], others: Collection[int], now: dt.datetime
    ) -> None:
        """Take what was read since the last call.

        Args:
            pids: by rank, those of its process and the processes it started.
            others: pids of the job that belong to no rank.
            now: the wall clock.
        """
        for known in self.ranks.values():
            known.begin_look()
        for file, reading in self.taken():
            if (rank := rank_of(file, pids, others)) is not None:
                self.ranks.setdefault(rank, TextProgress()).add(reading, written_at(reading, now))

    def taken(self) -> list[tuple[EventFile, Reading]]:
        """What was read since the last call, with the file that each reading is from."""
        found = []
        while self._waiting:
            found.append(self._waiting.popleft())
        return found

    def close(self) -> None:
        """Stop following, without waiting for a file system that does not answer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def _run(self, read_every_s: float) -> None:
        pause_s, left_s = FIRST_FIND_S, 0.0
        while not self._stop.is_set():
            if left_s <= 0:
                self.find()
                left_s, pause_s = pause_s, min(2 * pause_s, LAST_FIND_S)
            self.read()
            left_s -= read_every_s
            self._stop.wait(read_every_s)
        for tail in self._tails.values():
            tail.close()

    def find(self) -> None:
        """Search for files, in addition to those that it follows."""
        for file in find_files(self._folder, self._since_s):
            if file.path not in self._tails and len(self._tails) < 2 * MAX_FILES:
                try:
                    self._tails[file.path] = _Tail(file)
                except OSError:
                    continue

    def read(self) -> None:
        """Read what is new in the files that it follows."""
        for path, tail in list(self._tails.items()):
            try:
                readings = tail.read()
            except OSError:
                tail.close()
                del self._tails[path]
                continue
            self._waiting.extend((tail.file, one) for one in readings if self._is_fresh(one))

    def _is_fresh(self, reading: Reading) -> bool:
        at_s = reading.written_at_s
        return at_s is None or at_s >= self._since_s - SKEW_S


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
class EventFile:
    """A file that a training writes."""

    path: str
    written_at_s: float
    """Time of the last write, in Unix seconds."""
    host: str | None = None
    """The host of its writer, from its name."""
    pid: int | None = None
    """The pid of its writer, in the writer's own pid namespace."""


def maker_of(name: str) -> tuple[str | None, int | None]:
    """(host, pid) of the writer of an event file, from its name."""
    found = _EVENTS.fullmatch(name)
    made = _MAKER.fullmatch(found["rest"]) if found and found["rest"] else None
    return (made["host"], int(made["pid"])) if made else (None, None)


def find_files(folder: str, since_s: float, search_s: float = SEARCH_S) -> list[EventFile]:
    """At most `MAX_FILES` files below `folder` that were written since, newest first.

    Ignores links, hidden folders, and what it cannot read; searches folders near the top first.

    Args:
        folder: the job's working folder; may be `/proc/PID/cwd`.
        since_s: Unix seconds at which the job started.
        search_s: the search ends after so many seconds, with what it has found.
    """
    deadline_s = time.monotonic() + search_s
    waiting = deque([(folder, 0)])
    found: list[EventFile] = []
    for _ in range(MAX_FOLDERS):
        if not waiting or time.monotonic() > deadline_s:
            break
        here, depth = waiting.popleft()
        for entry in _entries(here):
            if time.monotonic() > deadline_s:
                break
            if _EVENTS.fullmatch(entry.name):
                if (one := _written_since(entry, since_s - SKEW_S)) is not None:
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


def _written_since(entry: os.DirEntry[str], since_s: float) -> EventFile | None:
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        written_at_s = entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return None
    if written_at_s < since_s:
        return None
    host, pid = maker_of(entry.name)
    return EventFile(entry.path, written_at_s, host, pid)


def rank_of(
    file: EventFile, ranks: Mapping[int, Collection[int]], others: Collection[int] = ()
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


# -- the records of a file: protobuf's wire format ------------------------------------------------

# Checksums are not verified: what follows a damaged record is lost. Only what a scalar needs is
# read; scalars in tensors, as TensorFlow 2 writes them, are not.

# wire types of protobuf
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

# field numbers: tensorflow/core/util/event.proto, framework/summary.proto
_EVENT_WALL_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE = 1, 2
MAX_VALUES = 4096
"""In one event."""
MAX_TAG_BYTES = 256
"""Series with a longer name are not read."""

Value = int | bytes


class Event(NamedTuple):
    """The scalars of one event."""

    written_at_s: float | None
    """Unix seconds."""
    step: int
    scalars: list[tuple[str, float]]
    """(tag, value) in the order written."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it); raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """(number, wire type, value) of each field, up to the first damaged one."""
    at, size = 0, len(data)
    while at < size:
        try:
            key, at = _varint(data, at)
            wire = key & 7
            if wire == _VARINT:
                value, at = _varint(data, at)
                yield key >> 3, wire, value
                continue
            length = 8 if wire == _FIXED64 else 4
            if wire == _BYTES:
                length, at = _varint(data, at)
        except IndexError:
            return
        if wire not in (_FIXED64, _BYTES, _FIXED32) or at + length > size:
            return
        yield key >> 3, wire, data[at : at + length]
        at += length


def read_event(data: bytes) -> Event | None:
    """The event in the data of a record; None without a scalar."""
    written_at_s, step = None, 0
    scalars: list[tuple[str, float]] = []
    for number, wire, value in _fields(data):
        if isinstance(value, int):
            if number == _EVENT_STEP:
                step = value if value < 1 << 63 else value - (1 << 64)
        elif number == _EVENT_WALL_TIME and wire == _FIXED64:
            written_at_s = _DOUBLE.unpack(value)[0]
        elif number == _EVENT_SUMMARY and wire == _BYTES:
            for inner, inner_wire, content in _fields(value):
                if inner == _SUMMARY_VALUE and inner_wire == _BYTES and isinstance(content, bytes):
                    scalars += _scalar(content)[: MAX_VALUES - len(scalars)]
    return Event(written_at_s, step, scalars) if scalars else None


def _scalar(data: bytes) -> list[tuple[str, float]]:
    tag = number = None
    for field, wire, value in _fields(data):
        if isinstance(value, int):
            continue
        if field == _VALUE_TAG and wire == _BYTES and len(value) <= MAX_TAG_BYTES:
            tag = value.decode("utf-8", "replace")
        elif field == _VALUE_SIMPLE and wire == _FIXED32:
            number = _FLOAT.unpack(value)[0]
    return [] if tag is None or number is None else [(tag, number)]


MAX_STEP = 10**18
MAX_RECORD_BYTES = 1 << 20
"""Longer records, which contain images or audio, are skipped."""
HEADER_BYTES = 12
_FOOTER_BYTES = 4
_LENGTH = struct.Struct("<Q")


def split_records(data: bytes) -> tuple[list[bytes], int]:
    """(data of each complete record, where the next one begins, maybe beyond the end)."""
    records, at = [], 0
    while len(data) - at >= HEADER_BYTES:
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + HEADER_BYTES + length + _FOOTER_BYTES
        if length <= MAX_RECORD_BYTES:
            if end > len(data):
                break
            records.append(data[at + HEADER_BYTES : end - _FOOTER_BYTES])
        at = end
    return records, at


# -- readings ------------------------------------------------------------------------------------


class EventSeries:
    """Turns the events of one file into readings.

    Args:
        validation: whether the folder's name says that it holds logs of a validation.
    """

    def __init__(self, validation: bool = False) -> None:
        self._is_validation = validation
        self._best: dict[bool, tuple[int, str]] = {}
        """By whether it is a validation's, the weight and tag of the series of the loss."""

    def read(self, data: bytes) -> tuple[list[Reading], int]:
        """(readings of the complete events, where the next event begins)."""
        records, used = split_records(data)
        readings: list[Reading] = []
        for record in records:
            if (event := read_event(record)) is not None:
                readings += self._readings(event)
        return readings, used

    def _readings(self, event: Event) -> list[Reading]:
        step = event.step if 0 <= event.step < MAX_STEP else None
        readings = []
        others = []
        for tag, value in event.scalars:
            name = self._loss_named(tag)
            if name is not None:
                kind: ReadingKind = "val" if name.validation else "train"
                readings.append(
                    Reading(step=step, loss=value, kind=kind, written_at_s=event.written_at_s)
                )
            else:
                others.append((tag, value))
        if others and not self._is_validation:  # whose names are those of training
            readings.append(Reading(scalars=tuple(others), written_at_s=event.written_at_s))
        return readings

    def _loss_named(self, tag: str) -> fields.Name | None:
        """What the name of a loss means, if that series is the best of its kind so far."""
        name = fields.of_tag(tag)
        if name is None:
            return None
        if self._is_validation and not name.training:
            name = name._replace(validation=True)
        best = self._best.get(name.validation)
        if best is None or name.weight < best[0]:
            self._best[name.validation] = (name.weight, tag)
        elif best[1] != tag:
            return None
        return name
