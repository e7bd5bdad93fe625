"""How many steps each attempt took, from a job's history."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from ddptop_runner.history_reader import HistoryReader
from ddptop_runner.history_schema import RANK, TIERS


@dataclass(frozen=True)
class AttemptTaken:
    """One attempt, and the steps before and in it."""

    attempt: int
    started: float
    """Unix seconds."""
    before: int
    """Steps that all attempts before it took."""
    taken: int | None
    """Steps that it took itself; None where no rank ever told one."""


def attempts_taken(reader: HistoryReader) -> list[AttemptTaken]:
    """Every attempt in order; steps count from the start of each.

    Raises:
        DamagedFileError: when the file is no history.
        DdptopError: when it stays locked.
    """
    starts = reader.attempt_starts()
    found: list[AttemptTaken] = []
    before = 0
    with reader.open() as db:
        if db is None:
            return found
        for place, (attempt, started) in enumerate(starts):
            end = int(starts[place + 1][1]) + 1 if place + 1 < len(starts) else None
            taken = _last_step(db, attempt, end)
            found.append(AttemptTaken(attempt, started, before, taken))
            before += taken or 0
    return found


def _last_step(db: sqlite3.Connection, attempt: int, end: int | None) -> int | None:
    """The greatest step of an attempt's last samples before `end`."""
    for tier in TIERS:
        table = RANK.table(tier)
        limit = "" if end is None else f" WHERE t < {end}"
        (last,) = db.execute(f"SELECT max(t) FROM {table}{limit}").fetchone()
        if last is None:
            continue
        # a bucket in which the next attempt begins already belongs to that one
        (step,) = db.execute(
            f"SELECT max(step) FROM {table} WHERE t > ? AND t <= ? AND attempt = ?",
            (last - 5 * tier.width_s, last, attempt),
        ).fetchone()
        if step is not None:
            return int(step)
    return None
