"""A rank's log and its archives after trouble: files gone, cut or damaged, and no room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

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

from ddptop_runner.store import log_index
from ddptop_runner.store.log_index import LogIndex, LogPiece, read_index
from ddptop_runner.store.log_ranges import LogFile
from ddptop_runner.store.logs import last_lines, tail_lines
from ddptop_runner.store.upkeep import space
from ddptop_runner.store.upkeep.log_archive import LogHead
from ddptop_runner.store.upkeep.rank_log import RankLog


class TestWhatIsGone:
    def test_the_oldest_archives_go_when_all_take_too_much_and_a_line_says_so(self, log, worker):
        for start in range(0, 100_000, 1000):  # hard to compress
            with log.open("ab") as file:
                for number in range(start, start + 1000):
                    file.write(b"line %d %s\n" % (number, os.urandom(16).hex().encode()))
        rank_log = RankLog(log, 0, 64 * 1024, worker)
        settle(rank_log)
        rank_log.close()
        assert "dropped" in [news.kind for news in rank_log.news]
        index = read_index(log)
        assert index.pieces[0].reason == "ceiling"
        assert len([piece for piece in index.pieces if piece.archive is None]) == 1
        kept = sum(path.stat().st_size for path in log_index.archives(log).values())
        assert kept <= 4 * 64 * 1024
        assert len(log_index.archives(log)) == len(index.pieces) - 1
        first, *rest = whole(log).splitlines()
        assert first.startswith("──── ")
        assert "dropped: log limit reached" in first
        shown = numbers(rest)
        assert shown == list(range(shown[0], 100_000))

    @pytest.mark.parametrize("count", range(1, 8))
    def test_the_line_for_a_gap_counts_as_one(self, log, count):
        head = LogHead(log)
        write_lines(log, 0, 2)
        head.archive(head.size())
        write_lines(log, 2, 1000)
        head.give_up(head.size())
        write_lines(log, 1002, 3)
        shown = ["line 0", "line 1", "gap", "line 1002", "line 1003", "line 1004"]
        lines = ["gap" if "dropped" in line else line for line in tail_lines(log, count)]
        assert lines == shown[-count:]

    def test_a_gap_at_the_end(self, log):
        head = LogHead(log)
        write_lines(log, 0, 2)
        head.archive(head.size())
        write_lines(log, 2, 1000)
        head.give_up(head.size())
        assert "dropped: disk full" in last_lines(log, 1)[0]
        assert last_lines(log, 2)[0] == "line 1"

    def test_a_hole_that_no_index_names_shows_no_zeros(self, log):
        write_lines(log, 0, 10_000)
        with log.open("rb+") as file:
            space.punch(file.fileno(), 0, 8192)
        text = whole(log)
        assert "\0" not in text
        first, *rest = text.splitlines()
        assert "dropped: disk full" in first
        assert numbers(rest[1:])[-1] == 9999
        head = LogHead(log)
        head.recover()
        (gap,) = read_index(log).pieces
        assert (gap.from_byte, gap.to_byte, gap.reason) == (0, 8192, "disk full")
        assert whole(log) == text

    def test_zeros_that_the_program_wrote_are_kept(self, log):
        log.write_bytes(b"\0" * 10_000 + b"\n")
        assert whole(log) == "\0" * 10_000 + "\n"

    def test_an_archive_that_was_deleted_or_damaged(self, log):
        head = LogHead(log)
        for start in range(0, 30, 10):
            write_lines(log, start, 10)
            head.archive(head.size())
        write_lines(log, 30, 1)
        first, second, _ = log_index.archives(log).values()
        first.unlink()
        second.write_bytes(second.read_bytes()[:20])
        lines = whole(log).splitlines()
        assert [line for line in lines if "no longer readable" in line] == lines[:2]
        assert numbers(lines[2:]) == list(range(20, 31))
        assert numbers(last_lines(log, 11)) == list(range(20, 31))
        assert "no longer readable" in last_lines(log, 12)[0]


class TestADamagedIndex:
    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"pieces": [{"from_byte": 5}]}'])
    def test_is_set_aside_and_made_anew_from_the_archives(self, log, content):
        head = LogHead(log)
        for start in range(0, 30, 10):
            write_lines(log, start, 10)
            head.archive(head.size())
        write_lines(log, 30, 1)
        log_index.index_file(log).write_bytes(content)
        assert numbers(whole(log)) == list(range(31))
        again = LogHead(log)
        assert "rank-0.log.index.json was damaged" in (again.recover() or "")
        assert log.with_name("rank-0.log.index.json.damaged-1").read_bytes() == content
        assert again.index.pieces == head.index.pieces
        assert numbers(whole(log)) == list(range(31))

    def test_an_index_that_was_deleted(self, log):
        head = LogHead(log)
        write_lines(log, 0, 10_000)
        head.archive(head.line_end(50_000))
        log_index.index_file(log).unlink()
        assert LogHead(log).recover() is None
        assert numbers(whole(log)) == list(range(10_000))


class TestCutShortFromOutside:
    def test_copytruncate_costs_nothing_that_is_archived(self, log, worker):
        write_lines(log, 0, 50_000)
        rank_log = RankLog(log, 0, LIMIT, worker)
        now_s = settle(rank_log)
        archived = read_index(log).live_from
        reader = LogFile(log)
        reader.seek(reader.end)
        os.truncate(log, 0)
        write_lines(log, 50_000, 5)
        assert numbers(reader.read(1 << 20).decode()) == list(range(50_000, 50_005))
        settle(rank_log, now_s)
        assert "cut" in [news.kind for news in rank_log.news]
        write_lines(log, 50_005, 5)
        assert numbers(reader.read(1 << 20).decode()) == list(range(50_005, 50_010))
        reader.close()
        lines = whole(log).splitlines()
        (gap,) = [line for line in lines if "truncated by another process" in line]
        shown = numbers([line for line in lines if line != gap])
        assert shown[-10:] == list(range(50_000, 50_010))
        assert shown[:-10] == list(range(len(shown) - 10))
        assert read_index(log).pieces[-1].from_byte == archived
        write_lines(log, 50_010, 100_000)  # and the limit holds as before
        settle(rank_log, now_s)
        rank_log.close()
        assert len(read_index(log).pieces) > 2
        assert whole(log).splitlines()[-1] == "line 150009"

    def test_cut_and_grown_beyond_the_hole_between_two_looks(self, log, worker):
        write_lines(log, 0, 50_000)
        rank_log = RankLog(log, 0, LIMIT, worker)
        now_s = settle(rank_log)
        os.truncate(log, 0)
        write_lines(log, 50_000, 60_000)
        settle(rank_log, now_s)
        rank_log.close()
        assert whole(log).splitlines()[-1] == "line 109999"
        assert numbers(last_lines(log, 60_000)) == list(range(50_000, 110_000))

    def test_a_log_without_archives(self, log, worker):
        write_lines(log, 0, 100)
        rank_log = RankLog(log, 0, LIMIT, worker)
        rank_log.look(1.0)
        os.truncate(log, 0)
        write_lines(log, 100, 3)
        rank_log.look(2.0)
        rank_log.close()
        assert rank_log.news == []
        assert numbers(whole(log)) == [100, 101, 102]


def fails_with(number: int) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_where_holes_cannot_be_punched_nothing_is_done_but_said(log, worker, monkeypatch):
    monkeypatch.setattr(space, "punch", fails_with(errno.EOPNOTSUPP))
    write_lines(log, 0, 100_000)
    assert shorten(log, worker) == ["unpunchable"]
    assert log_index.archives(log) == {}
    assert numbers(whole(log)) == list(range(100_000))


class TestTheReserve:
    def test_blocks_are_held_beyond_the_end_and_given_back(self, log, worker):
        from ddptop_runner.store.upkeep.rank_log import trim

        write_lines(log, 0, 10)
        rank_log = RankLog(log, 0, LIMIT, worker)
        rank_log.look(1.0)
        rank_log.close()
        size = log.stat().st_size
        assert rank_log.reserved_bytes >= 1 << 20
        assert allocated(log) >= 1 << 20
        trim(log)
        assert allocated(log) <= 8192
        assert log.stat().st_size == size

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_a_log_that_gets_no_more_blocks_gives_up_its_head(
        self, log, worker, monkeypatch, number
    ):
        write_lines(log, 0, 50_000)
        rank_log = RankLog(log, 0, 1 << 30, worker)
        monkeypatch.setattr(space, "reserve", fails_with(number))
        monkeypatch.setattr(LogHead, "_copy", fails_with(number))
        rank_log.look(1.0)
        assert rank_log.lacks_room
        rank_log._job.exception()
        rank_log.close()
        (news,) = rank_log.news
        assert (news.kind, news.from_byte) == ("given up", 0)
        first, *rest = whole(log).splitlines()
        assert "disk full" in first
        assert numbers(rest)[-1] == 49_999

    def test_a_log_is_archived_rather_than_given_up(self, log, worker, monkeypatch):
        write_lines(log, 0, 50_000)
        rank_log = RankLog(log, 0, 1 << 30, worker)
        monkeypatch.setattr(space, "reserve", fails_with(errno.ENOSPC))
        rank_log.look(1.0)
        rank_log._job.exception()
        rank_log.close()
        assert [news.kind for news in rank_log.news] == ["archived"]
        assert numbers(whole(log)) == list(range(50_000))


def test_an_index_with_overlapping_pieces_is_damaged():
    pieces = [LogPiece(from_byte=0, to_byte=10), LogPiece(from_byte=5, to_byte=20)]
    import msgspec

    assert log_index.decode_index(msgspec.json.encode(LogIndex(pieces=pieces))) is None
