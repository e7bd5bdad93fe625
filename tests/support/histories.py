"""Data that history tests write, and helpers to read it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.model.snapshot import Event, RankSample
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.store.history_schema import TIERS

START = 1_767_225_600


def rank(number: int = 0, **fields) -> RankSample:
    """A rank in one sample."""
    return RankSample(rank=number, local_rank=number, host="node", **fields)


def event(type_: str = "alert", at: float = START, **fields) -> Event:
    """An event."""
    return Event(ts=utc_from_unix(at), type=type_, message=f"a {type_}", **fields)


def write_losses(path: Path, losses: dict[int, float], step_s: int = 1) -> None:
    """One rank's losses, by second after START."""
    writer = HistoryWriter(path, batch_s=60)
    for second, loss in losses.items():
        writer.add(START + second, 0, [rank(loss=loss, step=second)], [])
    writer.close()


def dump(path: Path) -> dict[str, list[tuple]]:
    """All rows in all tables of samples."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        tables = [f"{kind}_{tier.name}" for kind in ("rank", "gpu") for tier in TIERS]
        found = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    db.close()
    return found
