"""The keeper reports problems with the disk and the history, and what was lost."""

from __future__ import annotations

import datetime as dt
import errno
import os
import sqlite3
from collections.abc import Iterator

import pytest
from tests.support.builders import make_spec

from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.node.keeper import RunFolderKeeper
from ddptop_runner.store import disk
from ddptop_runner.store import history as history_module
from ddptop_runner.store.disk import DiskRoom, SteadyFile
from ddptop_runner.store.history import HistoryReader, HistoryWriter

START = 1_767_225_600
GIB = 1 << 30


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.log_file(0, 0).parent.mkdir(parents=True)
    folder.log_file(0, 0).write_text("line\n")
    folder.supervisor_log.touch()
    return folder


@pytest.fixture
def history(folder) -> Iterator[HistoryWriter]:
    writer = HistoryWriter(folder.history_db)
    yield writer
    writer.close()


@pytest.fixture
def keeper(folder, history) -> Iterator[RunFolderKeeper]:
    spec = JobSpec(
        **{
            "job": "j",
            "job_id": "j@1",
            "host": "h",
            "created_at": dt.datetime.now(dt.timezone.utc),
        },
        **{"kind": "script", "target": "t.py", "python": "python3", "cwd": "/", "nproc": 1},
    )
    keeper = RunFolderKeeper(
        folder, spec, EventLog(history, lambda _: None), history, snapshot_file(folder)
    )
    yield keeper
    keeper.close()


def snapshot_file(folder: RunFolder) -> SteadyFile:
    return SteadyFile(folder.path / "node.json")


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("free", "total", "low"),
    [
        (GIB - 1, 1000 * GIB, True),
        (GIB, 1000 * GIB, False),
        (1 << 20, 16 << 20, False),
        (1 << 19, 16 << 20, True),
    ],
)
def test_when_a_disk_is_nearly_full(free, total, low):
    assert DiskRoom(free, total).is_low == low


def test_a_gap_in_the_history_is_named_once_the_disk_has_space(
    keeper, history, folder, monkeypatch
):
    assert keeper.look(0, 1.0) == []
    assert (folder.path / "reserve").stat().st_size == 2 << 20
    rank = RankSample(rank=0, local_rank=0, host="h")
    with monkeypatch.context() as patch:
        patch.setattr(history_module, "MAX_PENDING_ROWS", 3)
        patch.setattr(disk, "reserve", full)
        patch.setattr(
            HistoryWriter, "_write", lambda *_: raise_(sqlite3.OperationalError("disk is full"))
        )
        for second in range(60):
            history.add(START + second, 0, [rank], [])
        (found,) = keeper.look(0, 20.0)
        assert (found.id, found.severity) == ("disk-full", "error")
        assert not (folder.path / "reserve").exists()
    history.add(START + 60, 0, [rank], [])
    # the space may be only what was released from the reserve, and be gone at the next check
    assert [finding.id for finding in keeper.look(0, 30.0)] == ["disk-full"]
    with monkeypatch.context() as patch:
        patch.setattr(
            HistoryWriter, "_write", lambda *_: raise_(sqlite3.OperationalError("disk is full"))
        )
        history.add(START + 61, 0, [rank], [])
        assert [finding.id for finding in keeper.look(0, 31.0)] == ["disk-full"]
    history.add(START + 62, 0, [rank], [])
    assert [finding.id for finding in keeper.look(0, 32.0)] == ["disk-full"]
    assert [finding.id for finding in keeper.look(0, 34.0)] == ["disk-full"]
    assert not any("again" in event.message for event in HistoryReader(folder.history_db).events())
    assert keeper.look(0, 35.0) == []
    assert (folder.path / "reserve").stat().st_size == 2 << 20
    told = HistoryReader(folder.history_db).events()[-1].message
    begin = dt.datetime.fromtimestamp(START).astimezone()
    assert "the disk has space again; it was full from " in told
    assert "no log lines were lost" in told
    assert f"no history from {begin:%H:%M:%S} to " in told


def test_a_commands_one_log_is_kept_within_its_limit_and_called_the_launchers(history, folder):
    spec = make_spec(kind="command", nproc=0, log_limit_bytes=64 * 1024)
    log = folder.log_file(0, LAUNCHER)
    log.write_bytes(b"[1,0]<stdout>:step\n" * 20_000)
    keeper = RunFolderKeeper(
        folder, spec, EventLog(history, lambda _: None), history, snapshot_file(folder)
    )
    assert keeper.look(0, 1.0) == []
    log.write_bytes(log.read_bytes() * 2)
    keeper.look(0, 2.0)
    events = [event.message for event in HistoryReader(folder.history_db).events()]
    assert events == ["log limit reached: dropped the oldest 312 KiB of the launcher's log"]
    keeper.close()


def test_the_next_attempts_logs_hold_blocks_until_the_job_ends(keeper, folder):
    keeper.look(0, 1.0)
    ready = folder.logs_dir / ".next" / "rank-0.log"
    assert ready.stat().st_size == 0
    assert ready.stat().st_blocks * 512 >= disk.MIN_RESERVE_BYTES
    keeper.close()
    assert not ready.parent.exists()


def raise_(error: Exception) -> None:
    raise error
