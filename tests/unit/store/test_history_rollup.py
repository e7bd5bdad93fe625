"""The arithmetic of buckets and tiers, without a file."""

from __future__ import annotations

import pytest

from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.store.history import (
    RANK,
    merge_rows,
    rank_row,
)


def rank_sample(**fields) -> RankSample:
    return RankSample(rank=3, local_rank=3, host="node", **fields)


def of(kind, row) -> dict:
    return dict(zip(kind.columns, row, strict=True))


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
