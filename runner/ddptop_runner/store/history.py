"""`history.db`: the history of a job, second by second, in one SQLite file.

The supervisor is the only writer and commits once per second, while any number of viewers read
(WAL). When a job ends, the file leaves WAL mode, so that it can be opened in a read-only folder.
See `history_schema` for the tables and `history_reader` for reading them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import operator
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from ddptop_runner.base.errors import DamagedFileError, DdptopError
from ddptop_runner.base.files import set_aside
from ddptop_runner.base.median import median
from ddptop_runner.model.snapshot import SILENT, Event, GpuSample, RankSample
from ddptop_runner.model.words import is_of_evaluation
from ddptop_runner.store.history_reader import HistoryReader, Series, check_schema
from ddptop_runner.store.history_schema import (
    EVENT_COLUMNS,
    GPU,
    KINDS,
    MOST_SCALARS,
    RANK,
    SCALAR_NAME,
    SILENT_COUNT,
    SPREAD,
    TIERS,
    Kind,
    Row,
    ddl,
    device_number,
    scalar_number,
)

__all__ = ["HistoryReader", "HistoryWriter", "Series"]

SETBACK_S = 5
"""A clock set back by up to this counts as standing still; by more, buckets start over."""
PRUNE_EVERY_S = 10
PRUNE_BUCKETS = 60
"""Maximum number of buckets to delete from a table at a time, to keep each tick short."""
MAX_PENDING_ROWS = 5000
"""Maximum number of rows per table, and of events, to hold while the file cannot be written."""
BUSY_TIMEOUT_S = 0.25
SAME_S = 10
"""How often an unchanged scalar is recorded; an evaluation is recorded whenever reported."""
FINAL_TIMEOUT_S = 3.0
"""How long `close(final=True)` waits for readers to leave the file."""

_INSERT = {
    kind.table(tier): f"INSERT OR REPLACE INTO {kind.table(tier)} ({', '.join(kind.columns)})"
    f" VALUES ({', '.join('?' * len(kind.columns))})"
    for kind in KINDS
    for tier in TIERS
}
_INSERT_EVENT = (
    f"INSERT INTO events ({', '.join(EVENT_COLUMNS)})"
    f" VALUES ({', '.join('?' * len(EVENT_COLUMNS))})"
)


def merge_rows(kind: Kind, t: int, rows: Sequence[Row]) -> Row:
    """The row of a coarser bucket that starts at `t`, from its finer rows in order of time.

    Ignores unknown values; a mean is the mean of the finer rows' means.
    """
    columns = iter(zip(*rows, strict=True))
    next(columns)  # t
    merged: list[Any] = [t, next(columns)[0]]
    for merge, column in zip(kind.mergers, columns, strict=True):
        known = tuple(v for v in column if v is not None) if None in column else column
        merged.append(merge(known) if known else None)
    return tuple(merged)


_NOTHING = (None,) * len(SPREAD)
_rank_spreads = operator.attrgetter(*(m.name for m in RANK.metrics if m.aggregates == SPREAD))
_gpu_spreads = operator.attrgetter(*(m.name for m in GPU.metrics if m.aggregates == SPREAD))
_STEP = RANK.columns.index("step")
_NONFINITE = RANK.columns.index("loss_nonfinite")
_LOSS_MIN = RANK.columns.index("loss_min")
_LOSS = RANK.columns.index("loss_mean")
_LOSS_MAX = RANK.columns.index("loss_max")


def _is_finite(value: float | None) -> bool:
    """Whether `value` is a finite number; faster than math.isfinite, which does not accept None."""
    return value is not None and value - value == 0


def _finite(value: float | None) -> float | None:
    return value if _is_finite(value) else None


def _spread(values: Iterable[float | None], row: list[Any]) -> None:
    """Append each value as the min, mean, max, and last of a single sample."""
    for value in values:
        if value is None or value - value != 0:
            row += _NOTHING
        else:
            row += (value, value, value, value)


def rank_row(t: int, attempt: int | None, sample: RankSample) -> Row:
    """The row of one sample of a rank. A loss that is not finite is only counted."""
    loss = sample.loss
    bad = sample.loss_state in ("nan", "inf") or (loss is not None and not _is_finite(loss))
    row: list[Any] = [t, sample.rank, attempt, sample.step, int(bad)]
    _spread(_rank_spreads(sample), row)
    row += (_finite(sample.sync_s), _finite(sample.compute_s), sample.log_bytes)
    if bad:
        row[_LOSS_MIN : _LOSS_MIN + len(SPREAD)] = _NOTHING
    if _is_finite(sample.loss_min):
        row[_LOSS_MIN] = sample.loss_min
    if _is_finite(sample.loss_max):
        row[_LOSS_MAX] = sample.loss_max
    return tuple(row)


def gpu_row(t: int, attempt: int | None, sample: GpuSample, hosts: Sequence[str] = ()) -> Row:
    """The row of one sample of a device."""
    row: list[Any] = [t, device_number(hosts, sample.host, sample.index), attempt]
    _spread(_gpu_spreads(sample), row)
    return tuple(row)


def job_rows(t: int, attempt: int | None, ranks: Sequence[Row]) -> list[Row]:
    """The row of all ranks together; none if no rank has a loss."""
    bad = sum(row[_NONFINITE] for row in ranks)
    losses = [row[_LOSS] for row in ranks if row[_LOSS] is not None]
    if not losses and not bad:
        return []
    step = max((row[_STEP] for row in ranks if row[_STEP] is not None), default=None)
    middle = median(losses) if losses else None
    low, high = min(losses, default=None), max(losses, default=None)
    return [(t, 0, attempt, step, bad, low, middle, high, middle)]


Completed = dict[str, list[Row]]
"""By table, rows to be stored."""


class RollUp:
    """The open buckets of one kind, in memory, so that rolling up reads nothing back."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.unsaved = False
        """Whether the open second has samples that `open_rows` has not returned since the owner
        cleared this."""
        self._second: int | None = None
        self._samples: dict[int, list[Row]] = {}
        """By subject, the samples of that second."""
        self._starts: list[int | None] = [None] * len(TIERS)
        """By tier, the start of its open bucket; unused for the finest."""
        self._finer: list[dict[int, list[Row]]] = [{} for _ in TIERS]
        """By tier and subject, the finer rows of its open bucket."""

    def add(self, second: int, rows: Iterable[Row], completed: Completed) -> None:
        """Add the samples of one moment, and move buckets that are over to `completed`.

        `second` must not decrease between calls, except after `close_all`.
        """
        if second != self._second:
            if self._second is not None:
                self._close_second(second, completed)
            self._second = second
        for row in rows:
            self._samples.setdefault(row[1], []).append(row)
            self.unsaved = True

    def open_rows(self) -> list[Row]:
        """The rows of the present second so far."""
        return [
            rows[0] if len(rows) == 1 else merge_rows(self.kind, rows[0][0], rows)
            for rows in self._samples.values()
        ]

    def close_all(self, completed: Completed) -> None:
        """End every open bucket, because the clock was set back; what follows starts over."""
        self._close_second(None, completed)
        self._second = None

    def restore(self, level: int, rows: Iterable[Row]) -> None:
        """Restore stored rows of the tier below `level` to its open bucket (0: the second)."""
        for row in rows:
            if level == 0:
                self._second = row[0]
                self._samples.setdefault(row[1], []).append(row)
            else:
                self._starts[level] = row[0] - row[0] % TIERS[level].width_s
                self._finer[level].setdefault(row[1], []).append(row)

    def _close_second(self, now: int | None, completed: Completed) -> None:
        """Carry the second up through the tiers, ending buckets that are over at `now`.

        With None, ends all of them.
        """
        rows = self.open_rows()
        self._samples = {}
        if self.unsaved:
            completed.setdefault(self.kind.table(TIERS[0]), []).extend(rows)
            self.unsaved = False
        for level in range(1, len(TIERS)):
            tier, finer = TIERS[level], self._finer[level]
            if rows:
                self._starts[level] = rows[0][0] - rows[0][0] % tier.width_s
                for row in rows:
                    finer.setdefault(row[1], []).append(row)
            start = self._starts[level]
            rows = []
            if start is None:
                continue
            if now is not None and now < start + tier.width_s:
                return
            rows = [merge_rows(self.kind, start, group) for group in finer.values()]
            completed.setdefault(self.kind.table(tier), []).extend(rows)
            finer.clear()
            self._starts[level] = None


_Reported: TypeAlias = dict[int, tuple[float, int | None]]
"""By rank, a scalar's value and how often it was reported."""


class Scalars:
    """Numbers the scalars of a job by name, and determines which of their values are new."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.unsaved: dict[str, int] = {}
        """Those that the file does not have yet."""
        self._last: dict[int, tuple[int | None, _Reported, int]] = {}
        """By number, the last row as (attempt, reported values, time)."""
        self._awaited: set[int] = set()
        """Evaluations that only some ranks had reported at the last call."""

    def restore(self, db: sqlite3.Connection) -> None:
        """Take the names from a file; those that it lacks are marked as unsaved."""
        rows = db.execute("SELECT key, value FROM meta").fetchall()
        stored = {str(v): n for k, v in rows if (n := scalar_number(k)) is not None}
        before = self.numbers, self.unsaved
        self.numbers = stored | {
            name: len(stored) + place
            for place, name in enumerate(name for name in self.numbers if name not in stored)
        }
        self.unsaved = {name: n for name, n in self.numbers.items() if name not in stored}
        if (self.numbers, self.unsaved) != before:  # another file, which lacks the last rows
            self._last.clear()

    def rows(
        self, t: int, attempt: int | None, ranks: Sequence[RankSample], final: bool = False
    ) -> list[Row]:
        """Rows for new values: the minimum, mean, and maximum over the ranks that report them.

        An evaluation is new whenever it is reported. If some ranks have not reported it yet, it
        waits until the next call, so that it becomes one point; not in the `final` call.
        """
        rows: list[Row] = []
        known: dict[str, _Reported] = {}
        steps: dict[str, int | None] = {}
        for sample in ranks:
            for name, value in sample.metrics.items():
                if value is not None:
                    reports = sample.metric_reports.get(name) if is_of_evaluation(name) else None
                    known.setdefault(name, {})[sample.rank] = value, reports
                    steps.setdefault(name, sample.step)
        for name, reported in known.items():
            if name not in self.numbers:
                if len(self.numbers) >= MOST_SCALARS or not name.isprintable():
                    continue
                self.numbers[name] = self.unsaved[name] = len(self.numbers)
            number, is_evaluation = self.numbers[name], is_of_evaluation(name)
            last_attempt, before, at = self._last.get(number, (None, {}, t))
            if last_attempt == attempt:
                same = sum(_is_same(before.get(rank), one) for rank, one in reported.items())
                if same == len(reported) and (is_evaluation or t - at < SAME_S):
                    counted = {rank: one for rank, one in reported.items() if one[1] is not None}
                    before.update(counted)
                    continue
                if is_evaluation and same and not final and number not in self._awaited:
                    self._awaited.add(number)
                    continue
            self._awaited.discard(number)
            self._last[number] = attempt, reported, t
            values = [value for value, _ in reported.values()]
            mean = math.fsum(values) / len(values)
            rows.append((t, number, attempt, steps[name], min(values), mean, max(values), mean))
        return rows


def _is_same(before: tuple[float, int | None] | None, now: tuple[float, int | None]) -> bool:
    """Whether `now` reports nothing new; how often it was reported may be unknown."""
    if before is None or before[0] != now[0]:
        return False
    return before[1] == now[1] or None in (before[1], now[1])


class HistoryWriter:
    """Appends to a job's history. Use it from one thread at a time.

    A full or failing disk never raises: what could not be written stays in memory, up to a limit,
    for the next batch. A damaged file is renamed to `<name>.damaged-<n>`, and a new history is
    started.
    """

    def __init__(self, path: Path, batch_s: float = 1.0, hosts: Sequence[str] = ()) -> None:
        """Open or create `path`, and restore the buckets that were open when it was closed.

        Args:
            path: the file; its folder must exist.
            batch_s: samples are committed once they cover this time.
            hosts: `JobSpec.hosts`, to distinguish devices with the same index.

        Raises:
            DamagedFileError: a newer ddptop wrote the file.
        """
        self.path = path
        self.problem: str | None = None
        """Why the last batch could not be written; None if it was."""
        self.lost_history: str | None = None
        """Why this writer last started a new file."""
        self._gap: tuple[float, float] | None = None
        self.damaged_file: Path | None = None
        """The last damaged file that this writer set aside."""
        self._batch_s = batch_s
        self._hosts = tuple(hosts)
        self._rollups = [RollUp(kind) for kind in KINDS]
        self._scalars = Scalars()
        self._pending: Completed = {}
        self._pending_events: list[Event] = []
        self._next_seq = 1
        self._second: int | None = None
        self._written_at: float | None = None
        self._pruned_at = 0
        self._closed = False
        self._db: sqlite3.Connection | None = None
        self._connect()

    def add(
        self,
        ts: dt.datetime | float,
        attempt: int | None,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        final: bool = False,
    ) -> None:
        """Add the samples of one moment, and commit when a batch is complete.

        Args:
            ts: when they were taken, as an aware time or Unix seconds.
            attempt: the attempt that they belong to.
            ranks: the job's ranks.
            gpus: the job's devices.
            final: the job has ended, so these are its last samples.
        """
        unix_s = ts.timestamp() if isinstance(ts, dt.datetime) else float(ts)
        second = int(unix_s)
        if self._second is not None and second < self._second:
            if self._second - second <= SETBACK_S:
                second = self._second
            else:
                for rollup in self._rollups:
                    rollup.close_all(self._pending)
        self._second = second
        rank_rows = [rank_row(second, attempt, sample) for sample in ranks]
        gpu_rows = [gpu_row(second, attempt, sample, self._hosts) for sample in gpus]
        scalar_rows = self._scalars.rows(second, attempt, ranks, final)
        rows_of = (rank_rows, gpu_rows, scalar_rows, job_rows(second, attempt, rank_rows))
        for rollup, rows in zip(self._rollups, rows_of, strict=True):
            rollup.add(second, rows, self._pending)
        since = None if self._written_at is None else unix_s - self._written_at
        # a tenth allows for the jitter of a 1 Hz clock
        if since is None or since < 0 or since >= 0.9 * self._batch_s:
            self._written_at = unix_s
            self.flush()

    def event(self, event: Event) -> Event:
        """Store an event immediately; returns it with its `seq`."""
        event = msgspec.structs.replace(event, seq=self._next_seq)
        self._next_seq += 1
        self._pending_events.append(event)
        self.flush()
        return event

    def continue_after(self, seq: int) -> None:
        """Number the next event after that one, which a full disk may have lost."""
        self._next_seq = max(self._next_seq, seq + 1)

    @property
    def last_seq(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._next_seq - 1

    @property
    def unsaved_events(self) -> list[Event]:
        """Events not yet written because of a full disk."""
        return list(self._pending_events)

    def flush(self) -> None:
        """Commit everything so far, including the unfinished second."""
        if self._closed:
            return
        for rollup in self._rollups:
            if rollup.unsaved:
                table = rollup.kind.table(TIERS[0])
                self._pending.setdefault(table, []).extend(rollup.open_rows())
                rollup.unsaved = False
        db = self._connect()
        if db is None:
            return
        try:
            self._write(db)
        except (sqlite3.OperationalError, OSError) as error:
            self._fail(error)
        except sqlite3.DatabaseError:  # malformed
            self._set_aside()  # pending rows go to a new file with the next batch
            self._shed()
        else:
            self._pending.clear()
            self._pending_events.clear()
            self._scalars.unsaved.clear()
            self.problem = None

    def check(self) -> None:
        """Check whether the file is still a history, like any reader; takes 1 ms.

        Writing alone, which goes to the file's WAL, would not notice damage.
        """
        if self._db is None or self._closed:
            return
        if not self.path.exists():
            self._disconnect()
            self.lost_history = f"{self.path.name} was deleted"
            return
        reader = HistoryReader(self.path)
        try:
            if self.path.stat().st_size == 0:  # reads as one that was not started yet
                self._set_aside()
                return
            reader.span()
            reader.events(after_seq=self._next_seq - 2, silent=True)
        except DamagedFileError:
            self._set_aside()
        except (DdptopError, OSError):  # briefly locked, or gone
            return

    def close(self, final: bool = False) -> None:
        """Commit and close the file.

        Args:
            final: the job has ended, so leave WAL mode, which makes the single file copyable and
                readable in a read-only folder. Waits up to 3 s for readers to finish; otherwise
                the file stays in WAL mode and `problem` says so.
        """
        self.flush()
        self._closed = True
        if self._db is None:
            return
        if final:
            self._leave_wal(self._db)
        self._disconnect()

    def _leave_wal(self, db: sqlite3.Connection) -> None:
        deadline = time.monotonic() + FINAL_TIMEOUT_S
        while True:
            try:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                db.execute("PRAGMA journal_mode=DELETE")
                return
            except sqlite3.DatabaseError as error:  # in use by a reader, or the disk is full
                if time.monotonic() > deadline:
                    self.problem = f"could not switch {self.path.name} out of WAL mode ({error})"
                    return
                time.sleep(0.02)

    def _connect(self) -> sqlite3.Connection | None:
        """The open file; None if it cannot be opened, with the reason in `problem`."""
        if self._db is None:
            try:
                try:
                    self._db = self._open()
                except sqlite3.OperationalError:
                    raise
                except sqlite3.DatabaseError:
                    self._set_aside()
                    self._db = self._open()
            except (sqlite3.DatabaseError, OSError) as error:
                self._fail(error)
        return self._db

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            if tables:
                check_schema(db, self.path)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("PRAGMA wal_autocheckpoint=500")
            db.execute("PRAGMA journal_size_limit=4194304")
            if not tables:
                db.execute("BEGIN IMMEDIATE")
                for statement in ddl():
                    db.execute(statement)
                db.execute("COMMIT")
            (stored,) = db.execute("SELECT max(seq) FROM events").fetchone()
            self._renumber(stored or 0)
            self._scalars.restore(db)
            if self._second is None:
                self._restore(db)
        except BaseException:
            db.close()
            raise
        return db

    def _renumber(self, stored: int) -> None:
        """Number pending events after those in the file."""
        if self._pending_events and self._pending_events[0].seq <= stored:
            shift = stored + 1 - self._pending_events[0].seq
            self._pending_events = [
                msgspec.structs.replace(event, seq=event.seq + shift)
                for event in self._pending_events
            ]
            self._next_seq += shift
        self._next_seq = max(self._next_seq, stored + 1)

    def _restore(self, db: sqlite3.Connection) -> None:
        """Fill the open buckets from their stored rows."""
        self._rollups = [RollUp(kind) for kind in KINDS]
        for rollup in self._rollups:
            kind = rollup.kind
            (last,) = db.execute(f"SELECT max(t) FROM {kind.table(TIERS[0])}").fetchone()
            if last is None:
                continue
            rollup.restore(0, _rows(db, kind, 0, last, last + 1))
            until = last
            for level in range(1, len(TIERS)):
                start = last - last % TIERS[level].width_s
                rollup.restore(level, _rows(db, kind, level - 1, start, until))
                until = start
            self._second = max(self._second or last, last)

    def _write(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            for table, rows in self._pending.items():
                db.executemany(_INSERT[table], rows)
            for name, number in self._scalars.unsaved.items():
                row = (f"{SCALAR_NAME}{number}", name)
                db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)
            for event in self._pending_events:
                values = {**msgspec.structs.asdict(event), "ts": event.ts.timestamp()}
                if event.data is not None:
                    values["data"] = msgspec.json.encode(event.data).decode()
                db.execute(_INSERT_EVENT, [values[column] for column in EVENT_COLUMNS])
            if silent := sum(event.type == SILENT for event in self._pending_events):
                update = "UPDATE meta SET value = value + ? WHERE key = ?"
                db.execute(update, (silent, SILENT_COUNT))
            if self._second is not None and abs(self._second - self._pruned_at) >= PRUNE_EVERY_S:
                self._pruned_at = self._second
                _prune(db, self._second)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
            raise

    def _fail(self, error: Exception) -> None:
        """Record why nothing was written, and use a new connection next time."""
        self.problem = f"{self.path.name} cannot be written ({error})"
        self._disconnect()
        self._shed()

    def _disconnect(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _shed(self) -> None:
        """Drop the oldest pending rows beyond the limit."""
        lists: list[list[Any]] = [*self._pending.values(), self._pending_events]
        for waiting in lists:
            excess = len(waiting) - MAX_PENDING_ROWS
            if excess > 0:
                self._note_gap(waiting[:excess])
                del waiting[:excess]

    def _note_gap(self, lost: list[Any]) -> None:
        times = [one.ts.timestamp() if isinstance(one, Event) else float(one[0]) for one in lost]
        if self._gap is not None:
            times += self._gap
        self._gap = min(times), max(times)

    def take_gap(self) -> tuple[float, float] | None:
        """The time, in Unix seconds, for which rows were dropped since the last call.

        None while the file still cannot be written, since the gap may grow.
        """
        if self.problem is not None:
            return None
        gap, self._gap = self._gap, None
        return gap

    def _set_aside(self) -> None:
        """Rename the damaged file, with its WAL, so that a new one can take its place."""
        self._disconnect()
        with contextlib.suppress(OSError):
            self.damaged_file = aside = set_aside(self.path)
            self.lost_history = f"{self.path.name} was damaged and set aside as {aside.name}"
            for suffix in ("-wal", "-shm"):
                file = self.path.with_name(self.path.name + suffix)
                with contextlib.suppress(OSError):
                    file.rename(aside.with_name(aside.name + suffix))


def _rows(
    db: sqlite3.Connection, kind: Kind, level: int, since: int, until: int
) -> list[tuple[object, ...]]:
    """Rows of a tier with since <= t < until, in order."""
    columns = ", ".join(kind.columns)
    query = f"SELECT {columns} FROM {kind.table(TIERS[level])} WHERE t >= ? AND t < ? ORDER BY t"
    return db.execute(query, (since, until)).fetchall()


def _prune(db: sqlite3.Connection, now: int) -> None:
    """Delete some of the rows that are older than their tier's limit."""
    for kind in KINDS:
        for tier in TIERS:
            if tier.keep_s is None:
                continue
            table = kind.table(tier)
            (oldest,) = db.execute(f"SELECT min(t) FROM {table}").fetchone()
            cutoff = now - tier.keep_s
            if oldest is not None and oldest < cutoff:
                limit = min(cutoff, oldest + PRUNE_BUCKETS * tier.width_s)
                db.execute(f"DELETE FROM {table} WHERE t < ?", (limit,))


def move_paths(path: Path, before: str, after: str) -> None:
    """Change paths below `before` to paths below `after` in the events of an ended job.

    Raises:
        sqlite3.Error: they could not be changed.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as db, db:
        names = ("message", "evidence", "data")
        changes = ", ".join(f"{name} = replace({name}, :before, :after)" for name in names)
        found = " OR ".join(f"instr({name}, :before) > 0" for name in names)
        db.execute(f"UPDATE events SET {changes} WHERE {found}", {"before": before, "after": after})
