"""Reads `history.db` beside a live writer, or long after.

`HistoryReader` returns series of a metric, events, attempts, and the rows of one moment.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import LATEST_UNIX_S, is_time, utc_from_unix
from ddptop_runner.base.errors import DamagedFileError, DdptopError, OtherSchemaError
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history_schema import (
    EVENT_COLUMNS,
    GPU,
    HISTORY_SCHEMA,
    JOB,
    KINDS,
    RANK,
    SAMPLED,
    SCALAR,
    SPREAD,
    TIERS,
    Kind,
    Tier,
)

MOST_CPU_S = 5.0
"""CPU time of this thread for one read of a history."""
PROGRESS_STEPS = 100_000
"""Instructions of SQLite's virtual machine between checks of the CPU time."""
LONGEST_VALUE_BYTES = 4 << 20
"""Maximum length of a text in the history."""
HEAP_BYTES = 128 << 20
"""Maximum memory of SQLite, whatever its functions are asked to create."""
EVENTS_BYTES = 64 << 20
"""Total size of the texts of all events."""
MOST_POINTS = 1_000_000
"""Total over all series of one metric."""
BUSY_TIMEOUT_S = 2.0
"""How long a read waits for a writer that opens, recovers, or closes the file."""
HELD_S = 3
"""A second without a sample shows the one before, if it is no older than this."""
RATE_OVER_S = 10
"""Steps per second are measured over this time, if every second is recorded."""
LAST_STEP_WITHIN_S = 3600
"""How far back to search for the last step of up to `LAST_STEP_RANKS` ranks."""
LAST_STEP_RANKS = 8


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one rank or device over time, as parallel lists, oldest first.

    A bucket without a known value has no point, so a gap in time is a gap in the lists.
    """

    bucket_s: int
    """Length of a point's bucket; there is a gap between points that are further apart."""
    t: list[int] = []
    """Unix seconds at which each bucket starts; a multiple of `bucket_s`."""
    min: list[float] = []
    mean: list[float] = []
    max: list[float] = []
    last: list[float] = []
    attempt: list[int | None] = []
    """The attempt that `last` belongs to."""
    step: list[int | None] = []
    """For ranks, the step at that time, counted from the start of that attempt."""
    nonfinite_t: list[int] = []
    """For the loss, buckets in which it was NaN or infinite, whether or not they have a point."""
    nonfinite_step: list[int | None] = []
    nonfinite_attempt: list[int | None] = []


class AttemptTaken(msgspec.Struct, frozen=True):
    """One attempt with the number of steps in it."""

    attempt: int
    started: float
    """Unix seconds."""
    taken: int | None
    """None if no rank ever reported a step."""


Rows = Mapping[int, Mapping[str, Any]]
"""By rank or device, the columns of its row."""


class LastStep(msgspec.Struct, frozen=True, kw_only=True):
    """The last step before a moment."""

    since: float
    """Unix seconds."""
    usual_s: float | None = None
    """The step time at that moment."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one moment."""

    width_s: int | None = None
    """Length of the bucket of the ranks' figures; None if nothing was recorded."""
    ranks: Rows = {}
    gpus: Rows = {}
    earlier: Rows = {}
    """For ranks, `RATE_OVER_S` earlier; empty if unknown."""
    last_step: LastStep | None = None
    """None while there are steps, or if unknown."""


class HistoryReader:
    """Reads one job's history. Confined to one thread.

    Every read opens the file again (0.3 ms), so that no viewer keeps the writer from leaving WAL
    mode when the job ends, and a replaced file is noticed. A missing file reads as an empty
    history.

    All methods raise DamagedFileError if the file is not a history or is from a newer ddptop, and
    DdptopError if it remains locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def span(self) -> tuple[int, int] | None:
        """Unix seconds of the first and the last sample, or None without samples."""
        with self.open() as db:
            return _span(db, SAMPLED) if db is not None else None

    def series(
        self,
        kind: Kind,
        metric: str,
        since_unix: float,
        until_unix: float,
        max_points: int,
        only: Sequence[int] = (),
    ) -> dict[Any, Series]:
        """A metric of every subject with a value in the span, by its number or name.

        A device's number is from `history_schema.device_number`: on one machine, its index.

        Args:
            kind: RANK, GPU, SCALAR, or JOB of `history_schema`.
            metric: one of its metrics.
            since_unix: start of the span; 0 is the beginning of the history.
            until_unix: end of the span, inclusive.
            max_points: maximum number of points per series; at least 2.
            only: some of the ranks or devices; empty for all.

        Raises:
            ValueError: there is no such metric.
        """
        kind.metric(metric)
        with self.open() as db:
            span = _span(db, (kind,)) if db is not None else None
            if db is None or span is None:
                return {}
            since, until = max(int(since_unix), span[0]), min(int(until_unix), span[1])
            if since > until:
                return {}
            # a consistent view: otherwise a row could move up a tier between two queries
            db.execute("BEGIN")
            level, width_s = _choose(db, kind, since, until, max(2, max_points))
            start, tiers = since - since % width_s, TIERS[: level + 1]
            parts = _parts(db, kind, start, until + 1, width_s, only, tiers)
            return _series(db, kind, metric, parts, width_s)

    def losses(self, since_unix: float, until_unix: float, max_points: int) -> Series | None:
        """The loss of all ranks together: minimum, mean of the medians, and maximum.

        The arguments and errors are those of `series`.
        """
        return self.series(JOB, "loss", since_unix, until_unix, max_points).get(0)

    def scalar_series(
        self, since_unix: float, until_unix: float, max_points: int
    ) -> dict[str, Series]:
        """The job's scalars by name, in order of their first point.

        The arguments and the errors are those of `series`. A value that lasts has a point
        every `history.SAME_S`, one of an evaluation where it was reported. Minimum and maximum
        are over all ranks that report it.
        """
        found = self.series(SCALAR, "value", since_unix, until_unix, max_points)
        named = [
            (one.t[0], name, one)
            for name, one in found.items()
            if isinstance(name, str) and name.isprintable()
        ]
        return {name: one for _, name, one in sorted(named, key=lambda one: one[:2])}

    def events(
        self, after_seq: int = 0, limit: int | None = None, *, silent: bool = False
    ) -> list[Event]:
        """The latest `limit` events after `after_seq`, in order.

        Args:
            after_seq: the last known one, numbered with the same `silent`.
            limit: maximum number.
            silent: include events that only change the job's state and are not shown to users.
                Without them, the others are numbered as if they did not exist.
        """
        key, columns = "seq" if silent else "number", ", ".join(EVENT_COLUMNS[1:])
        query = f"SELECT {key}, {columns} FROM events WHERE {key} > ? ORDER BY {key} DESC LIMIT ?"
        with self.open() as db:
            if db is None:
                return []
            found: list[Event] = []
            left_bytes = EVENTS_BYTES
            for row in db.execute(query, (after_seq, -1 if limit is None else limit)):
                left_bytes -= sum(len(value) for value in row if isinstance(value, str))
                if left_bytes < 0:
                    raise sqlite3.DatabaseError("events contain too much text")
                found.append(_event(row))
            return found[::-1]

    def attempt_starts(self) -> list[tuple[int, float]]:
        """Each attempt with the Unix time of its start, in order."""
        query = (
            "SELECT attempt, ts FROM events WHERE type = 'attempt_started'"
            " AND attempt IS NOT NULL ORDER BY seq"
        )
        with self.open() as db:
            return [] if db is None else db.execute(query).fetchall()

    def figures_at(self, at: int) -> Figures:
        """The samples of one moment, from the finest tier that reaches back that far."""
        with self.open() as db:
            if db is None:
                return Figures()
            db.execute("BEGIN")
            tier, t, ranks = _rows_at(db, RANK, at)
            gpus = _rows_at(db, GPU, at)[2]
            if tier is None or t is None:
                return Figures(gpus=gpus)
            earlier = _rows_of(db, RANK, tier, t - RATE_OVER_S) if tier is TIERS[0] else {}
            last_step = _last_step_before(db, tier, t, ranks, earlier)
            return Figures(
                width_s=tier.width_s, ranks=ranks, gpus=gpus, earlier=earlier, last_step=last_step
            )

    def recorded(self, points: int) -> list[tuple[int, int]]:
        """Spans with samples, in Unix seconds, as precisely as `points` can show.

        There is a gap between any two of them.
        """
        spans: list[tuple[int, int]] = []
        with self.open() as db:
            if db is None or (span := _kind_span(db, RANK)) is None:
                return []
            db.execute("BEGIN")
            level, width_s = _choose(db, RANK, *span, max(2, points))
            for part in _parts(db, RANK, span[0], span[1] + 1, width_s, tiers=TIERS[: level + 1]):
                held_s = HELD_S if part.tier is TIERS[0] else part.tier.width_s
                for (t,) in db.execute(_BUCKETS.format(rows=part.rows)):
                    if spans and t <= spans[-1][1]:
                        spans[-1] = (spans[-1][0], t + held_s)
                    else:
                        spans.append((t, t + held_s))
        return [(since, min(until, span[1] + 1)) for since, until in spans]

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection | None]:
        """The open file; None if there is none yet."""
        with contextlib.ExitStack() as held:
            db = self._connected(held)
            try:
                yield db
            except (sqlite3.OperationalError, OSError) as error:  # or removed while being read
                why = error.strerror if isinstance(error, OSError) else error
                raise DdptopError(f"{self.path} cannot be read ({why})") from error
            except _DAMAGE as error:
                raise _damaged(self.path, error) from error
            finally:
                if db is not None:
                    db.close()

    def _connected(self, held: contextlib.ExitStack) -> sqlite3.Connection | None:
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                return self._connect(held)
            except sqlite3.OperationalError as error:
                held.close()
                if not self.path.exists():
                    return None
                if time.monotonic() > deadline:
                    raise DdptopError(f"{self.path} cannot be opened ({error})") from error
                time.sleep(0.02)
            except sqlite3.DatabaseError as error:
                raise _damaged(self.path, error) from error

    def _connect(self, held: contextlib.ExitStack) -> sqlite3.Connection | None:
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        for suffix in ("", "-wal", "-shm", "-journal"):
            _require_file(self.path.with_name(self.path.name + suffix), held)
        return self._check(sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S))

    def _check(self, db: sqlite3.Connection) -> sqlite3.Connection | None:
        """`db`; None if its writer has not created the tables yet."""
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


_DAMAGE = (sqlite3.DatabaseError, ArithmeticError, TypeError, ValueError, MemoryError)
"""Errors from damage, including values of unexpected types."""


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Verify that `db` is a history of a known version.

    Raises:
        OtherSchemaError: another version of ddptop wrote it.
        sqlite3.DatabaseError: it is not a history.
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
    if version != HISTORY_SCHEMA:
        raise OtherSchemaError(
            f"{path} was written by another version of ddptop (schema {version}; supported:"
            f" {HISTORY_SCHEMA})",
            "use that version",
        )


def distrust(db: sqlite3.Connection) -> None:
    """Keep a file that someone else may have created from running its own code, or endlessly.

    Raises:
        sqlite3.DatabaseError: it contains more than tables and their indexes.
    """
    db.execute("PRAGMA trusted_schema=OFF")
    if sys.version_info >= (3, 11):
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
    started_s = time.thread_time()  # CPU time, so as not to give up on a busy machine
    db.set_progress_handler(lambda: time.thread_time() - started_s > MOST_CPU_S, PROGRESS_STEPS)
    db.execute(
        f"PRAGMA hard_heap_limit={HEAP_BYTES}"
    )  # a single function call cannot be interrupted
    # only `sql` matters: the other columns may contain anything
    (others,) = db.execute(
        "SELECT count(*) FROM sqlite_master WHERE NOT"
        " (type = 'table' AND sql LIKE 'CREATE TABLE %' OR type = 'index' AND sql IS NULL)"
    ).fetchone()
    tables = ["meta", "events", *(kind.table(tier) for kind in KINDS for tier in TIERS)]
    columns = (row for table in tables for row in db.execute(f"PRAGMA table_xinfo({table})"))
    if others or any(column[6] for column in columns):  # computed on each read
        raise sqlite3.DatabaseError("unexpected database objects")


def _require_file(path: Path, held: contextlib.ExitStack) -> None:
    """Refuse anything but a regular file: SQLite would wait for a pipe, or a file under a lease.

    Another user's file stays open until `held` ends, so that its owner cannot take a lease on it.
    One's own does not, since closing it would drop this process's locks on it.
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
    ) as error:  # or msgspec's, a ValueError
        raise sqlite3.DatabaseError(f"an event is invalid ({error})") from error
    if not is_time(event.ts):
        raise sqlite3.DatabaseError(f"event {event.seq} has a time out of range")
    return event


def _edges(db: sqlite3.Connection, kind: Kind, tier: Tier) -> tuple[int, int] | None:
    """Starts of the first and last bucket of a tier, without impossible ones."""
    rows = f"FROM {kind.table(tier)} WHERE t BETWEEN 0 AND {LATEST_UNIX_S}"
    # two queries, since SQLite looks up a single min or max in the key
    (first,) = db.execute(f"SELECT min(t) {rows}").fetchone()
    (last,) = db.execute(f"SELECT max(t) {rows}").fetchone()
    return None if first is None else (first, last)


def _span(db: sqlite3.Connection, kinds: tuple[Kind, ...]) -> tuple[int, int] | None:
    spans = [span for kind in kinds if (span := _kind_span(db, kind)) is not None]
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def _kind_span(db: sqlite3.Connection, kind: Kind) -> tuple[int, int] | None:
    """First and last sample of a kind, as precisely as the tiers that reach that far back allow."""
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
    """(level of the tier to read a span from, width of a point).

    This is the coarsest tier if a point covers its buckets anyway, because it costs less, or else
    the finest one that reaches back to `since`.
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
    """A multiple of `step_s` that divides since..until into at most `max_points` buckets.

    Buckets start at multiples of their width, so that points do not move with the span. The span
    may start and end inside a bucket, which costs one point.
    """
    steps = -(-(until - since) // ((max_points - 1) * step_s))
    return max(1, steps) * step_s


class _Part(msgspec.Struct, frozen=True):
    """Rows of one tier."""

    tier: Tier
    rows: str
    """The text after FROM, with `r` as the table."""


def _parts(
    db: sqlite3.Connection,
    kind: Kind,
    start: int,
    end: int,
    width_s: int,
    subjects: Sequence[int] = (),
    tiers: Sequence[Tier] = TIERS,
) -> list[_Part]:
    """All rows in a span, from the coarsest sufficient tier, then from finer ones."""
    parts = []
    for tier in reversed(tiers):
        edges = _edges(db, kind, tier)
        if width_s % tier.width_s or edges is None or edges[1] + tier.width_s <= start:
            continue
        table = kind.table(tier)
        rows = f"{table} AS r WHERE r.t >= {start} AND r.t < {end}"
        if subjects:
            rows += f" AND r.{kind.name} IN ({', '.join(map(str, subjects))})"
        parts.append(_Part(tier, rows))
        start = edges[1] + tier.width_s
    return parts


def _series(
    db: sqlite3.Connection, kind: Kind, metric: str, parts: Sequence[_Part], width_s: int
) -> dict[Any, Series]:
    """By subject, its series."""
    low, mean, high, last = (kind.metric(metric).column(aggregate) for aggregate in SPREAD)
    step = "NULL" if kind is GPU else "l.step"
    bad = "sum(r.loss_nonfinite)" if metric == "loss" else "0"
    points: dict[tuple[int, int], list[Any]] = {}
    for part in parts:
        table, subject, tier_s = kind.table(part.tier), kind.name, part.tier.width_s
        query = f"""
            WITH points AS (
                SELECT r.{subject} AS who, r.t / {width_s} AS bucket, min(r.{low}) AS low,
                    total(r.{mean}) * {tier_s} AS total, count(r.{mean}) * {tier_s} AS weight,
                    max(r.{high}) AS high, {bad} AS bad,
                    coalesce(max(CASE WHEN r.{last} IS NOT NULL THEN r.t END), max(r.t)) AS last_t
                FROM {part.rows} GROUP BY bucket, who)
            SELECT who, bucket, bad, low, total, weight, high, l.{last}, l.attempt, {step}
            FROM points LEFT JOIN {table} AS l ON l.t = last_t AND l.{subject} = who
            """.replace("r.NULL", "NULL").replace("l.NULL", "NULL")
        for who, bucket, *new in db.execute(query):
            known = points.setdefault((who, bucket), new)
            if known is not new:
                points[who, bucket] = _merged(known, new)
            elif len(points) > MOST_POINTS:
                raise sqlite3.DatabaseError("it contains too many ranks")
    found: dict[Any, Series] = {}
    for (who, bucket), (bad_sum, low_, total, weight, *others) in sorted(points.items()):
        if not bad_sum and not weight:
            continue
        one, t = found.setdefault(who, Series(bucket_s=width_s)), bucket * width_s
        if bad_sum:
            append((one.nonfinite_t, one.nonfinite_attempt, one.nonfinite_step), (t, *others[-2:]))
        if weight:
            columns = (one.t, one.min, one.mean, one.max, one.last, one.attempt, one.step)
            append(columns, (t, low_, total / weight, *others))
    return found


def append(columns: Sequence[list[Any]], values: Sequence[Any]) -> None:
    """Add a point to the lists of a series."""
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _merged(old: list[Any], new: list[Any]) -> list[Any]:
    """Merge a bucket that starts in a coarser tier and continues in a finer one."""
    bad = (old[0] or 0) + (new[0] or 0)
    if not (old[3] and new[3]):
        return [bad, *(new if new[3] else old)[1:]]
    low, total, weight, high = (
        min(old[1], new[1]),
        old[2] + new[2],
        old[3] + new[3],
        max(old[4], new[4]),
    )
    return [bad, low, total, weight, high, *new[5:]]


_BUCKETS = """
    WITH RECURSIVE bucket(t) AS (
        SELECT min(r.t) FROM {rows}
        UNION ALL
        SELECT (SELECT min(r.t) FROM {rows} AND r.t > bucket.t) FROM bucket WHERE t IS NOT NULL)
    SELECT t FROM bucket WHERE t IS NOT NULL"""
"""Each bucket once, with one key lookup each, so that one row of a thousand ranks is read."""


def _rows_at(db: sqlite3.Connection, kind: Kind, at: int) -> tuple[Tier | None, int | None, Rows]:
    """(finest tier that reaches back to `at`, its bucket, the rows in it).

    (None, None, empty) if nothing was recorded.
    """
    for tier in TIERS:
        edges = _edges(db, kind, tier)
        if edges is None or at < edges[0]:
            continue
        held_s = HELD_S if tier is TIERS[0] else tier.width_s
        (t,) = db.execute(
            f"SELECT max(t) FROM {kind.table(tier)} WHERE t <= ? AND t > ?", (at, at - held_s)
        ).fetchone()
        return (None, None, {}) if t is None else (tier, t, _rows_of(db, kind, tier, t))
    return None, None, {}


def _rows_of(db: sqlite3.Connection, kind: Kind, tier: Tier, t: int) -> Rows:
    table = kind.table(tier)
    rows = db.execute(f"SELECT * FROM {table} WHERE t = ?", (t,))
    columns = [column for column, *_ in rows.description]
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    return {row[kind.name]: row for row in named}


def _last_step_before(
    db: sqlite3.Connection, tier: Tier, t: int, rows: Rows, earlier: Rows
) -> LastStep | None:
    """The last step up to bucket `t`; None if there was one recently."""
    steps = {rank: row["step"] for rank, row in rows.items() if row["step"]}
    moved = any(earlier.get(rank, {}).get("step") != step for rank, step in steps.items())
    if not steps or (tier is TIERS[0] and moved):
        return None
    before = (
        f"SELECT t, step_time_s_last FROM {RANK.table(tier)} WHERE {RANK.name} = ? AND t > ?"
        " AND t < ? AND (step IS NOT ? OR attempt IS NOT ?) ORDER BY t DESC LIMIT 1"
    )
    found = []
    for rank in sorted(steps)[:LAST_STEP_RANKS]:
        at = (rank, t - LAST_STEP_WITHIN_S, t, steps[rank], rows[rank]["attempt"])
        found.append(db.execute(before, at).fetchone())
    known = [row for row in found if row is not None]
    if not known:  # before the search limit, or before any record
        edges = _edges(db, RANK, tier)
        return LastStep(since=float(max(t - LAST_STEP_WITHIN_S, edges[0] if edges else 0)))
    last, usual_s = max(known, key=lambda row: row[0])
    return LastStep(since=float(last + tier.width_s), usual_s=usual_s)


# -- attempts --------------------------------------------------------------------------------------


def attempts_taken(
    reader: HistoryReader, *, printed: bool = False, known: Sequence[AttemptTaken] = ()
) -> list[AttemptTaken]:
    """All attempts in order.

    Args:
        reader: of the job's history.
        printed: whether steps come from the job's output, which may continue from a checkpoint;
            otherwise they count from the start of each attempt.
        known: an earlier result, which remains valid for attempts that had ended by then.

    Raises:
        DamagedFileError: the file is not a history.
        DdptopError: it remains locked.
    """
    starts = reader.attempt_starts()
    found: list[AttemptTaken] = []
    with reader.open() as db:
        if db is None:
            return found
        for place, (attempt, started) in enumerate(starts):
            if place + 1 < len(known) and known[place].started == started:
                found.append(known[place])
                continue
            end = int(starts[place + 1][1]) + 1 if place + 1 < len(starts) else None
            last = _last_step(db, attempt, end)
            first = (_first_step(db, attempt, started) or 0) if printed else 0
            taken = None if last is None else max(0, last - first)
            found.append(AttemptTaken(attempt, started, taken))
    return found


def _last_step(db: sqlite3.Connection, attempt: int, end: int | None) -> int | None:
    """The highest step in an attempt's last samples before `end`."""
    for tier in TIERS:
        table = RANK.table(tier)
        limit = "" if end is None else f" WHERE t < {end}"
        (last,) = db.execute(f"SELECT max(t) FROM {table}{limit}").fetchone()
        if last is None:
            continue
        # a bucket in which the next attempt starts belongs to that one
        (step,) = db.execute(
            f"SELECT max(step) FROM {table} WHERE t > ? AND t <= ? AND attempt = ?",
            (last - 5 * tier.width_s, last, attempt),
        ).fetchone()
        if step is not None:
            return int(step)
    return None


def _first_step(db: sqlite3.Connection, attempt: int, started: float) -> int | None:
    """The first step of an attempt."""
    found: list[tuple[int, int]] = []
    for tier in TIERS:
        row = db.execute(
            f"SELECT t, step FROM {RANK.table(tier)} WHERE t >= ? AND attempt = ?"
            " AND step IS NOT NULL ORDER BY t LIMIT 1",
            (int(started) - tier.width_s, attempt),
        ).fetchone()
        if row is not None:
            found.append((row[0] + tier.width_s, row[1]))
    # a bucket has its last step, so the one that ends first has the earliest
    return min(found)[1] if found else None
