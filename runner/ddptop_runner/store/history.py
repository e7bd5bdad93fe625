"""`history.db`: the history of a job, second by second, in one SQLite file.

The supervisor is the only writer and commits once per second, while any number of viewers read
(WAL). When a job ends, the file leaves WAL mode, so that it can be opened in a read-only folder.
See `history_schema` for the tables and `history_reader` for reading them.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
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
    SPREAD,
    TIERS,
    Kind,
    Row,
    ddl,
    device_number,
)

__all__ = ["HistoryReader", "HistoryWriter", "Series"]

SETBACK_S = 5
"""A clock set back by up to this counts as standing still; by more, buckets start over."""
KEEP_EVERY_S = 10
"""How often rows are rolled up and pruned: the width of the finest coarser tier."""
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
_INSERT_EVENT = f"""
    INSERT INTO events ({", ".join(EVENT_COLUMNS)}, number)
    VALUES ({", ".join(f":{column}" for column in EVENT_COLUMNS)}, :number)"""


def merge_rows(kind: Kind, t: int, rows: Sequence[Row]) -> Row:
    """The row of a coarser bucket that starts at `t`, from its finer rows in order of time.

    Ignores unknown values; a mean is the mean of the finer rows' means.
    """
    if len(rows) == 1:
        return (t, *rows[0][1:])
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


_Reported: TypeAlias = dict[int, tuple[float, int | None]]
"""By rank, a scalar's value and how often it was reported."""


class Scalars:
    """Determines which values of a job's scalars are new."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int | None, _Reported, int]] = {}
        """By name, the last row as (attempt, reported values, time)."""
        self._awaited: set[str] = set()
        """Evaluations that only some ranks had reported at the last call."""

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
            if name not in self._last and (
                len(self._last) >= MOST_SCALARS or not name.isprintable()
            ):
                continue
            is_evaluation = is_of_evaluation(name)
            last_attempt, before, at = self._last.get(name, (None, {}, t))
            if last_attempt == attempt:
                same = sum(_is_same(before.get(rank), one) for rank, one in reported.items())
                if same == len(reported) and (is_evaluation or t - at < SAME_S):
                    counted = {rank: one for rank, one in reported.items() if one[1] is not None}
                    before.update(counted)
                    continue
                if is_evaluation and same and not final and name not in self._awaited:
                    self._awaited.add(name)
                    continue
            self._awaited.discard(name)
            self._last[name] = attempt, reported, t
            values = [value for value, _ in reported.values()]
            mean = math.fsum(values) / len(values)
            rows.append((t, name, attempt, steps[name], min(values), mean, max(values), mean))
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
        """Open or create `path`.

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
        self._batch_s = batch_s
        self._hosts = tuple(hosts)
        self._scalars = Scalars()
        self._open_second: list[dict[Any, list[Row]]] = [{} for _ in KINDS]
        """By kind and subject, the samples of the present second."""
        self._unsaved = False
        """Whether that second has samples that are not pending."""
        self._pending: dict[str, list[Row]] = {}
        """By table, rows to be stored."""
        self._pending_events: list[Event] = []
        self._next_seq = 1
        self._second: int | None = None
        self._written_at: float | None = None
        self._kept_at = 0
        """When rows were last rolled up and pruned, in units of `KEEP_EVERY_S`."""
        self._number = 0
        """The number of the last event that is shown; it continues in a new file."""
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
        if self._second is not None and 0 < self._second - second <= SETBACK_S:
            second = self._second
        if second != self._second:
            self._keep_second()
            self._open_second = [{} for _ in KINDS]
            self._second = second
        rank_rows = [rank_row(second, attempt, sample) for sample in ranks]
        gpu_rows = [gpu_row(second, attempt, sample, self._hosts) for sample in gpus]
        scalar_rows = self._scalars.rows(second, attempt, ranks, final)
        rows_of = (rank_rows, gpu_rows, scalar_rows, job_rows(second, attempt, rank_rows))
        for samples, rows in zip(self._open_second, rows_of, strict=True):
            for row in rows:
                samples.setdefault(row[1], []).append(row)
                self._unsaved = True
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
        self._keep_second()
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
            self.problem = None

    def _keep_second(self) -> None:
        """Have the rows of the present second so far written."""
        if self._unsaved:
            for kind, samples in zip(KINDS, self._open_second, strict=True):
                rows = self._pending.setdefault(kind.table(TIERS[0]), [])
                rows += [merge_rows(kind, one[0][0], one) for one in samples.values()]
            self._unsaved = False

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
                self._scalars = Scalars()  # it lacks their last rows
            stored, number = db.execute("SELECT max(seq), max(number) FROM events").fetchone()
            if not isinstance(number, (int, type(None))):
                raise sqlite3.DatabaseError("the number of an event is not an integer")
            self._renumber(stored or 0)
            self._number = max(self._number, number or 0)
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

    def _write(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        number = self._number
        try:
            for table, rows in self._pending.items():
                db.executemany(_INSERT[table], rows)
            for event in self._pending_events:
                values = {**msgspec.structs.asdict(event), "ts": event.ts.timestamp()}
                is_shown = event.type != SILENT
                number += is_shown
                values["number"] = number if is_shown else None
                if event.data is not None:
                    values["data"] = msgspec.json.encode(event.data).decode()
                db.execute(_INSERT_EVENT, values)
            if self._second is not None and self._second // KEEP_EVERY_S != self._kept_at:
                self._kept_at = self._second // KEEP_EVERY_S
                try:
                    for kind in KINDS:
                        _roll_up(db, kind, self._second)
                    _prune(db, self._second)
                except (ArithmeticError, TypeError, ValueError) as error:
                    raise sqlite3.DatabaseError("values of unexpected types") from error
            db.execute("COMMIT")
            self._number = number
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
            aside = set_aside(self.path)
            self.lost_history = f"{self.path.name} was damaged and set aside as {aside.name}"
            for suffix in ("-wal", "-shm"):
                file = self.path.with_name(self.path.name + suffix)
                with contextlib.suppress(OSError):
                    file.rename(aside.with_name(aside.name + suffix))


def _roll_up(db: sqlite3.Connection, kind: Kind, now: int) -> None:
    """Store the rows of coarser buckets that are over, from those of the next finer tier."""
    for finer, tier in itertools.pairwise(TIERS):
        columns, table = ", ".join(kind.columns), kind.table(finer)
        query = f"SELECT max(t) FROM {kind.table(tier)} WHERE t <= ?"  # the clock may be set back
        (last,) = db.execute(query, (now,)).fetchone()
        start = 0 if last is None else last + tier.width_s
        while True:
            (first,) = db.execute(f"SELECT min(t) FROM {table} WHERE t >= ?", (start,)).fetchone()
            if first is None or now < (start := first - first % tier.width_s) + tier.width_s:
                break
            of: dict[Any, list[Row]] = {}
            query = f"SELECT {columns} FROM {table} WHERE t >= ? AND t < ? ORDER BY t"
            for row in db.execute(query, (start, start + tier.width_s)):
                of.setdefault(row[1], []).append(row)
            merged = [merge_rows(kind, start, rows) for rows in of.values()]
            db.executemany(_INSERT[kind.table(tier)], merged)
            start += tier.width_s


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
