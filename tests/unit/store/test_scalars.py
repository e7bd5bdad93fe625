"""Named values that a job reports are stored over time: validation losses, learning rates, etc."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from tests.support.histories import START, rank

from ddptop_runner.store.history import SAME_S, HistoryReader, HistoryWriter
from ddptop_runner.store.history_schema import MOST_SCALARS, SCALAR, TIERS

END = START + 100_000


def series(path, points=1000):
    return HistoryReader(path).scalar_series(START, END, points)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


def write(path, samples, attempt=0):
    """One rank's scalars, by second after START; one per sample."""
    writer = HistoryWriter(path, batch_s=60)
    for second, metrics in samples.items():
        writer.add(START + second, attempt, [rank(step=10 * second, metrics=metrics)], [])
    writer.close()


def test_each_new_value_is_read_with_its_step(path):
    write(path, {second: {"lr": 0.1 * second, "grad norm": 2.0} for second in range(1, 4)})
    found = series(path)
    assert list(found) == ["grad norm", "lr"]
    assert found["lr"].step == [10, 20, 30]
    assert found["lr"].mean == pytest.approx([0.1, 0.2, 0.3])
    assert found["grad norm"].t == [START + 1], "once, for it is the same"


def test_a_value_that_lasts_is_a_point_now_and_then_and_an_evaluation_once(path):
    write(path, {second: {"lr": 0.1, "val_loss": 3.0} for second in range(3 * SAME_S)})
    found = series(path)
    assert found["lr"].t == [START, START + SAME_S, START + 2 * SAME_S]
    assert found["val_loss"].t == [START]


def test_values_of_several_ranks_are_their_mean_between_least_and_greatest(path):
    writer = HistoryWriter(path)
    ranks = [rank(0, metrics={"a": None}), rank(1, metrics={"a": 1.0, "b": 2.0}), rank(2)]
    writer.add(START, 0, [*ranks, rank(3, metrics={"a": 9.0})], [])
    writer.close()
    found = {name: (one.min, one.mean, one.max) for name, one in series(path).items()}
    assert found == {"a": ([1.0], [5.0], [9.0]), "b": ([2.0], [2.0], [2.0])}


def test_an_evaluation_that_ranks_report_one_after_another_is_one_point(path):
    writer = HistoryWriter(path)
    for second, (one, other) in enumerate([(4.0, 6.0), (2.0, 6.0), (2.0, 4.0), (1.0, 4.0)]):
        samples = [rank(0, metrics={"val_loss": one}), rank(1, metrics={"val_loss": other})]
        writer.add(START + second, 0, samples, [])
    writer.add(START + 4, 0, samples, [])
    writer.close()
    found = series(path)["val_loss"]
    assert found.t == [START, START + 2, START + 4], "rank 1 is waited for once"
    assert found.mean == [5.0, 3.0, 2.5]


def test_an_evaluation_is_not_new_because_its_reports_become_known(path):
    writer = HistoryWriter(path)
    for second, reports in enumerate((None, 4, None, 4, 5)):
        known = {} if reports is None else {"val_loss": reports}
        sample = rank(metrics={"val_loss": 1.0}, metric_reports=known)
        writer.add(START + second, 0, [sample], [])
    writer.close()
    assert series(path)["val_loss"].t == [START, START + 4]


@pytest.mark.parametrize(("is_deleted", "points"), [(False, [START]), (True, [START + 2])])
def test_an_evaluation_is_repeated_only_in_a_new_file(path, is_deleted, points):
    writer = HistoryWriter(path)
    for second in range(3):
        writer.add(START + second, 0, [rank(metrics={"val_loss": 1.0})], [])
        if second == 1:
            writer._disconnect()
            if is_deleted:
                path.unlink()
            writer.flush()
    writer.close()
    assert series(path)["val_loss"].t == points


def test_many_and_unprintable_names_are_left_out(path):
    names = [f"x{number}" for number in range(MOST_SCALARS + 9)]
    write(path, {0: {"\x1b]0;": 1.0, **dict.fromkeys(names, 1.0)}})
    assert sorted(series(path)) == sorted(names[:MOST_SCALARS])


def test_long_runs_are_read_from_coarse_tiers(path):
    write(path, {second: {"lr": float(second)} for second in range(0, 9000, 5)})
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        (rows,) = db.execute(f"SELECT count(*) FROM {SCALAR.table(TIERS[1])}").fetchone()
    db.close()
    assert rows == 899
    found = series(path, 20)["lr"]
    assert len(found.t) <= 21
    assert found.mean[0] < found.mean[-1]
    assert found.last[-1] == 8995.0
