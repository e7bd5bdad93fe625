"""A history's file: missing, old, of a later version, damaged, or locked; and its size."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.support.histories import START, event, rank, write_losses

from ddptop_runner.base.errors import DamagedFileError
from ddptop_runner.store.history import HistoryReader, HistoryWriter
from ddptop_runner.store.history_schema import GPU, RANK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


# --- nothing there, and old files ------------------------------------------------------------


# --- size ------------------------------------------------------------------------------------


# --- trouble ---------------------------------------------------------------------------------


def test_other_schema_is_not_modified(path):
    HistoryWriter(path).close(final=True)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    db.close()
    content = path.read_bytes()
    for use in (HistoryWriter, lambda p: HistoryReader(p).span()):
        with pytest.raises(DamagedFileError, match=r"schema 99; .*; use that version"):
            use(path)
    assert path.read_bytes() == content


def test_a_file_that_is_no_history_is_set_aside(path):
    for number in (1, 2):
        content = b"not a database, for sure" * 100 * number
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"history\.db is not a valid history"):
            HistoryReader(path).events()
        writer = HistoryWriter(path)
        assert path.with_name(f"history.db.damaged-{number}").read_bytes() == content
        assert writer.event(event()).seq == 1
        writer.close(final=True)
        assert writer.problem is None
        assert len(HistoryReader(path).events()) == 1


def test_damage_found_while_opening_or_writing_costs_no_sample_of_now(path):
    write_losses(path, dict.fromkeys(range(1000), 1.0))
    content = bytearray(path.read_bytes())
    for page in range(4096, len(content), 4096):  # every page except the first
        content[page : page + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(DamagedFileError):
        HistoryReader(path).events()
    writer = HistoryWriter(path)
    assert path.with_name("history.db.damaged-1").exists()
    writer.add(START + 1000, 0, [rank(loss=3.0)], [])
    writer.close()
    assert HistoryReader(path).series(RANK, "loss", 0, START + 2000, 10)[0].last == [3.0]


def test_damage_while_writing_starts_a_new_file_and_event_numbers_continue(path):
    writer = HistoryWriter(path)
    for _ in range(3):
        writer.event(event())
    writer._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer._disconnect()
    path.write_bytes(b"\0" * 50_000)
    assert writer.event(event("hang")).seq == 4
    assert writer.event(event("failure")).seq == 5
    writer.close()
    assert writer.lost_history is not None
    assert [(e.seq, e.type) for e in HistoryReader(path).events()] == [(4, "hang"), (5, "failure")]


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE rank_1s SET loss_mean = 'x'",
        "UPDATE rank_1s SET rss_bytes_mean = 9e999",
        "INSERT INTO events (ts, type, message, number) VALUES (0, 'hang', '', 'x')",
    ],
)
def test_values_of_unexpected_types_cost_no_sample_of_now(path, harm):
    write_losses(path, dict.fromkeys(range(15), 1.0))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(harm)
    writer = HistoryWriter(path)
    for offset in (30, 31):
        writer.add(START + offset, 0, [rank(loss=3.0)], [])
    writer.close()
    assert writer.lost_history is not None
    assert HistoryReader(path).series(RANK, "loss", 0, START + 40, 10)[0].last == [3.0, 3.0]


def test_what_cannot_be_written_waits_and_is_written_later(tmp_path):
    folder = tmp_path / "not-there-yet"
    writer = HistoryWriter(folder / "history.db")
    for second in range(30):
        writer.add(START + second, 0, [rank(loss=1.0)], [])
    writer.event(event())
    assert writer.problem is not None and "history.db cannot be written" in writer.problem
    folder.mkdir()
    writer.add(START + 30, 0, [rank(loss=1.0)], [])
    assert writer.problem is None
    writer.close()
    reader = HistoryReader(folder / "history.db")
    assert len(reader.series(RANK, "loss", 0, START + 100, 1000)[0].t) == 31
    assert len(reader.events()) == 1


def test_a_file_that_is_locked_by_someone_is_written_later(path):
    writer = HistoryWriter(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer.add(START, 0, [rank(loss=1.0)], [])
    assert writer.problem is not None and "locked" in writer.problem
    other.execute("ROLLBACK")
    other.close()
    writer.add(START + 1, 0, [rank(loss=1.0)], [])
    assert writer.problem is None
    writer.close()
    assert len(HistoryReader(path).series(RANK, "loss", 0, START + 9, 100)[0].t) == 2


def test_another_programs_database_is_no_history(path):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE bookmarks (url)")
    db.close()
    with pytest.raises(DamagedFileError, match="not a valid history"):
        HistoryReader(path).span()
    assert HistoryWriter(path).lost_history is not None


def test_no_file_and_an_empty_one_read_as_nothing(path):
    for _ in range(2):
        reader = HistoryReader(path)
        assert reader.span() is None
        assert reader.events() == [] and reader.attempt_starts() == []
        assert reader.series(RANK, "loss", 0, START, 10) == {}
        assert reader.series(GPU, "power_w", 0, START, 10) == {}
        path.touch()
    HistoryWriter(path).close()
    assert HistoryReader(path).span() is None
