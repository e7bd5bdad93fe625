"""Writes a job's end, its history and last snapshot, even if the disk is full."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import msgspec

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.snapshot import Alert, NodeSnapshot, encode
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.store.upkeep.steady import SteadyFile

RETRY_FOR_S = 600.0
"""A job that ended is not seen to have before its last snapshot is written: that is worth waiting
for. The history's last figures are waited for a tenth of it."""
RETRY_S = 1.0


async def write_end(
    folder: RunFolder, snapshot: NodeSnapshot, history: HistoryWriter, file: SteadyFile
) -> None:
    """Close the history and write the last snapshot; returns when both are done or hopeless.

    Args:
        folder: the job's run folder.
        snapshot: the last one.
        history: still open.
        file: where the snapshot goes.
    """
    if not _is_written(history):  # that the job has ended is told first
        await _until_written(folder, file, snapshot)
        deadline_s = time.monotonic() + RETRY_FOR_S / 10
        while not _is_written(history) and time.monotonic() < deadline_s:
            if not folder.nodes_dir.is_dir():
                break
            await asyncio.sleep(RETRY_S)
    problem = history.problem
    history.close(final=True)
    _bring_home(folder)
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
        if not folder.nodes_dir.is_dir():  # deleted: nobody looks for the end
            return
        await asyncio.sleep(RETRY_S)


def _bring_home(folder: RunFolder) -> None:
    """The history into the run folder, from where it lived; without room it stays there."""
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
    """All of a history, also where a reader that does not leave keeps a part of it in its WAL.

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
