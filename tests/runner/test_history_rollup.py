"""The arithmetic of buckets and tiers, without a file."""

from __future__ import annotations

import pytest

from ddptop_runner.model.snapshot import GpuSample, RankSample
from ddptop_runner.store.history import (
    GPU,
    RANK,
    TIERS,
    Completed,
    RollUp,
    ddl,
    gpu_row,
    merge_rows,
    rank_row,
)


def rank_sample(**fields) -> RankSample:
    return RankSample(rank=3, local_rank=3, host="node", **fields)


def of(kind, row) -> dict:
    return dict(zip(kind.columns, row, strict=True))


def test_rows_have_one_value_per_column_and_tables_one_column_per_value():
    assert len(rank_row(0, None, rank_sample())) == len(RANK.columns)
    assert len(gpu_row(0, None, GpuSample(index=0))) == len(GPU.columns)
    tables = "\n".join(ddl())
    for kind in (RANK, GPU):
        for tier in TIERS:
            assert f"CREATE TABLE {kind.table(tier)} " in tables
    assert all(f"{column} " in tables for column in (*RANK.columns[3:], *GPU.columns[3:]))


def test_unknown_stays_unknown():
    row = of(RANK, rank_row(7, None, rank_sample()))
    assert {k: v for k, v in row.items() if v is not None} == {
        "t": 7,
        "rank": 3,
        "loss_nonfinite": 0,
    }


def test_a_sample_knows_the_losses_between_two_snapshots():
    row = of(RANK, rank_row(7, 0, rank_sample(loss=2.0, loss_min=1.0, loss_max=9.0)))
    assert [row[f"loss_{a}"] for a in ("min", "mean", "max", "last")] == [1.0, 2.0, 9.0, 2.0]


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": None, "loss_state": "nan"},
        {"loss": None, "loss_state": "inf"},
        {"loss": float("nan"), "loss_state": None},
        {"loss": float("-inf"), "loss_state": "ok"},
    ],
)
def test_a_loss_that_is_not_finite_is_counted_and_left_out(fields):
    row = of(RANK, rank_row(7, 0, rank_sample(**fields)))
    assert row["loss_nonfinite"] == 1
    assert [row[f"loss_{a}"] for a in ("min", "mean", "max", "last")] == [None] * 4


def test_extremes_that_are_not_finite_are_left_out():
    row = of(
        RANK, rank_row(7, 0, rank_sample(loss=2.0, loss_min=float("nan"), loss_max=float("inf")))
    )
    assert (row["loss_min"], row["loss_max"]) == (2.0, 2.0)


def test_merging_takes_extremes_mean_last_and_sum():
    rows = [
        rank_row(10, 0, rank_sample(step=1, loss=4.0, rss_bytes=10)),
        rank_row(11, 0, rank_sample(step=2, loss_state="nan", rss_bytes=13)),
        rank_row(12, 1, rank_sample(step=0, loss=1.0)),
    ]
    row = of(RANK, merge_rows(RANK, 10, rows))
    assert (row["t"], row["rank"], row["attempt"], row["step"]) == (10, 3, 1, 0)
    assert [row[f"loss_{a}"] for a in ("min", "mean", "max", "last")] == [1.0, 2.5, 4.0, 1.0]
    assert row["loss_nonfinite"] == 1
    assert row["rss_bytes_mean"] == 12 and isinstance(row["rss_bytes_mean"], int)
    assert row["cpu_percent_mean"] is None


def feed(rollup: RollUp, seconds) -> Completed:
    completed: Completed = {}
    for t in seconds:
        rollup.add(t, [gpu_row(t, 0, GpuSample(index=0, util_percent=t))], completed)
    return completed


def starts(completed: Completed, table: str) -> list[int]:
    return [row[0] for row in completed.get(table, [])]


def test_a_bucket_is_complete_only_once_time_has_passed_it():
    assert starts(feed(RollUp(GPU), range(20, 30)), "gpu_10s") == []
    completed = feed(RollUp(GPU), range(20, 31))
    assert starts(completed, "gpu_10s") == [20]
    assert starts(completed, "gpu_60s") == []
    row = of(GPU, completed["gpu_10s"][0])
    assert [row[f"util_percent_{a}"] for a in ("min", "mean", "max", "last")] == [20, 24.5, 29, 29]


def test_tiers_follow_one_another_also_over_a_gap():
    completed = feed(RollUp(GPU), [5, 65, 66, 1900])
    assert starts(completed, "gpu_1s") == [5, 65, 66]
    assert starts(completed, "gpu_10s") == [0, 60]
    assert starts(completed, "gpu_60s") == [0, 60]
    assert starts(completed, "gpu_600s") == [0]


def test_buckets_end_although_their_subject_has_gone():
    rollup = RollUp(GPU)
    completed = feed(rollup, [5])
    rollup.add(30, [], completed)
    assert starts(completed, "gpu_10s") == [0]
    assert starts(completed, "gpu_60s") == []
    rollup.add(700, [], completed)
    assert starts(completed, "gpu_60s") == [0]
    assert starts(completed, "gpu_600s") == [0]


def test_closing_all_ends_every_open_bucket():
    rollup = RollUp(GPU)
    completed = feed(rollup, [1000, 1001])
    rollup.close_all(completed)
    assert [starts(completed, GPU.table(tier)) for tier in TIERS] == [
        [1000, 1001],
        [1000],
        [960],
        [600],
    ]
    assert starts(feed(rollup, [5, 6]), "gpu_1s") == [5]


def test_a_metric_that_is_not_kept_is_named_with_those_that_are():
    with pytest.raises(
        ValueError, match=r"'lr' is not recorded per rank; choose from step, .*loss"
    ):
        RANK.metric("lr")
