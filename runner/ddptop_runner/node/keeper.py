"""Checks a live job's run folder once a second: log sizes, disk space, damaged files."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import msgspec

from ddptop_runner.base import units
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import LAUNCHER, RunFolder, owner_in_words, owner_name
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.model.events import Noticed
from ddptop_runner.model.snapshot import Alert, NodeSnapshot, encode
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store import logs
from ddptop_runner.store.disk import (
    DEFAULT_LIMIT_BYTES,
    LOOK_EVERY_S,
    NEW_LOOK_S,
    RankLog,
    Reserve,
    SteadyFile,
    room,
    trim,
)
from ddptop_runner.store.history import HistoryWriter

RESERVE_BYTES = 2 << 20
"""Reserved for the logs and the job's end, in case the disk becomes full."""
NEXT_ATTEMPT = ".next"
"""Name of the next attempt's log folder; see `agent.run`."""
CHECK_EVERY_S = 10.0
"""Interval for checking that the history can be read."""
ROOM_FOR_S = 3.0
"""A full disk has space again once all reserves have been held for this long."""
RETRY_FOR_S = 600.0
"""Viewers only see a job's end once its last snapshot is written, so that is worth a wait. The
wait for the history's last figures is a tenth of it."""
RETRY_S = 1.0
OWN_LOG = -2
"""The supervisor's log, in place of a rank's number."""


class RunFolderKeeper:
    """Keeps logs within their limit, and keeps a full disk from ending the training.

    Args:
        folder: the job's run folder.
        spec: the job.
        story: records dropped data.
        history: the job's history.
        snapshot_file: the job's snapshot.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: JobSpec,
        story: EventLog,
        history: HistoryWriter,
        snapshot_file: SteadyFile,
    ) -> None:
        self._folder = folder
        self._limit = spec.log_limit_bytes or DEFAULT_LIMIT_BYTES
        self._story = story
        self._history = history
        self._snapshot_file = snapshot_file
        self._reserve = Reserve(folder.path / "reserve", RESERVE_BYTES)
        self._owners = [LAUNCHER] if spec.is_command else list(range(spec.nproc))
        """The ranks with logs in an attempt."""
        self._is_next_ready = False
        self._attempt: int | None = None
        self._logs: dict[int, RankLog] = {}
        self._reported: set[tuple[int, str]] = set()
        """Dropped heads of this attempt's logs, by log and reason: only the first is an event."""
        self._lost: dict[int, int] = {}
        """Bytes lost since the disk became full, by log."""
        self._full_since: dt.datetime | None = None
        self._room_since: tuple[float, dt.datetime] | None = None
        self._damaged: list[str] = []
        self._lost_history: str | None = None
        self._checked_history_s = 0.0

    def look(self, attempt: int, now_s: float) -> list[Finding]:
        """Do what is due and return findings for the user; takes well under a millisecond."""
        self.hold_logs(attempt, now_s)
        self._prepare_next_attempt()
        findings = [*self._room_findings(now_s), *self._history_findings(now_s)]
        return [*findings, *self._damage_findings()]

    def hold_logs(self, attempt: int, now_s: float) -> float:
        """Keep blocks reserved for each log; returns the seconds until this is due again."""
        self._track(attempt)
        for owner, log in sorted(self._logs.items(), key=lambda item: item[1].growth):
            try:
                self._note_drop(owner, "log limit reached", log.look(now_s))
                if log.is_in_need:
                    self._make_room(log)
            except OSError:  # the file is gone
                self._logs.pop(owner)
        is_new = self._logs.keys() <= {OWN_LOG}
        least_s = NEW_LOOK_S if is_new else LOOK_EVERY_S
        return min((log.next_look_s for log in self._logs.values()), default=least_s)

    def close(self) -> None:
        """Release all reserves, so that the end of the job can be written."""
        if self._full_since is not None:
            self._space_is_back(still_full=True)
        for attempt in logs.attempts(self._folder):
            for rank in logs.ranks(self._folder, attempt):
                trim(self._folder.log_file(attempt, rank))
        trim(self._folder.supervisor_log)
        shutil.rmtree(self._folder.logs_dir / NEXT_ATTEMPT, ignore_errors=True)
        self._reserve.release()
        self._history.flush()  # before others take the space

    # -- logs ------------------------------------------------------------------------------------

    def _track(self, attempt: int) -> None:
        if attempt != self._attempt:
            self._reported.clear()
            self._attempt = attempt
            self._logs = {OWN_LOG: RankLog(self._folder.supervisor_log, self._limit)}
        for rank in logs.ranks(self._folder, attempt):
            if rank not in self._logs:
                self._logs[rank] = RankLog(self._folder.log_file(attempt, rank), self._limit)

    def _make_room(self, log: RankLog) -> None:
        """Free blocks for a log whose rank would otherwise fail.

        Takes the reserve first, then the head of the longest log, which probably filled the disk.
        Blocks freed from a short log might be taken by others before the log gets them back.
        """
        self._reserve.release()
        log.hold()
        if not log.is_in_need:
            return
        owner, giver = max(self._logs.items(), key=lambda item: item[1].live_bytes)
        if giver.live_bytes <= 2 * log.live_bytes:
            owner, giver = next(item for item in self._logs.items() if item[1] is log)
        self._note_drop(owner, "disk full", giver.give_head(log))

    def _prepare_next_attempt(self) -> None:
        """Create logs with reserved blocks, so that the next attempt can print on a full disk."""
        folder = self._folder.logs_dir / NEXT_ATTEMPT
        if self._is_next_ready and folder.is_dir():
            return
        self._is_next_ready = False
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            lacks_room = False
            for owner in self._owners:
                log = RankLog(folder / f"{owner_name(owner)}.log", self._limit)
                log.path.touch(mode=0o600)
                log.hold()
                lacks_room = lacks_room or log.lacks_room
            self._is_next_ready = not lacks_room

    def _note_drop(self, owner: int, reason: str, size: int) -> None:
        if size and reason == "disk full":
            self._lost[owner] = self._lost.get(owner, 0) + size
        if size and (owner, reason) not in self._reported:
            self._reported.add((owner, reason))
            self._report(f"{reason}: dropped the oldest {units.size(size)} of {_log(owner)}")

    def _report(self, message: str) -> None:
        self._story.emit(Noticed(attempt=self._attempt, text=message))

    def _damage_findings(self) -> list[Finding]:
        if not self._damaged:
            return []
        return [Finding("damaged-file", "warning", "; ".join(self._damaged), has_event=True)]

    # -- the disk --------------------------------------------------------------------------------

    def _room_findings(self, now_s: float) -> list[Finding]:
        is_full = any(log.lacks_room for log in self._logs.values())
        is_full = is_full or self._snapshot_file.no_room or "full" in (self._history.problem or "")
        if is_full:
            self._room_since = None
            self._full_since = self._full_since or utc_now()
            self._reserve.release()
        elif not self._reserve.take():
            self._room_since = None
        elif self._full_since is not None:
            # the only free space may be what the reserve released
            self._room_since = self._room_since or (now_s, utc_now())
            if now_s - self._room_since[0] >= ROOM_FOR_S:
                self._space_is_back()
        free = room(self._folder.path)
        left = "n/a" if free is None else units.size(free.free_bytes)
        if self._full_since is not None:
            since = f"{self._full_since.astimezone():%H:%M:%S}"
            message = (
                f"the run folder's disk has been full since {since} ({left} free): the job"
                " keeps running, logs drop their oldest lines, and metrics are kept in memory; free"
                " some space"
            )
            return [Finding("disk-full", "error", message)]
        if free is not None and free.is_low:
            message = f"the run folder's disk is nearly full: {left} free"
            return [Finding("disk-low", "warning", message, hold_s=3.0)]
        return []

    def _space_is_back(self, *, still_full: bool = False) -> None:
        assert self._full_since is not None  # checked by the caller
        back = utc_now() if self._room_since is None else self._room_since[1]
        since, until = self._full_since.astimezone(), back.astimezone()
        self._full_since = self._room_since = None
        what = "the job ended with the disk full" if still_full else "the disk has space again"
        parts = [f"{what}; it was full from {since:%H:%M:%S} to {until:%H:%M:%S}"]
        self._reported = {one for one in self._reported if one[1] != "disk full"}
        lost = sorted(self._lost.items())
        parts += [f"lost {units.size(size)} from {_log(owner)}" for owner, size in lost]
        if not lost:
            parts.append("no log lines were lost")
        self._lost.clear()
        gap = self._history_gap()
        if gap is None and not self._history.problem:
            gap = "no history was lost"
        self._report("; ".join(filter(None, [*parts, gap])))

    def _history_gap(self) -> str | None:
        gap = self._history.take_gap()
        if gap is None:
            return None
        begin, end = (dt.datetime.fromtimestamp(t).astimezone() for t in gap)
        return f"no history from {begin:%H:%M:%S} to {end:%H:%M:%S}"

    # -- the history -----------------------------------------------------------------------------

    def _history_findings(self, now_s: float) -> list[Finding]:
        history = self._history
        if now_s - self._checked_history_s >= CHECK_EVERY_S:
            self._checked_history_s = now_s
            history.check()
        if history.lost_history is not None and history.lost_history != self._lost_history:
            self._lost_history = history.lost_history
            words = f"{history.lost_history}; started a new history without the earlier data"
            self._damaged.append(words)
            self._report(words)
        is_whole = history.problem is None and self._full_since is None
        if is_whole and (gap := self._history_gap()) is not None:
            self._report(gap)
        if history.problem is None or self._full_since is not None:
            return []
        return [
            Finding(
                "history",
                "error",
                f"{history.problem}; metrics are being kept in memory",
                hold_s=10.0,
            )
        ]


def _log(owner: int) -> str:
    return "the supervisor's log" if owner == OWN_LOG else f"{owner_in_words(owner)}'s log"


# -- the job's end ---------------------------------------------------------------------------------


async def write_end(
    folder: RunFolder, snapshot: NodeSnapshot, history: HistoryWriter, file: SteadyFile
) -> None:
    """Close the history and write the last snapshot; returns when both are done or hopeless.

    Args:
        folder: the job's run folder.
        snapshot: the last snapshot.
        history: the open history.
        file: the snapshot's file.
    """
    if not _is_written(history):  # the last snapshot comes first, because it shows the end
        await _until_written(folder, file, snapshot)
        deadline_s = time.monotonic() + RETRY_FOR_S / 10
        while not _is_written(history) and time.monotonic() < deadline_s:
            if not folder.nodes_dir.is_dir():
                break
            await asyncio.sleep(RETRY_S)
    problem = history.problem
    history.close(final=True)
    bring_home(folder)
    if problem is not None:
        message = f"{problem}; the last metrics and events were not saved"
        alert = Alert(id="history", severity="error", message=message, since=utc_now())
        snapshot = msgspec.structs.replace(snapshot, alerts=[*snapshot.alerts, alert])
        sys.stderr.write(f"ddptop: {message}\n")
    await _until_written(folder, file, snapshot)
    file.close()


def _is_written(history: HistoryWriter) -> bool:
    history.flush()
    return history.problem is None


async def _until_written(folder: RunFolder, file: SteadyFile, snapshot: NodeSnapshot) -> None:
    deadline_s = time.monotonic() + RETRY_FOR_S
    while not file.write(encode(snapshot)) and time.monotonic() < deadline_s:
        if not folder.nodes_dir.is_dir():  # deleted, so no reader can find the end
            return
        await asyncio.sleep(RETRY_S)


def bring_home(folder: RunFolder) -> None:
    """Move the history to the run folder; without enough space, it stays where it is."""
    if folder.live_dir == folder.path:
        return
    target = folder.path / "history.db"
    try:
        _copy(folder.live_dir / "history.db", target)
    except (OSError, sqlite3.Error):
        with contextlib.suppress(OSError):
            target.unlink()
        return
    shutil.rmtree(folder.live_dir, ignore_errors=True)
    folder.local_pointer.unlink(missing_ok=True)


def _copy(history: Path, target: Path) -> None:
    """Copy an entire history, even if a lingering reader keeps a part of it in the WAL.

    Raises:
        OSError: it cannot be read or written.
        sqlite3.Error: the same.
    """
    if not history.with_name(f"{history.name}-wal").exists():
        shutil.copy2(history, target)
        return
    target.unlink(missing_ok=True)
    source = sqlite3.connect(f"{history.as_uri()}?mode=ro", uri=True)
    with contextlib.closing(source), contextlib.closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
