"""A log with a limit: archived under a live writer, read as one run of bytes, losing no line."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.runner.upkeep.rank_logs import (
    LIMIT,
    allocated,
    numbers,
    settle,
    shorten,
    whole,
    write_lines,
)

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.store import log_follow, log_index
from ddptop_runner.store.log_index import read_index
from ddptop_runner.store.log_ranges import LogFile
from ddptop_runner.store.logs import last_lines, tail_lines
from ddptop_runner.store.upkeep.log_archive import LogHead
from ddptop_runner.store.upkeep.rank_log import RankLog


def test_the_head_of_a_log_beyond_its_limit_moves_into_archives(log, worker):
    write_lines(log, 0, 100_000)
    size = log.stat().st_size
    assert shorten(log, worker)[0] == "archived"
    assert log.stat().st_size == size
    assert allocated(log) < LIMIT + 2 * (1 << 20)  # and what is held in reserve
    assert numbers(whole(log)) == list(range(100_000))
    assert last_lines(log, 3) == ["line 99997", "line 99998", "line 99999"]
    for count in (1, 500, 30_000, 99_999, 100_000, 200_000):
        assert numbers(last_lines(log, count)) == list(range(max(0, 100_000 - count), 100_000))


def test_a_short_log_is_left_alone(log, worker):
    write_lines(log, 0, 1000)
    assert shorten(log, worker) == []
    assert not log_index.index_file(log).exists()


def test_every_count_of_last_lines_is_exact_over_several_archives_and_an_unfinished_line(log):
    head = LogHead(log)
    for start in range(0, 40, 10):
        write_lines(log, start, 10)
        head.archive(head.size())
    write_lines(log, 40, 3)
    with log.open("a") as file:
        file.write("line 43")
    for count in range(46):
        shown = numbers(list(tail_lines(log, count)))
        assert shown == list(range(max(0, 44 - count), 44)), count


def test_a_follower_at_the_start_reads_on_while_the_head_is_archived_under_it(log):
    head = LogHead(log)
    write_lines(log, 0, 60_000)
    with LogFile(log) as reader:
        data = reader.read(1000)
        head.archive(head.line_end(head.size() - 1000))
        head.free()
        data += reader.read(1 << 20)
        write_lines(log, 60_000, 10)
        data += reader.read(1 << 20)
    assert numbers(data.decode()) == list(range(60_010))


WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for start in range(0, int(sys.argv[2]), 200):
    lines = (b"line %d %s\\n" % (n, b"x" * (n % 80)) for n in range(start, start + 200))
    os.write(fd, b"".join(lines))
"""


def test_no_line_is_lost_or_doubled_under_a_writer_at_full_speed(log, worker):
    count = 200_000  # 10 MB
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(log), str(count)])
    follower = log_follow.ByteFollower(RunFolder(log.parents[2]), [0], 0, tail=10**9)
    followed = bytearray()
    rank_log = RankLog(log, 0, 1 << 20, worker)
    now_s = 0.0
    with closing(follower):
        while writer.poll() is None:
            now_s += 1.0
            rank_log.look(now_s)
            for chunk in follower.poll():
                followed += chunk.data
        settle(rank_log, now_s)
        while chunks := follower.poll():
            followed += b"".join(chunk.data for chunk in chunks)
    rank_log.close()
    assert writer.returncode == 0
    pieces = read_index(log).pieces
    assert len(pieces) > 2
    assert all(piece.archive for piece in pieces)
    assert numbers(whole(log)) == list(range(count))
    assert numbers(followed.decode()) == list(range(count))


class TestACrash:
    def test_an_archive_whose_index_cannot_be_written_is_none(self, log, monkeypatch):
        write_lines(log, 0, 50_000)
        head = LogHead(log)
        monkeypatch.setattr(head, "save", crash)
        with pytest.raises(KeyboardInterrupt):
            head.archive(head.line_end(200_000))
        assert log_index.archives(log) == {}
        self._goes_on(log)

    def test_after_the_rename_of_the_archive(self, log):
        write_lines(log, 0, 50_000)
        head = LogHead(log)
        head.archive(head.line_end(200_000))
        before = log_index.index_file(log).read_bytes()
        head.archive(head.line_end(400_000))
        # the second archive is there, its index and its hole are not
        content = whole(log).encode()
        log.write_bytes(content)
        log_index.index_file(log).write_bytes(before)
        self._goes_on(log)
        assert len(read_index(log).pieces) == 2

    def test_between_index_and_hole(self, log):
        write_lines(log, 0, 50_000)
        head = LogHead(log)
        head.archive(head.line_end(400_000))
        full = allocated(log)
        self._goes_on(log)
        assert allocated(log) <= full - 390_000

    def _goes_on(self, log: Path) -> None:
        assert numbers(whole(log)) == list(range(50_000))
        assert LogHead(log).recover() is None
        assert numbers(whole(log)) == list(range(50_000))


def crash(*_: object) -> None:
    raise KeyboardInterrupt
