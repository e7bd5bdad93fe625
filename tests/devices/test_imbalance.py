from __future__ import annotations

import pytest

from ddptop_runner.imbalance import deviation, imbalance, of_job
from ddptop_runner.model import GpuSample, Imbalance, RankSample


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 1, 1], 0),
        ([1, 1, 1.5], 0.5),
        ([1, 3], 0.5),
        ([4, None, 2, 2], 1),
        ([0, 100, 100], 0),  # the formula is about the greatest, not the least
        ([], None),
        ([5], None),
        ([5, None], None),
        ([0, 0, 7], None),
    ],
)
def test_imbalance_is_greatest_against_median(values, expected):
    found = imbalance(values)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("value", "values", "expected"),
    [
        (8, [8, 10, 10], -0.2),
        (15, [15, 10, 10], 0.5),
        (-1, [-1, -2, -2], 0.5),
        (None, [1, 2, 3], None),
        (1, [1, None], None),
        (1, [1, 0, 0], None),
    ],
)
def test_deviation_is_signed_distance_from_the_median(value, values, expected):
    found = deviation(value, values)
    assert found == (None if expected is None else pytest.approx(expected))


def rank(number: int, **fields: object) -> RankSample:
    fields.setdefault("state", "running")
    return RankSample(rank=number, local_rank=number, host="h", **fields)


def test_a_job_with_devices():
    ranks = [
        rank(0, step_time_s=0.1, gpu_mem_used_bytes=30, rss_bytes=1),
        rank(1, step_time_s=0.1, gpu_mem_used_bytes=10, rss_bytes=1),
        rank(2, step_time_s=0.9, gpu_mem_used_bytes=10, state="failed"),
    ]
    gpus = [
        GpuSample(index=0, util_percent=90, power_w=300, mem_used_bytes=1),
        GpuSample(index=1, util_percent=30, power_w=None, mem_used_bytes=1),
    ]
    assert of_job(ranks, gpus) == Imbalance(
        memory=pytest.approx(0.5), utilization=pytest.approx(0.5), power=None, step_time=0
    )


def test_memory_of_the_devices_where_that_of_the_ranks_is_unknown():
    gpus = [GpuSample(index=0, mem_used_bytes=30), GpuSample(index=1, mem_used_bytes=10)]
    ranks = [rank(0, gpu_mem_used_bytes=5), rank(1)]
    assert of_job(ranks, gpus).memory == pytest.approx(0.5)


def test_a_job_on_cpus():
    ranks = [rank(0, rss_bytes=30, cpu_percent=100), rank(1, rss_bytes=10, cpu_percent=100)]
    assert of_job(ranks, []) == Imbalance(memory=pytest.approx(0.5), utilization=0)


def test_nothing_known():
    assert of_job([], []) == Imbalance()
