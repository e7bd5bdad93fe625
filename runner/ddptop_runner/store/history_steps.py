"""How many steps each attempt took, from a job's history."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import RANK, TIERS


class AttemptTaken(msgspec.Struct, frozen=True):
    """One attempt, and the steps before and in it."""

    attempt: int
    started: float
    """Unix seconds."""
    before: int
    """Steps that all attempts before it took."""
    taken: int | None
    """Steps that it took itself; None where no rank ever told one."""
    first: int = 0
    """The step that it counts its own from: 0, or the first that its output told."""


def attempts_taken(
    reader: HistoryReader, *, printed: bool = False, known: Sequence[AttemptTaken] = ()
) -> list[AttemptTaken]:
    """Every attempt in order.

    Args:
        reader: of the job's history.
        printed: whether steps are those of the job's output, which may go on where a checkpoint
            was; otherwise they count from the start of each attempt.
        known: what was read before: of attempts that had ended by then it is still so.

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
            if place + 1 < len(known) and known[place].started == started:
                found.append(known[place])
                before += known[place].taken or 0
                continue
            end = int(starts[place + 1][1]) + 1 if place + 1 < len(starts) else None
            last = _last_step(db, attempt, end)
            first = (_first_step(db, attempt, started) or 0) if printed else 0
            taken = None if last is None else max(0, last - first)
            found.append(AttemptTaken(attempt, started, before, taken, first))
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


def _first_step(db: sqlite3.Connection, attempt: int, started: float) -> int | None:
    """The first step that an attempt told."""
    told: list[tuple[int, int]] = []
    for tier in TIERS:
        row = db.execute(
            f"SELECT t, step FROM {RANK.table(tier)} WHERE t >= ? AND attempt = ?"
            " AND step IS NOT NULL ORDER BY t LIMIT 1",
            (int(started) - tier.width_s, attempt),
        ).fetchone()
        if row is not None:
            told.append((row[0] + tier.width_s, row[1]))
    # a bucket tells its last step: the one that ends soonest tells the earliest
    return min(told)[1] if told else None
