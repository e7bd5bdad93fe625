from __future__ import annotations

import pytest

from ddptop_runner.judge.balance.imbalance import (
    RankDeviation,
    deviations,
    imbalance,
    of_job,
)
from ddptop_runner.model.snapshot import GpuSample, Imbalance, RankSample


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 1, 1], 0),
        ([1, 1, 1.5], 0.5),
        ([1, 3], 0.5),
        ([4, None, 2, 2], 1),
        ([0, 100, 100], 0),  # the formula uses the greatest deviation above, not below
        ([], None),
        ([5], None),
        ([5, None], None),
        ([0, 0, 7], None),
    ],
)
def test_imbalance_is_greatest_against_median(values, expected):
    found = imbalance(values)
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


GIB = 1024**3
SOME_GPU = [GpuSample(index=0)]


def test_each_rank_against_its_job():
    ranks = [
        rank(0, gpu_mem_used_bytes=15 * GIB, gpu_util_percent=90, gpu_power_w=300, loss=-2.0),
        rank(1, gpu_mem_used_bytes=10 * GIB, gpu_util_percent=90, gpu_power_w=330, loss=-2.0),
        rank(2, gpu_mem_used_bytes=10 * GIB, gpu_util_percent=45, gpu_power_w=300, loss=-1.0),
        rank(3, gpu_mem_used_bytes=99 * GIB, state="exited", loss=50.0),
    ]
    found = deviations(ranks, SOME_GPU)
    assert found[0] == RankDeviation(0.5, 0.0, 0.0, None, 0.0)
    assert found[1] == RankDeviation(0.0, 0.0, pytest.approx(0.1), None, 0.0)
    assert found[2] == RankDeviation(0.0, -0.5, 0.0, None, 0.5)
    assert found[3] == RankDeviation()  # it ended: nothing to compare
    assert found[2].of("utilization") == -0.5


def test_ranks_on_cpus_are_compared_by_what_they_use_of_the_machine():
    ranks = [
        rank(0, rss_bytes=4 * GIB, cpu_percent=100, gpu_util_percent=9),
        rank(1, rss_bytes=2 * GIB, cpu_percent=100),
        rank(2, rss_bytes=2 * GIB, cpu_percent=20),
    ]
    found = deviations(ranks, [])
    assert (found[0].memory, found[0].utilization) == (1.0, 0.0)
