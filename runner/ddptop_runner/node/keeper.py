"""Checks a live job's run folder once a second: log sizes, disk space, damaged files."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ddptop_runner.base import units
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import LAUNCHER, RunFolder, owner_in_words, owner_name
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.model.events import Noticed
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store import logs
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.store.upkeep import space
from ddptop_runner.store.upkeep.rank_log import (
    DEFAULT_LIMIT_BYTES,
    MIN_RESERVE_BYTES,
    LogNews,
    RankLog,
    trim,
)
from ddptop_runner.store.upkeep.steady import SteadyFile

RESERVE_BYTES = 2 << 20
"""Held back for the history and the job's end, for the day when the disk is full."""
SMALL_RESERVE_BYTES = 512 * 1024
"""For the history's write-ahead log, and for the supervisor's own log."""
NEXT_ATTEMPT = ".next"
"""Among the folders of logs, that of the attempt to come."""
CHECK_EVERY_S = 10.0
"""Between looks at whether the history can be read."""
TELL_EVERY_S = 60.0
"""A log that gives up its head again and again is told of at most so often."""
ROOM_FOR_S = 3.0
"""A disk that was full has space again once all reserves were held for so long."""
NICE = 10


class RunFolderKeeper:
    """Keeps logs within their limit and the disk's end from ending the training.

    Args:
        folder: the job's run folder.
        spec: the job.
        story: is told of what is given up.
        history: the job's history.
        snapshot_file: the job's snapshot.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: JobSpec,
        story: EventLog,
        history: HistoryWriter | None = None,
        snapshot_file: SteadyFile | None = None,
    ) -> None:
        self._folder = folder
        self._limit = spec.log_limit_bytes or DEFAULT_LIMIT_BYTES
        self._owners = [LAUNCHER] if spec.is_command else list(range(spec.nproc))
        """Whose logs an attempt has."""
        self._is_next_ready = False
        self._story = story
        self._history = history
        self._snapshot_file = snapshot_file
        self._reserve = space.Reserve(folder.path / "reserve", RESERVE_BYTES)
        self._worker = ThreadPoolExecutor(1, "ddptop-archive", initializer=_be_nice)
        self._urgent = ThreadPoolExecutor(1, "ddptop-make-room")
        self._attempt: int | None = None
        self._logs: dict[int, RankLog] = {}
        self._reserved_own_to = 0
        self._given_up = _Tally()
        self._dropped = _Tally()
        self._full_since: dt.datetime | None = None
        self._room_since: tuple[float, dt.datetime] | None = None
        self._unpunchable: set[int] = set()
        self._damaged: list[str] = []
        self._begun_anew: str | None = None
        self._checked_history_s = 0.0
        self._reserved_wal_to = 0

    def look(self, attempt: int, now_s: float) -> list[Finding]:
        """Do what is due; what a person should know. Takes well below a millisecond."""
        self._track(attempt)
        slow_first = sorted(self._logs.items(), key=lambda item: item[1].growth)
        for rank, log in slow_first:
            try:
                log.look(now_s)
            except OSError:  # its file is gone
                self._forget(rank)
                continue
            self._tell_news(log)
        self._reserve_for_others()
        self._prepare_next_attempt()
        self._given_up.tell(self._tell_given_up, now_s)
        self._dropped.tell(self._tell_dropped, now_s)
        return [*self._room_findings(now_s), *self._history_findings(now_s), *self._log_findings()]

    def close(self) -> None:
        """The job has ended: give back all that was held for it, so that its end can be written."""
        for rank in list(self._logs):
            self._forget(rank)
        self._worker.shutdown()
        self._urgent.shutdown()
        if self._full_since is not None:
            self._space_is_back(still_full=True)
        self._given_up.tell(self._tell_given_up, None)
        self._dropped.tell(self._tell_dropped, None)
        for attempt in logs.attempts(self._folder):
            for rank in logs.ranks(self._folder, attempt):
                trim(self._folder.log_file(attempt, rank))
        trim(self._folder.supervisor_log)
        shutil.rmtree(self._folder.logs_dir / NEXT_ATTEMPT, ignore_errors=True)
        self._reserve.release()

    # -- logs ------------------------------------------------------------------------------------

    def _track(self, attempt: int) -> None:
        if attempt != self._attempt:
            for rank in list(self._logs):
                self._forget(rank)
            self._attempt = attempt
        for rank in logs.ranks(self._folder, attempt):
            if rank not in self._logs:
                path = self._folder.log_file(attempt, rank)
                with contextlib.suppress(OSError):
                    self._logs[rank] = RankLog(
                        path, rank, self._limit, self._worker, self._urgent, self._giver_for
                    )

    def _giver_for(self, log: RankLog) -> RankLog:
        """Whose head makes room for a log: that of the longest, which mostly filled the disk.

        What a short log gives up of its own may be taken by others before it has it back.
        """
        idle = [other for other in self._logs.values() if not other.is_busy]
        longest = max(idle, key=lambda other: other.live_bytes, default=log)
        return longest if longest.live_bytes > 2 * log.live_bytes else log

    def _forget(self, rank: int) -> None:
        log = self._logs.pop(rank)
        log.close()
        self._tell_news(log)

    def _tell_news(self, log: RankLog) -> None:
        while log.news:
            self._take_news(log.rank, log.news.pop(0))

    def _take_news(self, rank: int, news: LogNews) -> None:
        if news.kind == "given up":
            self._given_up.add(rank, news)
        elif news.kind == "dropped":
            self._dropped.add(rank, news)
        elif news.kind == "unpunchable":
            self._unpunchable.add(rank)
        elif news.kind == "damaged":
            self._damaged.append(news.words)
            self._tell(news.words)
        elif news.kind == "cut":
            size = units.size(news.to_byte - news.from_byte)
            self._tell(f"{_log(rank)} was truncated by another process: {size} lost")
        elif news.kind == "failed":
            self._tell(f"cannot archive the start of {_log(rank)} ({news.words})")

    def _tell_given_up(self, rank: int, from_byte: int, to_byte: int, size: int) -> None:
        self._tell(
            f"disk full: dropped {units.size(size)} (bytes {from_byte} to {to_byte}) from"
            f" {_log(rank)} to keep the job running"
        )

    def _tell_dropped(self, rank: int, from_byte: int, to_byte: int, size: int) -> None:
        self._tell(
            f"log limit reached: deleted the oldest {units.size(size)}"
            f" (bytes {from_byte} to {to_byte}) from {_log(rank)}"
        )

    def _tell(self, message: str) -> None:
        self._story.emit(Noticed(attempt=self._attempt, text=message))

    def _log_findings(self) -> list[Finding]:
        found = []
        unpunchable = sorted(self._unpunchable & self._logs.keys())
        if unpunchable:
            ranks = tuple(rank for rank in unpunchable if rank != LAUNCHER)
            limit = units.size(self._limit)
            message = (
                f"logs exceed their {limit} limit: the run folder's file system does not support"
                " hole punching"
            )
            found.append(Finding("log-limit", "warning", message, ranks))
        if self._damaged:
            found.append(Finding("damaged-file", "warning", "; ".join(self._damaged), is_told=True))
        return found

    # -- the disk --------------------------------------------------------------------------------

    def _reserve_for_others(self) -> None:
        """Blocks for what guardian and supervisor print, and for the history's next rows."""
        own = self._folder.supervisor_log
        self._reserved_own_to = _hold(own, self._reserved_own_to)
        if self._history is not None:  # SQLite keeps no lock on this file of its three
            wal = self._history.path.with_name(f"{self._history.path.name}-wal")
            self._reserved_wal_to = _hold(wal, self._reserved_wal_to)

    def _prepare_next_attempt(self) -> None:
        """Logs that hold blocks: on a full disk the next attempt's first print would fail.

        The agent takes the folder as it is for the next attempt's.
        """
        folder = self._folder.logs_dir / NEXT_ATTEMPT
        if folder.is_dir() and self._is_next_ready:
            return
        self._is_next_ready = False
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            for rank in self._owners:
                path = folder / f"{owner_name(rank)}.log"
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    space.reserve(fd, 0, MIN_RESERVE_BYTES)
                finally:
                    os.close(fd)
            self._is_next_ready = True

    def _room_findings(self, now_s: float) -> list[Finding]:
        snapshot = self._snapshot_file
        is_full = any(log.lacks_room for log in self._logs.values())
        is_full = is_full or (snapshot is not None and snapshot.no_room)
        is_full = is_full or self._history_lacks_room()
        if is_full:
            self._room_since = None
            if self._full_since is None:
                self._full_since = utc_now()
            self._reserve.release(keep_bytes=RESERVE_BYTES // 2)
            if any(log.reserved_bytes == 0 for log in self._logs.values()):
                self._reserve.release()  # a rank that has just begun to write
        elif not self._reserve.take():
            self._room_since = None
        elif self._full_since is not None:
            # what was let go of the reserve may be all the room that there is
            self._room_since = self._room_since or (now_s, utc_now())
            if now_s - self._room_since[0] >= ROOM_FOR_S:
                self._space_is_back()
        room = space.room(self._folder.path)
        left = "n/a" if room is None else units.size(room.free_bytes)
        if self._full_since is not None:
            since = f"{self._full_since.astimezone():%H:%M:%S}"
            message = (
                f"the run folder's disk has been full since {since} ({left} free): the job"
                " keeps running, logs drop their oldest lines, and metrics stay in memory; free"
                " some space"
            )
            return [Finding("disk-full", "error", message)]
        if room is not None and room.is_low:
            message = f"the run folder's disk is nearly full: {left} free"
            return [Finding("disk-low", "warning", message, hold_s=3.0)]
        return []

    def _history_lacks_room(self) -> bool:
        return self._history is not None and "full" in (self._history.problem or "")

    def _space_is_back(self, *, still_full: bool = False) -> None:
        assert self._full_since is not None  # the caller looked
        back = utc_now() if self._room_since is None else self._room_since[1]
        since, until = self._full_since.astimezone(), back.astimezone()
        self._full_since = self._room_since = None
        what = "the job ended with the disk full" if still_full else "the disk has space again"
        parts = [f"{what}; it was full from {since:%H:%M:%S} to {until:%H:%M:%S}"]
        self._given_up.tell(self._tell_given_up, None)
        lost = self._given_up.sum_up()
        parts += [f"lost {units.size(size)} from {_log(rank)}" for rank, size in lost]
        if not lost:
            parts.append("no log lines were lost")
        self._tell("; ".join([*parts, *self._history_gap()]))

    def _history_gap(self) -> list[str]:
        if self._history is None:
            return []
        gap = self._history.take_gap()
        if gap is not None:
            begin, end = (dt.datetime.fromtimestamp(t).astimezone() for t in gap)
            return [f"no history from {begin:%H:%M:%S} to {end:%H:%M:%S}"]
        return [] if self._history.problem else ["no history was lost"]

    # -- the history -----------------------------------------------------------------------------

    def _history_findings(self, now_s: float) -> list[Finding]:
        history = self._history
        if history is None:
            return []
        if now_s - self._checked_history_s >= CHECK_EVERY_S:
            self._checked_history_s = now_s
            history.check()
        if history.begun_anew is not None and history.begun_anew != self._begun_anew:
            self._begun_anew = history.begun_anew
            words = f"{history.begun_anew}; started a new history without the earlier data"
            self._damaged.append(words)
            self._tell(words)
        if history.problem is None and self._full_since is None:
            for words in self._history_gap():
                if words.startswith("no history from"):
                    self._tell(words)
        if history.problem is None or self._full_since is not None:
            return []
        return [
            Finding("history", "error", f"{history.problem}; metrics stay in memory", hold_s=10.0)
        ]


class _Tally:
    """What was given up, rank by rank, told once in a while."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[int]] = {}
        self._told_s: dict[int, float] = {}
        self._sums: dict[int, int] = {}

    def add(self, rank: int, news: LogNews) -> None:
        size = news.to_byte - news.from_byte
        self._sums[rank] = self._sums.get(rank, 0) + size
        waiting = self._waiting.setdefault(rank, [news.from_byte, news.to_byte, 0])
        waiting[1] = max(waiting[1], news.to_byte)
        waiting[2] += size

    def tell(self, tell: Callable[[int, int, int, int], None], now_s: float | None) -> None:
        """Tell what is due; all of it where `now_s` is None."""
        for rank in list(self._waiting):
            last_s = self._told_s.get(rank)
            if now_s is None or last_s is None or now_s - last_s >= TELL_EVERY_S:
                if now_s is not None:
                    self._told_s[rank] = now_s
                tell(rank, *self._waiting.pop(rank))

    def sum_up(self) -> list[tuple[int, int]]:
        """(rank, bytes) of all since the last sum."""
        sums, self._sums = self._sums, {}
        return sorted(sums.items())


def _log(rank: int) -> str:
    return f"{owner_in_words(rank)}'s log"


def _hold(path: Path, held_to: int) -> int:
    """Have blocks beyond a file's end; up to which byte."""
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        if size <= held_to - SMALL_RESERVE_BYTES // 2 and held_to <= size + SMALL_RESERVE_BYTES:
            return held_to
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            space.reserve(fd, size, SMALL_RESERVE_BYTES)
        finally:
            os.close(fd)
        return size + SMALL_RESERVE_BYTES
    return held_to


def _be_nice() -> None:
    """Let the archiving thread, and it alone, make way for the training."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
