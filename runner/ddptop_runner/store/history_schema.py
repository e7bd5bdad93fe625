"""The tables of `history.db`.

Four kinds of subjects, ranks, devices, scalars (a validation loss, a learning rate, whatever else a
script reports), and the job, and one table per kind and tier: `rank_1s`, `gpu_60s`, ...
A row holds every metric of one subject in one bucket. Buckets start at multiples of their width,
in unix seconds. A row of a coarse tier exists only once its bucket is over, so that a reader finds
what follows it in the next finer tier.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec

from ddptop_runner.model.snapshot import Event

DEVICES_OF_A_HOST = 1000
"""More than any machine has."""


def device_number(hosts: Sequence[str], host: str | None, index: int) -> int:
    """The number under which a device is recorded: each host numbers its own from 0.

    Args:
        hosts: `JobSpec.hosts`.
        host: of the device.
        index: its machine index.
    """
    place = hosts.index(host) if host is not None and host in hosts else 0
    return place * DEVICES_OF_A_HOST + index


HISTORY_SCHEMA = 4
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
"""From fine to coarse. The last one shortens the first read of a run of weeks to a tenth of what
the 60 s tier would take."""

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
    """One kind of subject, with its metrics."""

    name: Literal["rank", "gpu", "scalar", "job"]
    """Prefix of the tables and name of the subject's column."""
    metrics: tuple[Metric, ...]
    subject_type: Literal["INTEGER", "TEXT"] = "INTEGER"

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
SCALAR = Kind("scalar", (Metric("step", "INTEGER", ("last",)), Metric("value")), "TEXT")
"""What a job reports by name. A row is written when a value is new, so there may be long gaps."""
JOB = Kind(
    "job",
    (
        Metric("step", "INTEGER", ("last",)),
        Metric("loss_nonfinite", "INTEGER", ("sum",)),
        Metric("loss"),
    ),
)
"""All ranks together, as subject 0: the lowest, median, and highest loss of each second, and the
highest step. The mean of a coarser bucket is the mean of the medians."""
SAMPLED = (RANK, GPU)
"""Recorded every second in every history."""
KINDS = (*SAMPLED, SCALAR, JOB)
MOST_SCALARS = 64
"""Maximum number of names per job; later ones are ignored."""

EVENT_COLUMNS = ("seq", *(one for one in Event.__struct_fields__ if one not in ("schema", "seq")))
"""`data` is a JSON object."""
_EVENTS_DDL = (
    f"CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(EVENT_COLUMNS[1:])},"
    " number INTEGER UNIQUE)"
)
"""`number` counts the events that are shown to users, and is NULL for the others."""


def ddl() -> Iterator[str]:
    """The statements that make an empty history."""
    yield "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
    yield f"INSERT INTO meta VALUES ('schema', '{HISTORY_SCHEMA}')"
    yield _EVENTS_DDL
    for kind in KINDS:
        for tier in TIERS:
            yield _table_ddl(kind, tier)


def _table_ddl(kind: Kind, tier: Tier) -> str:
    metrics = ", ".join(
        f"{column} {metric.sql_type}" for metric in kind.metrics for column in metric.columns
    )
    return (
        f"CREATE TABLE {kind.table(tier)} (t INTEGER NOT NULL, {kind.name}"
        f" {kind.subject_type} NOT NULL, attempt INTEGER, {metrics},"
        f" PRIMARY KEY (t, {kind.name})) WITHOUT ROWID"
    )


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
