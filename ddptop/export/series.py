"""Every figure that a job's history holds, as rows: for spreadsheets, scripts, and TensorBoard."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from ddptop.sources.history import points_of
from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.model.words import Base
from ddptop_runner.store.history_reader import HistoryReader, Series
from ddptop_runner.store.history_schema import RANK

METRICS = (
    "loss", "step_time_s", "data_wait_s", "sync_s", "compute_s", "cpu_percent", "rss_bytes",
)  # fmt: skip
"""Metrics of ranks; `step` is a column of every row."""
MOST_POINTS = 500_000
"""Of one metric; a longer history is read at a lower resolution."""


class Row(Base, frozen=True, kw_only=True):
    """One value of one metric."""

    at: dt.datetime
    """Start of the interval that it stands for."""
    interval_s: int
    """1 in the last hours, more before: the history keeps means of old seconds."""
    attempt: int | None
    step: int | None
    """Steps since the attempt began."""
    rank: int | None
    """Null for values of the whole job."""
    name: str
    """The metric, or the name under which the job reported it."""
    value: float | None
    """Mean over the interval; null if it was NaN or infinite."""


COLUMNS = Row.__struct_fields__


def rows(reader: HistoryReader) -> Iterator[Row]:
    """All rows, by metric and rank, each in order of time.

    Raises:
        DdptopError: the history cannot be read.
    """
    span = reader.span()
    if span is None:
        return
    until = span[1] + 1
    for name in METRICS:
        for rank, series in sorted(reader.series(RANK, name, 0, until, MOST_POINTS).items()):
            yield from _rows(name, rank, series)
    for name, series in reader.scalar_series(0, until, MOST_POINTS).items():
        yield from _rows(name, None, series)


def _rows(name: str, rank: int | None, series: Series) -> Iterator[Row]:
    found = points_of(series)
    columns = (found.t, found.attempt, found.step, found.mean)
    for t, attempt, step, value in zip(*columns, strict=True):
        yield Row(
            at=utc_from_unix(t - series.bucket_s / 2),
            interval_s=series.bucket_s,
            attempt=attempt,
            step=step,
            rank=rank,
            name=name,
            value=value,
        )


def write_csv(found: Iterable[Row], file: TextIO) -> None:
    """Write a header and the rows."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    for row in found:
        values = {**{name: getattr(row, name) for name in COLUMNS}, "at": row.at.isoformat()}
        table.writerow(["" if value is None else value for value in values.values()])


def write_tensorboard(found: Iterable[Row], folder: Path) -> int:
    """Write one run per rank and attempt, and one for values of the whole job.

    Returns:
        The number of values.

    Raises:
        UsageError: TensorBoard is not installed.
        DdptopError: the folder cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise UsageError("TensorBoard is not installed", "run pip install tensorboard") from None
    writers: dict[str, EventFileWriter] = {}
    number = 0
    try:
        for row in found:
            if row.value is None:
                continue
            attempt = "" if row.attempt is None else f"/attempt-{row.attempt}"
            run = f"rank-{row.rank}{attempt}" if row.rank is not None else f"job{attempt}"
            if run not in writers:
                writers[run] = EventFileWriter(str(folder / run))
            value = Summary.Value(tag=row.name, simple_value=row.value)
            writers[run].add_event(
                Event(
                    wall_time=row.at.timestamp(), step=row.step or 0, summary=Summary(value=[value])
                )
            )
            number += 1
        for writer in writers.values():
            writer.close()
    except OSError as error:
        raise DdptopError(f"{folder} cannot be written ({error.strerror})") from error
    return number
