"""A history whose writer is another process: read meanwhile, killed, out of space, read-only."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.programs import captured, piped

from ddptop_runner.base.clock import utc_now
from ddptop_runner.model.snapshot import Event, RankSample
from ddptop_runner.store import history
from ddptop_runner.store.history import HistoryReader, HistoryWriter
from ddptop_runner.store.history_schema import RANK

START = 1_767_225_600

WRITER = """
import sys
from pathlib import Path
from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.model.snapshot import Event, RankSample

writer = HistoryWriter(Path(sys.argv[1]))
start, count, ending = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
for second in range(count):
    rank = RankSample(rank=0, local_rank=0, host="node", step=second, loss=float(second))
    writer.add(start + second, 0, [rank], [])
    if second % 10 == 0:
        event = Event(ts=utc_from_unix(start + second), type="checkpoint", message="saved")
        print(writer.event(event).seq, second, flush=True)
print("done", flush=True)
if ending == "wait":
    sys.stdin.read()
writer.close(final=True)
"""


def start_writer(path: Path, count: int, ending: str) -> subprocess.Popen[str]:
    return piped(sys.executable, "-c", WRITER, str(path), str(START), str(count), ending)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def is_wal(path: Path) -> bool:
    return path.read_bytes()[18:20] == b"\x02\x02"


def test_reader_sees_everything_a_live_writer_has_committed(path):
    with start_writer(path, 3000, "wait") as process:
        assert process.stdout is not None
        told, points = 0, 0
        reader = HistoryReader(path)
        for line in process.stdout:
            if line == "done\n":
                break
            told, second = map(int, line.split())
            events = reader.events()
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert len(events) >= told
            if told % 20 == 0:
                series = reader.series(RANK, "loss", 0, START + 10**6, 5000)[0]
                assert series.t == list(range(START, START + len(series.t)))
                assert len(series.t) >= max(points, second + 1)
                points = len(series.t)
        assert told == 300
        assert is_wal(path)
        process.communicate()
    assert process.returncode == 0
    assert not is_wal(path)
    assert list(path.parent.iterdir()) == [path]
    assert len(reader.series(RANK, "loss", 0, START + 10**6, 5000)[0].t) == 3000


def test_killed_writer_loses_nothing_it_reported_and_can_be_replaced(path):
    with start_writer(path, 10**9, "wait") as process:
        assert process.stdout is not None
        for line in process.stdout:
            told, second = map(int, line.split())
            if second >= 1500:
                break
        process.kill()
        last_words = [line for line in process.stdout.read().splitlines(True) if line[-1] == "\n"]
    assert process.returncode == -signal.SIGKILL
    if last_words:
        told, second = map(int, last_words[-1].split())

    reader = HistoryReader(path)
    events = reader.events()
    assert len(events) >= told
    span = reader.span()
    assert span is not None and span[1] >= START + second

    again = HistoryWriter(path)
    assert again.lost_history is None
    first_new = span[1] + 1
    for t in range(first_new, first_new + 700):
        rank = RankSample(rank=0, local_rank=0, host="node", loss=float(t - START))
        again.add(t, 0, [rank], [])
    assert again.event(events[0]).seq == len(events) + 1
    again.close(final=True)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (minutes,) = db.execute("SELECT count(*) FROM rank_60s").fetchone()
    db.close()
    assert minutes == (first_new + 699) // 60 - START // 60
    # every second of both runs is in its bucket, including the second of the kill
    series = reader.series(RANK, "loss", 0, first_new + 699, 5)[0]
    width = series.bucket_s
    assert series.min == [t - START for t in series.t]
    assert series.last == [*(t - START + width - 1 for t in series.t[:-1]), first_new + 699 - START]


DISK_FULL = """
import json, resource, sys
from pathlib import Path
from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.model.snapshot import Event, RankSample

def add(second):
    ranks = [RankSample(rank=r, local_rank=r, host="n", loss=second + r / 7) for r in range(8)]
    writer.add(start + second, 0, ranks, [])

writer, start = HistoryWriter(Path(sys.argv[1])), int(sys.argv[2])
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
for second in range(500):
    add(second)
event = writer.event(Event(ts=utc_from_unix(start), type="failure", message="disk full"))
full = [writer.problem, event.seq]
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
add(500)
print(json.dumps([full, writer.problem]))
writer.close(final=True)
"""


def test_a_full_disk_stops_nothing_and_what_waited_is_written_once_there_is_room(path):
    """A file size limit takes the place of a full disk."""
    asked = captured(sys.executable, "-c", DISK_FULL, str(path), str(START), check=True)
    full, afterwards = json.loads(asked.stdout)
    assert "history.db cannot be written" in full[0]
    assert full[1:] == [1]
    assert afterwards is None
    series = HistoryReader(path).series(RANK, "loss", 0, START + 1000, 1000)
    assert len(series) == 8 and all(len(one.t) == 501 for one in series.values())
    assert len(HistoryReader(path).events()) == 1


# --- a folder in which nothing may be written ------------------------------------------------

READ = """
import json, os, sys, urllib.parse  # which pathlib imports only when it needs it
from pathlib import Path
from ddptop_runner.store.history import HistoryReader
from ddptop_runner.store.history_schema import RANK
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)  # root may write anywhere
path = Path(sys.argv[1])
assert not os.access(path.parent, os.W_OK)
reader = HistoryReader(path)
print(json.dumps([reader.span(), reader.series(RANK, "loss", 0, 2**31, 1000)[0].last]))
"""


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A folder that every user can reach; the test removes its write permission."""
    folder = Path(tempfile.mkdtemp(prefix="ddptop-sealed-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def read_in(folder: Path) -> list[object]:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    asked = captured(sys.executable, "-c", READ, str(folder / "history.db"))
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)


def write_three(path: Path) -> HistoryWriter:
    writer = HistoryWriter(path)
    for second in range(3):
        rank = RankSample(rank=0, local_rank=0, host="node", loss=float(second))
        writer.add(START + second, 0, [rank], [])
    return writer


def test_an_ended_job_reads_where_nothing_may_be_written(sealed):
    write_three(sealed / "history.db").close(final=True)
    assert [file.name for file in sealed.iterdir()] == ["history.db"]
    assert read_in(sealed) == [[START, START + 2], [0.0, 1.0, 2.0]]


# --- two at one file -------------------------------------------------------------------------


def test_open_reader_keeps_wal_mode_and_the_writer_reports_it(path, monkeypatch):
    monkeypatch.setattr(history, "FINAL_TIMEOUT_S", 0.1)
    writer = write_three(path)
    other = sqlite3.connect(path)
    other.execute("BEGIN")
    other.execute("SELECT * FROM meta").fetchall()
    writer.close(final=True)
    assert writer.problem is not None and "out of WAL mode" in writer.problem
    other.close()
    assert HistoryReader(path).span() == (START, START + 2)


@pytest.mark.parametrize("harm", ["garbage", "truncated", "empty", "deleted"])
def test_harm_done_to_the_file_is_seen_without_writing(tmp_path, harm):
    writer = HistoryWriter(tmp_path / "history.db")
    writer.event(Event(ts=utc_now(), type="alert", message="before"))
    writer.check()
    assert writer.lost_history is None
    for name in ("history.db", "history.db-wal"):
        file = tmp_path / name
        if harm == "deleted":
            file.unlink()
        else:
            size = file.stat().st_size
            kept = {"garbage": size, "truncated": size // 2 + 100, "empty": 0}[harm]
            file.write_bytes((b"\xa5" * size)[:kept])
    writer.check()
    writer.event(Event(ts=utc_now(), type="alert", message="after"))
    assert writer.lost_history is not None
    assert ("deleted" if harm == "deleted" else "damaged-1") in writer.lost_history
    assert [e.message for e in HistoryReader(tmp_path / "history.db").events()] == ["after"]
    writer.close(final=True)
