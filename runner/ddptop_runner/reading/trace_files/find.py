"""Finds the files that a training run logs to, and which rank writes each."""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.host import procs
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_files.series import FileKind

MAX_FILES = 16
MAX_DEPTH = 4
"""Folders between the working folder and a file."""
MAX_FOLDERS = 2000
"""That are looked into in one search."""
MAX_ENTRIES = 20_000
"""Of one folder that are looked at: one with more holds data."""
SEARCH_S = 1.0
"""A search ends after this, with what it found: a network file system may be slow."""
SKEW_S = 5.0
"""By how much a file server's clock may differ."""

_EVENTS = re.compile(r"events\.out\.tfevents\.(?P<at>\d{1,20})(?:\.(?P<rest>.{1,200}))?")
_MAKER = re.compile(r"(?P<host>.{1,120}?)\.(?P<pid>\d{1,10})\.\d{1,6}(?:\.v2)?")
_LIKELY = re.compile(
    r"lightning_logs|runs?|logs?|tb|tb_logs|tensorboard\w*|.*log(?:s|dir)?|out(?:put)?s?|results?"
    r"|exp\w*|work_dirs?|checkpoints?|ckpts?|models?|version_\d+|train|validation"
)
_NEVER = frozenset(
    ("__pycache__", "node_modules", "site-packages", "dist-packages", "venv", "env", "wandb")
)


@dataclass(frozen=True)
class TraceFile:
    """A file that a training logs to."""

    path: str
    kind: FileKind
    written_at_s: float
    """Unix seconds of the last write that was seen."""
    host: str | None = None
    """Where its writer runs, as an event file's name tells."""
    pid: int | None = None
    """Of its writer on that host, in the writer's own pid namespace."""


def kind_of(name: str) -> FileKind | None:
    """What a file is by its name; None: nothing that is read here."""
    if name == "metrics.csv":
        return "csv"
    return "events" if _EVENTS.fullmatch(name) else None


def maker_of(name: str) -> tuple[str | None, int | None]:
    """(host, pid) of whoever writes the event file, by its name."""
    found = _EVENTS.fullmatch(name)
    made = _MAKER.fullmatch(found["rest"]) if found and found["rest"] else None
    return (made["host"], int(made["pid"])) if made else (None, None)


def find_files(folder: str, since_s: float, search_s: float = SEARCH_S) -> list[TraceFile]:
    """At most `MAX_FILES` files below `folder` that were written since, the newest first.

    Links are not followed and hidden folders are passed over; folders named as logs usually are
    come first. What cannot be read is not there.

    Args:
        folder: the job's working folder; may be `/proc/PID/cwd`.
        since_s: Unix seconds at which the job started.
        search_s: the search ends after so many seconds, with what it found.
    """
    deadline_s = time.monotonic() + search_s
    likely: deque[tuple[str, int]] = deque([(folder, 0)])
    others: deque[tuple[str, int]] = deque()
    found: list[TraceFile] = []
    for _ in range(MAX_FOLDERS):
        if not (likely or others) or time.monotonic() > deadline_s:
            break
        here, depth = (likely or others).popleft()
        for entry in _entries(here):
            if time.monotonic() > deadline_s:
                break
            kind = kind_of(entry.name)
            if kind is not None:
                if (one := _written_since(entry, kind, since_s - SKEW_S)) is not None:
                    found.append(one)
            elif depth < MAX_DEPTH and _is_folder(entry):
                wanted = likely if _LIKELY.fullmatch(entry.name.lower()) else others
                wanted.append((entry.path, depth + 1))
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
    """The rank that a file is taken for; None where another training writes it.

    Two trainings may log below one folder. A file whose name does not tell its writer is the first
    rank's: the others leave logging to it.

    Args:
        file: as it was found.
        ranks: pids of each rank and of what it started.
        others: pids that belong to the job and to no rank.
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
    """When something was logged, by the file's own word; `now` where that says nothing or errs."""
    at_s = reading.written_at_s
    return utc_from_unix(at_s) if at_s is not None and 0 < at_s < now.timestamp() else now
