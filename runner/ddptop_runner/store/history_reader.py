"""Reads `history.db` beside a live writer, or long after: series of a metric, and events."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import is_time, utc_from_unix
from ddptop_runner.base.errors import DamagedFileError, DdptopError
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history_schema import (
    EVENT_COLUMNS,
    GPU,
    HISTORY_SCHEMA,
    KINDS,
    RANK,
    SPREAD,
    TIERS,
    Kind,
    Tier,
    columns_of,
)

MOST_CPU_S = 5.0
"""Of this thread, for one look into a history."""
PROGRESS_STEPS = 100_000
"""Of SQLite's machine, between two looks at that."""
LONGEST_VALUE_BYTES = 4 << 20
"""Of a text in the history."""
HEAP_BYTES = 128 << 20
"""What SQLite may hold at a time, whatever one of its functions is asked to make."""
EVENTS_BYTES = 64 << 20
"""Of the texts of all events."""
MOST_POINTS = 1_000_000
"""Of all series of one metric."""
BUSY_TIMEOUT_S = 2.0
"""How long a read waits for a writer that opens, recovers or closes the file."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one rank or device over time, as parallel lists, oldest first.

    A bucket without a known value has no point: a gap in time is a gap in the lists.
    """

    bucket_s: int
    """Length of a point's bucket; two points further apart than this have a gap between them."""
    t: list[int] = []
    """Unix seconds at which each bucket starts; a multiple of `bucket_s`."""
    min: list[float] = []
    mean: list[float] = []
    max: list[float] = []
    last: list[float] = []
    attempt: list[int | None] = []
    """The attempt that `last` belongs to."""
    step: list[int | None] = []
    """Of ranks: the step then, counted from the start of that attempt."""
    nonfinite_t: list[int] = []
    """Of the loss: buckets in which it was NaN or infinite, whether they have a point or not."""


class HistoryReader:
    """Reads one job's history. Confined to one thread.

    Every read opens the file anew (0.3 ms), so that no viewer keeps the writer from leaving WAL
    mode at the job's end, and a file that was begun anew is found. A file that is not there yet
    reads as an empty history.

    All methods raise DamagedFileError when the file is not a history, or one of a newer ddptop,
    and DdptopError when it stays locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def span(self) -> tuple[int, int] | None:
        """Unix seconds of the first and the last sample, or None without samples."""
        with self.open() as db:
            return _span(db, KINDS) if db is not None else None

    def rank_series(
        self, metric: str, since_unix: float, until_unix: float, max_points: int
    ) -> dict[int, Series]:
        """A metric of every rank that has a value in the span.

        Args:
            metric: step, loss, step_time_s, data_wait_s, cpu_percent, rss_bytes, sync_s,
                compute_s or log_bytes; a history that is too old to have it has no series of it.
            since_unix: start of the span; 0 is the beginning of the history.
            until_unix: end of the span, included.
            max_points: each series has at most so many points; 2 or more.

        Raises:
            ValueError: when there is no such metric.
        """
        return self._series(RANK, metric, since_unix, until_unix, max_points)

    def gpu_series(
        self, metric: str, since_unix: float, until_unix: float, max_points: int
    ) -> dict[int, Series]:
        """A metric of every device, by index: util_percent, mem_used_bytes, temperature_c, power_w.

        The arguments and errors are those of `rank_series`.
        """
        return self._series(GPU, metric, since_unix, until_unix, max_points)

    def events(self, after_seq: int = 0, limit: int | None = None) -> list[Event]:
        """Events in order, those after `after_seq`; of them the newest `limit`."""
        with self.open() as db:
            if db is None:
                return []
            columns = ", ".join(EVENT_COLUMNS)
            if "data" not in columns_of(db, "events"):  # of an older ddptop
                columns = columns.replace("data", "NULL")
            query = f"SELECT {columns} FROM events WHERE seq > ? ORDER BY seq DESC LIMIT ?"
            found, left_bytes = [], EVENTS_BYTES
            for row in db.execute(query, (after_seq, -1 if limit is None else limit)):
                left_bytes -= sum(len(value) for value in row if isinstance(value, str))
                if left_bytes < 0:
                    raise sqlite3.DatabaseError("events contain too much text")
                found.append(_event(row))
            return found[::-1]

    def attempt_starts(self) -> list[tuple[int, float]]:
        """Each attempt with the unix time of its start, in order."""
        query = (
            "SELECT attempt, ts FROM events WHERE type = 'attempt_started'"
            " AND attempt IS NOT NULL ORDER BY seq"
        )
        with self.open() as db:
            return [] if db is None else db.execute(query).fetchall()

    def _series(
        self, kind: Kind, metric: str, since_unix: float, until_unix: float, max_points: int
    ) -> dict[int, Series]:
        last = kind.metric(metric).column("last")
        with self.open() as db:
            span = _span(db, (kind,)) if db is not None else None
            if db is None or span is None or last not in columns_of(db, kind.table(TIERS[0])):
                return {}
            since, until = max(int(since_unix), span[0]), min(int(until_unix), span[1])
            if since > until:
                return {}
            # one view of all tiers: without it a row could move up a tier between two queries
            db.execute("BEGIN")
            points = _Points(kind, metric, *_choose(db, kind, since, until, max(2, max_points)))
            return points.read(db, since, until)

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection | None]:
        """The open file, or None where there is none yet."""
        with contextlib.ExitStack() as held:
            yield from self._open(held)

    def _open(self, held: contextlib.ExitStack) -> Iterator[sqlite3.Connection | None]:
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                db = self._connect(held)
                break
            except sqlite3.OperationalError as error:
                held.close()
                if not self.path.exists():
                    db = None
                    break
                if time.monotonic() > deadline:
                    raise DdptopError(f"{self.path} cannot be opened ({error})") from error
                time.sleep(0.02)
            except sqlite3.DatabaseError as error:
                raise _damaged(self.path, error) from error
        try:
            yield db
        except sqlite3.OperationalError as error:
            raise DdptopError(f"{self.path} cannot be read ({error})") from error
        except (ArithmeticError, TypeError, ValueError, MemoryError) as error:  # of another kind
            raise _damaged(self.path, error) from error
        except OSError as error:  # the file was removed while it was read
            raise DdptopError(f"{self.path} cannot be read ({error.strerror})") from error
        except sqlite3.DatabaseError as error:
            raise _damaged(self.path, error) from error
        finally:
            if db is not None:
                db.close()

    def _connect(self, held: contextlib.ExitStack) -> sqlite3.Connection | None:
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        for suffix in ("", "-wal", "-shm", "-journal"):
            _require_file(self.path.with_name(self.path.name + suffix), held)
        try:
            return self._check(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S))
        except sqlite3.OperationalError:
            # a copy of a live job's folder that cannot be written to: SQLite cannot make the file
            # beside it that WAL mode needs, and nothing will change under us either
            if os.access(self.path.parent, os.W_OK) or not _is_wal(self.path):
                raise
            return self._check(sqlite3.connect(f"{uri}&immutable=1", uri=True))

    def _check(self, db: sqlite3.Connection) -> sqlite3.Connection | None:
        """`db`, or None where its writer has not made the tables yet."""
        try:
            db.isolation_level = None
            distrust(db)
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                db.close()
                return None
            check_schema(db, self.path)
        except BaseException:
            db.close()
            raise
        return db


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Prove that `db` is a history of a version that is known here.

    Raises:
        DamagedFileError: when a newer ddptop wrote it.
        sqlite3.DatabaseError: when it is no history.
    """
    try:
        row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        version = int(row[0])
    except (TypeError, ValueError) as error:
        raise sqlite3.DatabaseError("no schema version") from error
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            raise sqlite3.DatabaseError("unexpected tables") from error
        raise
    if version > HISTORY_SCHEMA:
        raise DamagedFileError(
            f"{path} has schema {version}, but this ddptop supports only up to {HISTORY_SCHEMA}",
            "upgrade ddptop",
        )


def distrust(db: sqlite3.Connection) -> None:
    """Let a file that somebody else may have made run no code of its own, and not for ever.

    Raises:
        sqlite3.DatabaseError: when it holds more than tables and what belongs to them.
    """
    db.execute("PRAGMA trusted_schema=OFF")
    if sys.version_info >= (3, 11):
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
    started_s = time.thread_time()  # CPU time: a busy machine is no reason to give up
    db.set_progress_handler(lambda: time.thread_time() - started_s > MOST_CPU_S, PROGRESS_STEPS)
    db.execute(f"PRAGMA hard_heap_limit={HEAP_BYTES}")  # one call of a function is not interrupted
    # what it is to be is in `sql` alone: the other columns may say anything
    (others,) = db.execute(
        "SELECT count(*) FROM sqlite_master WHERE NOT"
        " (type = 'table' AND sql LIKE 'CREATE TABLE %' OR type = 'index' AND sql IS NULL)"
    ).fetchone()
    tables = ["meta", "events", *(kind.table(tier) for kind in KINDS for tier in TIERS)]
    columns = (row for table in tables for row in db.execute(f"PRAGMA table_xinfo({table})"))
    if others or any(column[6] for column in columns):  # computed at each look
        raise sqlite3.DatabaseError("unexpected database objects")


def _require_file(path: Path, held: contextlib.ExitStack) -> None:
    """SQLite would wait at a pipe until somebody writes to it, and at a file under a lease.

    Another user's file is kept open until `held` ends, so that its owner can take no lease on it.
    One's own is not: to close it would drop the locks that this process has on it.
    """
    try:
        found = path.lstat()
    except OSError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise sqlite3.DatabaseError(f"{path.name} is not a regular file")
    if found.st_uid != os.geteuid():
        try:
            held.callback(os.close, bounded.open_regular(path, can_write=True))
        except OSError as error:
            raise sqlite3.DatabaseError(f"{path.name}: {error.strerror}") from error


def _damaged(path: Path, error: Exception) -> DamagedFileError:
    return DamagedFileError(
        f"{path} is not a valid history ({error})", "move it away to continue without it"
    )


def _is_wal(path: Path) -> bool:
    """Whether the file's header says that a WAL belongs to it."""
    try:
        with os.fdopen(bounded.open_regular(path), "rb") as file:
            return file.read(20)[18:20] == b"\x02\x02"
    except OSError:
        return False


def _event(row: tuple[Any, ...]) -> Event:
    values = dict(zip(EVENT_COLUMNS, row, strict=True))
    try:
        values["ts"] = utc_from_unix(values["ts"])
        if values["data"] is not None:
            values["data"] = msgspec.json.decode(values["data"])
        event = msgspec.convert(values, Event)
    except (
        ArithmeticError,
        ValueError,
        TypeError,
        OSError,
        RecursionError,
    ) as error:  # or of msgspec, a ValueError
        raise sqlite3.DatabaseError(f"an event is invalid ({error})") from error
    if not is_time(event.ts):
        raise sqlite3.DatabaseError(f"event {event.seq} has a time out of range")
    return event


def _edges(db: sqlite3.Connection, kind: Kind, tier: Tier) -> tuple[int, int] | None:
    """Starts of the first and the last bucket of a tier."""
    table = kind.table(tier)  # two queries: SQLite looks up a lone min or max in the key
    (first,) = db.execute(f"SELECT min(t) FROM {table}").fetchone()
    (last,) = db.execute(f"SELECT max(t) FROM {table}").fetchone()
    return None if first is None else (first, last)


def _span(db: sqlite3.Connection, kinds: tuple[Kind, ...]) -> tuple[int, int] | None:
    spans = [span for kind in kinds if (span := _kind_span(db, kind)) is not None]
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def _kind_span(db: sqlite3.Connection, kind: Kind) -> tuple[int, int] | None:
    """First and last sample of a kind, as exactly as the tiers that reach so far back know it."""
    first = last = None
    coarser_s = 0
    for tier in reversed(TIERS):
        edges = _edges(db, kind, tier)
        if edges is None:
            continue
        if first is None or edges[0] < first + coarser_s:
            first, coarser_s = edges[0], tier.width_s
        last = edges[1] if last is None else max(last, edges[1])
    return None if first is None or last is None else (first, last)


def _choose(
    db: sqlite3.Connection, kind: Kind, since: int, until: int, max_points: int
) -> tuple[int, int]:
    """The tier (its level) to read a span from, and the width of a point.

    A coarser tier answers as well as a finer one when a point spans its buckets anyway, and costs
    less. Otherwise the finest one that still reaches back to `since`.
    """
    choices = []
    for level, tier in enumerate(TIERS):
        edges = _edges(db, kind, tier)
        if edges is not None and edges[0] <= since + tier.width_s:
            choices.append((level, bucket_width(since, until, max_points, tier.width_s)))
    if not choices:
        return 0, bucket_width(since, until, max_points, TIERS[0].width_s)
    finest_width = choices[0][1]
    return [choice for choice in choices if choice[1] <= 1.25 * finest_width][-1]


def bucket_width(since: int, until: int, max_points: int, step_s: int) -> int:
    """A multiple of `step_s` that cuts since..until into at most `max_points` buckets.

    Buckets start at multiples of their width, so that points stay where they are when the span
    moves on: the span may begin and end inside a bucket, which costs one point.
    """
    steps = -(-(until - since) // ((max_points - 1) * step_s))
    return max(1, steps) * step_s


_COLUMNS = ("t", "min", "mean", "max", "last", "attempt", "step")
"""Of a series, as rows are gathered."""


class _Points:
    """Gathers the points of one metric from a tier, and from finer ones where it ends."""

    def __init__(self, kind: Kind, metric: str, level: int, bucket_s: int) -> None:
        self._kind = kind
        self._level = level
        self._bucket_s = bucket_s
        chosen = kind.metric(metric)
        self._low, self._mean, self._high, self._last = (chosen.column(a) for a in SPREAD)
        self._nonfinite = "sum(loss_nonfinite)" if metric == "loss" else "NULL"
        self._step = "step" if kind.name == "rank" else "NULL"
        self._points: dict[tuple[int, int], list[Any]] = {}
        """(subject, bucket) → [min, sum of means, weight, max, last, attempt, nonfinite, step]."""

    def read(self, db: sqlite3.Connection, since: int, until: int) -> dict[int, Series]:
        """The series from the start of the bucket that holds `since` to `until`."""
        start, end = since - since % self._bucket_s, until + 1
        for level in range(self._level, -1, -1):
            tier = TIERS[level]
            self._gather(db, tier, start, end)
            if (edges := _edges(db, self._kind, tier)) is not None:
                start = max(start, edges[1] + tier.width_s)
        return self._series()

    def _gather(self, db: sqlite3.Connection, tier: Tier, start: int, end: int) -> None:
        table, subject = self._kind.table(tier), self._kind.name
        query = f"""
            WITH points AS (
                SELECT {subject} AS subject, t / {self._bucket_s} AS bucket,
                    min({self._low}) AS low, avg({self._mean}) AS mean,
                    count({self._mean}) AS n, max({self._high}) AS high,
                    max(CASE WHEN {self._last} IS NOT NULL THEN t END) AS last_t,
                    {self._nonfinite} AS nonfinite
                FROM {table} WHERE t >= ? AND t < ? GROUP BY bucket, subject)
            SELECT subject, bucket, low, mean, n, high, {self._last}, attempt, nonfinite,
                {self._step}
            FROM points LEFT JOIN {table} ON {table}.t = last_t AND {table}.{subject} = subject
            """
        for who, bucket, low, mean, n, high, last, attempt, nonfinite, step in db.execute(
            query, (start, end)
        ):
            point = self._points.get((who, bucket))
            weight = n * tier.width_s
            if point is None:
                if len(self._points) >= MOST_POINTS:
                    raise sqlite3.DatabaseError("too many ranks")
                total = mean * weight if n else 0.0
                self._points[who, bucket] = [
                    *(low, total, weight, high, last, attempt, nonfinite or 0, step),
                ]
                continue
            if n:
                point[0] = low if point[0] is None else min(point[0], low)
                point[1] += mean * weight
                point[2] += weight
                point[3] = high if point[3] is None else max(point[3], high)
                point[4], point[5], point[7] = last, attempt, step
            point[6] += nonfinite or 0

    def _series(self) -> dict[int, Series]:
        rows: dict[int, list[tuple[Any, ...]]] = {}
        nonfinite_t: dict[int, list[int]] = {}
        width_s = self._bucket_s
        for (who, bucket), point in sorted(self._points.items()):
            low, total, weight, high, last, attempt, nonfinite, step = point
            if nonfinite:
                nonfinite_t.setdefault(who, []).append(bucket * width_s)
            if weight:
                row = (bucket * width_s, low, total / weight, high, last, attempt, step)
                rows.setdefault(who, []).append(row)
        series = {}
        for who in sorted({*rows, *nonfinite_t}):
            columns = map(list, zip(*rows.get(who, ()), strict=True))
            named = dict(zip(_COLUMNS, columns, strict=False))  # none where there is no row
            bad = nonfinite_t.get(who, [])
            series[who] = Series(bucket_s=width_s, nonfinite_t=bad, **named)
        return series
