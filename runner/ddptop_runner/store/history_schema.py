"""The tables of `history.db` and the arithmetic that fills them.

Two kinds of subjects, ranks and devices, and one table per kind and tier: `rank_1s`, `gpu_60s`, ...
A row holds every metric of one subject in one bucket. Buckets start at multiples of their width,
in unix seconds. A row of a coarse tier exists only once its bucket is over, so that a reader finds
what follows it in the next finer tier.
"""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec

from ddptop_runner.model.devices import GpuSample
from ddptop_runner.model.snapshot import RankSample

HISTORY_SCHEMA = 1
"""Version of the tables, kept in `meta` under the key `schema`."""

Row = tuple[Any, ...]
"""Bucket start, subject, attempt, then a number or None for each metric column of the kind."""


class Tier(msgspec.Struct, frozen=True):
    """One resolution of the history."""

    name: str
    """Suffix of its tables."""
    width_s: int
    """Length of a bucket; a multiple of the next finer tier's."""
    keep_s: int | None
    """Rows older than this are deleted; None keeps them for ever."""


TIERS = (
    Tier("1s", 1, 3600),
    Tier("10s", 10, 86_400),
    Tier("60s", 60, None),
    Tier("600s", 600, None),
)
"""From fine to coarse. The last one is there for the first look at a run of weeks: reading all of
it costs a tenth of what the 60 s tier would."""

Aggregate = Literal["min", "mean", "max", "last", "sum"]
SPREAD: tuple[Aggregate, ...] = ("min", "mean", "max", "last")


class Metric(msgspec.Struct, frozen=True):
    """One figure of a subject."""

    name: str
    """Name of the sample's field and of the columns, `<name>_<aggregate>`."""
    sql_type: Literal["REAL", "INTEGER"] = "REAL"
    aggregates: tuple[Aggregate, ...] = SPREAD

    def column(self, aggregate: Aggregate) -> str:
        """The column that answers for `aggregate`; of a metric with one aggregate always that."""
        return self.name if len(self.aggregates) == 1 else f"{self.name}_{aggregate}"

    @property
    def columns(self) -> list[str]:
        """Its columns in the order of `aggregates`."""
        return [self.column(aggregate) for aggregate in self.aggregates]


class Kind(msgspec.Struct, frozen=True, dict=True):
    """Subjects of one sort, with the metrics that are kept of them."""

    name: Literal["rank", "gpu"]
    """Prefix of the tables and name of the subject's column."""
    metrics: tuple[Metric, ...]

    def table(self, tier: Tier) -> str:
        """Name of the table of one tier."""
        return f"{self.name}_{tier.name}"

    @cached_property
    def columns(self) -> list[str]:
        """All columns of its tables, in order."""
        names = [column for metric in self.metrics for column in metric.columns]
        return ["t", self.name, "attempt", *names]

    @cached_property
    def mergers(self) -> list[Callable[[Sequence[Any]], Any]]:
        """How each column from `attempt` on is made from those of finer rows."""
        functions = [
            _mean_int if (metric.sql_type, aggregate) == ("INTEGER", "mean") else _MERGE[aggregate]
            for metric in self.metrics
            for aggregate in metric.aggregates
        ]
        return [_MERGE["last"], *functions]

    def metric(self, name: str) -> Metric:
        """The metric of that name.

        Raises:
            ValueError: naming the metrics that there are.
        """
        for metric in self.metrics:
            if metric.name == name:
                return metric
        known = ", ".join(metric.name for metric in self.metrics)
        raise ValueError(f"{name!r} is not recorded per {self.name}; choose from {known}")


RANK = Kind(
    "rank",
    (
        Metric("step", "INTEGER", ("last",)),
        Metric("loss_nonfinite", "INTEGER", ("sum",)),
        Metric("loss"),
        Metric("step_time_s"),
        Metric("data_wait_s"),
        Metric("cpu_percent"),
        Metric("rss_bytes", "INTEGER"),
        # what was added since the first history is at the end, where ALTER TABLE puts it
        Metric("sync_s", aggregates=("mean",)),
        Metric("compute_s", aggregates=("mean",)),
        Metric("log_bytes", "INTEGER", ("last",)),
    ),
)
GPU = Kind(
    "gpu",
    (
        Metric("util_percent"),
        Metric("mem_used_bytes", "INTEGER"),
        Metric("temperature_c"),
        Metric("power_w"),
    ),
)
KINDS = (RANK, GPU)

_EVENTS_DDL = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, ts REAL NOT NULL, type TEXT NOT NULL, attempt INTEGER,
    rank INTEGER, pid INTEGER, exit_code INTEGER, signal TEXT, message TEXT NOT NULL, evidence TEXT,
    data TEXT
)"""
EVENT_COLUMNS = (
    "seq", "ts", "type", "attempt", "rank", "pid", "exit_code", "signal", "message", "evidence",
    "data",
)  # fmt: skip
"""`data` is a JSON object; NULL in rows, and missing in files, of earlier versions."""


def ddl() -> Iterator[str]:
    """The statements that make an empty history."""
    yield "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
    yield f"INSERT INTO meta VALUES ('schema', '{HISTORY_SCHEMA}')"
    yield _EVENTS_DDL
    for kind in KINDS:
        metrics = ", ".join(
            f"{column} {metric.sql_type}" for metric in kind.metrics for column in metric.columns
        )
        for tier in TIERS:
            yield (
                f"CREATE TABLE {kind.table(tier)} (t INTEGER NOT NULL, {kind.name} INTEGER NOT"
                f" NULL, attempt INTEGER, {metrics}, PRIMARY KEY (t, {kind.name})) WITHOUT ROWID"
            )


def columns_of(db: sqlite3.Connection, table: str) -> list[str]:
    """The columns that a table of a file has: an old file lacks what was added later."""
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def additions(db: sqlite3.Connection) -> Iterator[str]:
    """The statements that add the columns which a history of an older ddptop lacks."""
    if "data" not in columns_of(db, "events"):
        yield "ALTER TABLE events ADD COLUMN data TEXT"
    for kind in KINDS:
        types = {column: metric.sql_type for metric in kind.metrics for column in metric.columns}
        for tier in TIERS:
            table = kind.table(tier)
            known = columns_of(db, table)
            for column, sql_type in types.items():
                if column not in known:
                    yield f"ALTER TABLE {table} ADD COLUMN {column} {sql_type}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_int(values: Sequence[float]) -> int:
    return round(_mean(values))


_MERGE: dict[Aggregate, Callable[[Sequence[Any]], Any]] = {
    "min": min,
    "mean": _mean,
    "max": max,
    "last": operator.itemgetter(-1),
    "sum": sum,
}


def merge_rows(kind: Kind, t: int, rows: Sequence[Row]) -> Row:
    """One row of a coarser bucket that starts at `t`, from its finer rows in order of time.

    Unknown values are left out; a mean is the mean of the finer rows' means.
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
_LOSS_MIN = RANK.columns.index("loss_min")
_LOSS_MAX = RANK.columns.index("loss_max")


def _is_finite(value: float | None) -> bool:
    """Whether `value` is a number; faster here than math.isfinite, which takes no None."""
    return value is not None and value - value == 0


def _finite(value: float | None) -> float | None:
    return value if _is_finite(value) else None


def _spread(values: Iterable[float | None], row: list[Any]) -> None:
    """Append each value as the min, mean, max and last of a single sample."""
    for value in values:
        if value is None or value - value != 0:
            row += _NOTHING
        else:
            row += (value, value, value, value)


def rank_row(t: int, attempt: int | None, sample: RankSample) -> Row:
    """The row of one sample of a rank. A loss that is not finite is counted and left out."""
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


def gpu_row(t: int, attempt: int | None, sample: GpuSample) -> Row:
    """The row of one sample of a device."""
    row: list[Any] = [t, sample.index, attempt]
    _spread(_gpu_spreads(sample), row)
    return tuple(row)


Completed = dict[str, list[Row]]
"""Rows to be stored, by table."""


class RollUp:
    """The open buckets of one kind, in memory: nothing is read back to be rolled up."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.unsaved = False
        """Whether the open second holds samples that `open_rows` has not given out since the
        owner cleared this."""
        self._second: int | None = None
        self._samples: dict[int, list[Row]] = {}
        """By subject: the samples of that second."""
        self._starts: list[int | None] = [None] * len(TIERS)
        """By tier: the start of its open bucket; unused for the finest."""
        self._finer: list[dict[int, list[Row]]] = [{} for _ in TIERS]
        """By tier, by subject: the finer rows of its open bucket."""

    def add(self, second: int, rows: Iterable[Row], completed: Completed) -> None:
        """Take the samples of one moment; buckets that are over by then join `completed`.

        `second` never lies before that of the call before, unless `close_all` came between.
        """
        if second != self._second:
            if self._second is not None:
                self._close_second(second, completed)
            self._second = second
        for row in rows:
            self._samples.setdefault(row[1], []).append(row)
            self.unsaved = True

    def open_rows(self) -> list[Row]:
        """The rows of the second that is being filled, as far as it is known."""
        return [
            rows[0] if len(rows) == 1 else merge_rows(self.kind, rows[0][0], rows)
            for rows in self._samples.values()
        ]

    def close_all(self, completed: Completed) -> None:
        """End every open bucket, for a clock that has been set back: what follows starts anew."""
        self._close_second(None, completed)
        self._second = None

    def restore(self, level: int, rows: Iterable[Row]) -> None:
        """Put stored rows of the tier below `level` back into its open bucket (0: the second)."""
        for row in rows:
            if level == 0:
                self._second = row[0]
                self._samples.setdefault(row[1], []).append(row)
            else:
                self._starts[level] = row[0] - row[0] % TIERS[level].width_s
                self._finer[level].setdefault(row[1], []).append(row)

    def _close_second(self, now: int | None, completed: Completed) -> None:
        """Carry the second up through the tiers, ending the buckets that `now` lies beyond.

        `now` None ends them all.
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
