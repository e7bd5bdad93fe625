from __future__ import annotations

import datetime as dt

import pytest

from ddptop_runner.judge.balance.imbalance import (
    STRAGGLER,
    RankDeviation,
    deviations,
    imbalance,
    of_job,
)
from ddptop_runner.judge.balance.rank_devices import join
from ddptop_runner.model.snapshot import Alert, GpuProcess, GpuSample, Imbalance, RankSample
from ddptop_runner.model.spec import Device


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


def test_memory_of_the_devices_where_that_of_the_ranks_is_unknown():
    gpus = [GpuSample(index=0, mem_used_bytes=30), GpuSample(index=1, mem_used_bytes=10)]
    ranks = [rank(0, gpu_mem_used_bytes=5), rank(1)]
    assert of_job(ranks, gpus).memory == pytest.approx(0.5)


def test_a_job_on_cpus():
    ranks = [rank(0, rss_bytes=30, cpu_percent=100), rank(1, rss_bytes=10, cpu_percent=100)]
    assert of_job(ranks, []) == Imbalance(memory=pytest.approx(0.5), utilization=0)


def test_nothing_known():
    assert of_job([], []) == Imbalance()


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


def test_only_alerts_mark_a_rank():
    ranks = [rank(0, loss=2.0), rank(1, loss=2.0), rank(2, loss=9.0)]
    assert not any(one.is_slow for one in deviations(ranks, []).values())
    now = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    alerts = [
        Alert(id=id_, severity="warning", ranks=[1], message="m", since=now)
        for id_ in (STRAGGLER, "throttled")
    ]
    assert deviations(ranks, [], alerts)[1].is_slow
    assert not deviations(ranks, [], alerts[1:])[1].is_slow


def test_ranks_on_cpus_are_compared_by_what_they_use_of_the_machine():
    ranks = [
        rank(0, rss_bytes=4 * GIB, cpu_percent=100, gpu_util_percent=9),
        rank(1, rss_bytes=2 * GIB, cpu_percent=100),
        rank(2, rss_bytes=2 * GIB, cpu_percent=20),
    ]
    found = deviations(ranks, [])
    assert (found[0].memory, found[0].utilization) == (1.0, 0.0)


TWO_DEVICES = [Device(index=0, uuid="GPU-0"), Device(index=1, uuid="GPU-1")]


@pytest.mark.parametrize(
    ("pids_on", "expected"),
    [
        (([100], [101]), [200, 300]),
        (([100, 101], [101]), [None, 300]),  # with a stray context
        (([100, 101], []), [None, None]),  # both work on the first
        (([100, 4000], [101]), [200, 300]),  # another process is not a rank
        (([100], []), [200, 300]),  # not there yet, and nothing else is
        (([100], [100]), [200, None]),  # the other rank's device is not its own
        ((None, None), [200, 300]),
        (([100, 101], [100, 101]), [None, None]),  # each on both
    ],
)
def test_power_is_a_ranks_where_no_other_rank_works_on_its_device(pids_on, expected):
    gpus = [
        GpuSample(
            index=index,
            uuid=f"GPU-{index}",
            power_w=200 + 100 * index,
            processes=None if pids is None else [GpuProcess(pid=pid) for pid in pids],
        )
        for index, pids in enumerate(pids_on)
    ]
    ranks, _ = join([rank(0, pid=100), rank(1, pid=101)], gpus, {}, TWO_DEVICES, "train")
    assert [one.gpu_power_w for one in ranks] == expected
