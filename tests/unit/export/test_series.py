"""The figures of a history as rows and files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from ddptop.export.series import COLUMNS, rows, write_csv, write_tensorboard
from tests.support.histories import START, rank

from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.store.history_reader import HistoryReader


@pytest.fixture
def history(tmp_path: Path) -> HistoryReader:
    """Two attempts of two ranks; rank 1's loss is NaN once."""
    path = tmp_path / "history.db"
    writer = HistoryWriter(path, batch_s=60)
    for attempt, second, step in ((0, 0, 1), (0, 1, 2), (1, 10, 1), (1, 11, 2)):
        is_bad = (attempt, step) == (1, 1)
        samples = [
            rank(0, loss=2.0 - step / 8, loss_state="ok", step=step, step_time_s=0.5),
            rank(
                1,
                loss=None if is_bad else 3.0,
                loss_state="nan" if is_bad else "ok",
                step=step,
                metrics={"accuracy": 0.25 * step},
                metric_reports={"accuracy": step},
            ),
        ]
        writer.add(START + second, attempt, samples, [])
    writer.close()
    return HistoryReader(path)


def test_every_value_has_its_place(history: HistoryReader) -> None:
    found = list(rows(history))
    losses = [(r.rank, r.attempt, r.step, r.value) for r in found if r.name == "loss"]
    assert losses == [
        (0, 0, 1, 1.875), (0, 0, 2, 1.75), (0, 1, 1, 1.875), (0, 1, 2, 1.75),
        (1, 0, 1, 3.0), (1, 0, 2, 3.0), (1, 1, 1, None), (1, 1, 2, 3.0),
    ]  # fmt: skip
    assert {row.value for row in found if row.name == "step_time_s"} == {0.5}
    accuracy = [(row.rank, row.value) for row in found if row.name == "accuracy"]
    assert accuracy[0] == (None, 0.25)
    assert {row.interval_s for row in found} == {1}


def test_csv_can_be_read_back(history: HistoryReader) -> None:
    text = io.StringIO()
    write_csv(rows(history), text)
    read = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert tuple(read[0]) == COLUMNS
    assert len(read) == len(list(rows(history)))
    assert (read[0]["rank"], read[0]["name"], read[0]["value"]) == ("0", "loss", "1.875")
    assert [row["value"] for row in read if row["name"] == "loss" and row["rank"] == "1"][2] == ""


@pytest.mark.filterwarnings("ignore")  # importing TensorBoard
def test_tensorboard_reads_what_was_written(history: HistoryReader, tmp_path: Path) -> None:
    number = write_tensorboard(rows(history), tmp_path / "tb")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = [row for row in rows(history) if row.value is not None]
    assert number == len(written)
    runs = {path.parent for path in (tmp_path / "tb").rglob("events.*")}
    names = {str(run.relative_to(tmp_path / "tb")) for run in runs}
    assert {"rank-0/attempt-0", "rank-0/attempt-1", "rank-1/attempt-0"} <= names
    accumulator = EventAccumulator(str(tmp_path / "tb" / "rank-0" / "attempt-1"))
    accumulator.Reload()
    read = [(one.step, one.value, one.wall_time) for one in accumulator.Scalars("loss")]
    assert read == [(1, 1.875, START + 10), (2, 1.75, START + 11)]


def test_an_empty_history_has_no_rows(tmp_path: Path) -> None:
    HistoryWriter(tmp_path / "history.db", batch_s=60).close()
    assert list(rows(HistoryReader(tmp_path / "history.db"))) == []
