"""A history's file: missing, old, of a later version, damaged, or locked; and its size."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest
from tests.support.histories import START, dump, event, rank, write_losses

from ddptop_runner.base.errors import DamagedFileError
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.store.history import HistoryReader, HistoryWriter
from ddptop_runner.store.history_schema import TIERS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


# --- nothing there, and old files ------------------------------------------------------------


# --- size ------------------------------------------------------------------------------------


def test_a_week_of_eight_ranks_and_devices_stays_below_100_mib(path):
    """Bytes per row are measured; the rows of a week are computed from the tiers."""
    rng = random.Random(5)
    ticks = 2400
    writer = HistoryWriter(path, batch_s=10)
    for second in range(ticks):
        ranks = [
            rank(
                r,
                step=second,
                loss=rng.random(),
                step_time_s=rng.random(),
                data_wait_s=rng.random(),
                sync_s=rng.random(),
                compute_s=rng.random(),
                log_bytes=rng.randrange(10**9),
                cpu_percent=rng.random() * 100,
                rss_bytes=rng.randrange(10**10),
            )
            for r in range(8)
        ]
        gpus = [
            GpuSample(
                index=g,
                util_percent=rng.random() * 100,
                mem_used_bytes=rng.randrange(10**11),
                temperature_c=rng.random() * 90,
                power_w=rng.random() * 700,
            )
            for g in range(8)
        ]
        writer.add(START + second, 0, ranks, gpus)
    writer.close(final=True)
    written = sum(len(rows) for rows in dump(path).values())
    week_s = 7 * 86_400
    week = sum(16 * min(week_s, tier.keep_s or week_s) // tier.width_s for tier in TIERS)
    assert path.stat().st_size / written * week < 100 * 2**20


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
    assert HistoryReader(path).rank_series("loss", 0, START + 2000, 10)[0].last == [3.0]


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
    assert HistoryReader(path).rank_series("loss", 0, START + 40, 10)[0].last == [3.0, 3.0]


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
    assert len(reader.rank_series("loss", 0, START + 100, 1000)[0].t) == 31
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
    assert len(HistoryReader(path).rank_series("loss", 0, START + 9, 100)[0].t) == 2
