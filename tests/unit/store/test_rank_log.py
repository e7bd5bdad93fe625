"""A log with a limit and a live writer, on disks with and without free space."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ddptop_runner.store import disk
from ddptop_runner.store.disk import RankLog, SteadyFile, trim
from ddptop_runner.store.log_clean import LineCleaner
from ddptop_runner.store.logs import BLOCK_BYTES, LogFile, last_lines, tail_bytes

LIMIT = 256 * 1024


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "attempt-0"
    folder.mkdir(parents=True)
    path = folder / "rank-0.log"
    path.write_bytes(b"x" * 2 * disk.BLOCK_BYTES)
    with path.open("rb+") as file:
        try:
            disk.punch(file.fileno(), 0, disk.BLOCK_BYTES)
        except OSError as error:
            pytest.skip(f"the file system cannot punch holes: {error}")
    path.write_bytes(b"")
    return path


def write_lines(log: Path, start: int, count: int) -> None:
    """Numbered lines."""
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(start, start + count))


def numbers(lines: list[str]) -> list[int]:
    """The numbers of such lines, each of which must be complete."""
    assert all(line.startswith("line ") for line in lines), [x for x in lines if x[:5] != "line "]
    return [int(line.split()[1]) for line in lines]


def whole(log: Path) -> list[str]:
    """The remaining lines, preceded by the note if some are missing."""
    cleaner, lines = LineCleaner(), []
    with LogFile(log) as file:
        while block := file.read(1 << 16):
            lines += cleaner.feed(block)
    return lines + cleaner.finish()


def allocated(log: Path) -> int:
    """Bytes that it uses on the disk."""
    return log.stat().st_blocks * 512


def test_log_beyond_its_limit_keeps_its_end_with_a_note(log):
    write_lines(log, 0, 100_000)
    size = log.stat().st_size
    dropped = RankLog(log, LIMIT).look(1.0)
    assert size - LIMIT < dropped < size - LIMIT // 2
    assert log.stat().st_size == size
    assert allocated(log) < LIMIT + 2 * disk.MIN_RESERVE_BYTES
    note, *rest = whole(log)
    assert note == "──── 836 KiB of earlier output dropped: log limit reached or disk full ────"
    kept = numbers(rest)
    assert kept == list(range(kept[0], 100_000)) and len(kept) > 20_000
    assert last_lines(log, 3) == ["line 99997", "line 99998", "line 99999"]
    for count in (1, 500, len(kept)):
        assert numbers(last_lines(log, count)) == kept[-count:]
    assert last_lines(log, len(kept) + 1) == [note, *rest]
    assert b"\0" not in tail_bytes(log, size)


def test_reader_in_the_dropped_start_continues_after_it(log):
    write_lines(log, 0, 60_000)
    with LogFile(log) as reader:
        before = reader.read(1000).decode()
        RankLog(log, LIMIT).look(1.0)
        note = reader.read(1 << 20).decode()
        after = reader.read(1 << 20).decode()
        write_lines(log, 60_000, 10)
        after += reader.read(1 << 20).decode()
    assert before.startswith("line 0\nline 1\n") and "of earlier output dropped" in note
    kept = numbers(after.splitlines())
    assert kept == list(range(kept[0], 60_010))


WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for start in range(0, int(sys.argv[2]), 200):
    lines = (b"line %d %s\\n" % (n, b"x" * (n % 80)) for n in range(start, start + 200))
    os.write(fd, b"".join(lines))
"""


def test_no_new_line_is_lost_or_doubled_under_a_writer_at_full_speed(log):
    count = 200_000  # 10 MB
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(log), str(count)])
    follower = LogFile(log)
    followed = bytearray()
    rank_log = RankLog(log, 1 << 20)
    now_s = dropped = 0
    with closing(follower):
        while writer.poll() is None:
            now_s += 1
            while data := follower.read(BLOCK_BYTES):
                followed += data
            dropped += rank_log.look(now_s)
        dropped += rank_log.look(now_s + 1)
        while data := follower.read(BLOCK_BYTES):
            followed += data
    assert writer.returncode == 0
    assert dropped > 5 << 20
    assert allocated(log) < (1 << 20) + disk.MAX_RESERVE_BYTES
    kept = numbers(whole(log)[1:])
    assert kept == list(range(kept[0], count))
    lines = followed.decode().splitlines()
    seen = numbers([line for line in lines if line.startswith("line ")])
    assert seen == sorted(set(seen)) and seen[-1] == count - 1
    notes = [line for line in lines if line.startswith("────")]
    if not notes:  # the follower kept up
        assert seen == list(range(count))


def test_a_log_that_was_cut_short_from_outside_is_limited_as_before(log):
    write_lines(log, 0, 50_000)
    rank_log = RankLog(log, LIMIT)
    assert rank_log.look(1.0)
    reader = LogFile(log)
    reader.position = reader.end
    os.truncate(log, 0)
    write_lines(log, 50_000, 5)
    assert numbers(reader.read(1 << 20).decode().splitlines()) == list(range(50_000, 50_005))
    reader.close()
    assert rank_log.look(2.0) == 0
    assert numbers(whole(log)) == list(range(50_000, 50_005))
    assert rank_log.reserved_bytes >= disk.MIN_RESERVE_BYTES
    write_lines(log, 50_005, 60_000)
    assert rank_log.look(3.0)
    assert whole(log)[-1] == "line 110004"


def fails_with(number: int) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_where_holes_cannot_be_punched_the_log_stays_whole(log, monkeypatch):
    monkeypatch.setattr(disk, "punch", fails_with(errno.EOPNOTSUPP))
    write_lines(log, 0, 100_000)
    rank_log = RankLog(log, LIMIT)
    assert rank_log.look(1.0) == 0
    assert not rank_log.can_punch
    assert numbers(whole(log)) == list(range(100_000))


def test_blocks_are_held_beyond_the_end_and_given_back(log):
    write_lines(log, 0, 10)
    size = log.stat().st_size
    rank_log = RankLog(log, LIMIT)
    rank_log.look(1.0)
    assert rank_log.reserved_bytes >= disk.MIN_RESERVE_BYTES
    assert allocated(log) >= disk.MIN_RESERVE_BYTES
    trim(log)
    assert allocated(log) <= 8192
    assert log.stat().st_size == size


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_a_log_gives_its_head_to_the_one_in_need(log, monkeypatch, number):
    short = log.with_name("rank-1.log")
    short.write_text("line 0\n")
    write_lines(log, 0, 100_000)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "reserve", fails_with(number))
        giver, taker = RankLog(log, 1 << 30), RankLog(short, 1 << 30)
        for rank_log in (giver, taker):
            assert rank_log.look(1.0) == 0
            assert rank_log.is_in_need
    dropped = giver.give_head(taker)
    assert dropped > 1 << 19
    assert taker.reserved_bytes >= dropped
    assert allocated(short) >= dropped
    assert short.read_text() == "line 0\n"
    kept = numbers(whole(log)[1:])
    assert kept == list(range(kept[0], 100_000))
    assert giver.live_bytes >= disk.LEAST_LEFT_BYTES


def test_a_snapshot_creates_its_deleted_folder_but_not_the_run_folder(tmp_path):
    run = tmp_path / "run"
    file = SteadyFile(run / "nodes" / "node.json")
    assert not file.write(b"{}") and not run.exists()
    run.mkdir()
    assert file.write(b"{}") and (run / "nodes").stat().st_mode & 0o777 == 0o700


def test_a_snapshot_is_replaced_in_place_on_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "node.json"
    file = SteadyFile(path)
    assert file.write(b"x" * 5000)
    assert allocated(path) >= disk.SPARE_BYTES
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_atomic", fails_with(errno.ENOSPC))
        before = path.stat().st_ino, allocated(path)
        assert file.write(b"y" * 50_000) and file.no_room
        assert path.read_bytes() == b"y" * 50_000
        assert file.write(b"[1]")
        assert path.read_bytes().rstrip(b"\n") == b"[1]"
        assert (path.stat().st_ino, allocated(path)) == before
    assert file.write(b"z") and not file.no_room
    file.close()
    assert path.read_bytes() == b"z" and allocated(path) <= 4096
